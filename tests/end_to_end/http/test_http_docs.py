"""The examples of docs/http.md do what they say, and no operation is without one."""

import json
import re
from typing import Any, NamedTuple

from server.api.rest.operation import Access
from tests.end_to_end.clients.http_client import LISTED, Http
from tests.end_to_end.site.harness import Server
from tests.helpers.root import ROOT

EXAMPLE = re.compile(r"^```http\n(\w+) (\S+) → (\d{3})\n(.*?)```$", re.MULTILINE | re.DOTALL)
HEADER = re.compile(r"[A-Z][\w-]+: ")
KINDS = {
    "ses_": "session_id",
    "msg_": "message_id",
    "resp_": "response_id",
    "shr_": "share_id",
    "item_": "item_id",
    "conv_": "conversation_id",
}


class Example(NamedTuple):
    method: str
    path: str
    status: int
    headers: dict[str, str]
    body: str


def examples() -> list[Example]:
    found = []
    for method, path, status, rest in EXAMPLE.findall((ROOT / "docs" / "http.md").read_text()):
        lines = rest.splitlines()
        num_headers = next(
            (n for n, line in enumerate(lines) if not HEADER.match(line)), len(lines)
        )
        headers = dict(line.split(": ", 1) for line in lines[:num_headers])
        body = "\n".join(lines[num_headers:])
        found.append(Example(method, path, int(status), headers, body))
    return found


def fill(text: str, known: dict[str, str]) -> str:
    return re.sub(r"{(\w+)}", lambda match: known[match[1]], text)


def learn(answer: Any, known: dict[str, str]) -> None:
    """Remember the ids and codes of an answer."""
    if isinstance(answer, dict):
        if "last_id" in answer:  # a list of items, whose ids are of many kinds
            known["item_id"] = answer["last_id"]
        for name in ("id", "code", "message_id", "item_id"):
            value = answer.get(name)
            if isinstance(value, str):
                prefix = value.partition("_")[0] + "_"
                known[KINDS.get(prefix, "code" if name == "code" else "other")] = value


def test_every_operation_of_users_has_an_example() -> None:
    shown = {(one.method, one.path.partition("?")[0]) for one in examples()}
    declared = {
        (one.method, one.path)
        for one in LISTED
        if one.access is not Access.ADMIN and one.path != "/admin"
    }
    assert declared - shown == set()
    assert shown - declared == set()


async def test_every_example_answers_as_it_says(server: Server) -> None:
    known: dict[str, str] = {"origin": server.url}
    async with Http(server) as http:
        known["model"] = (await http.ask("GET", "/v1/models")).json()["data"][0]["id"]
        for one in examples():
            headers = {name: fill(value, known) for name, value in one.headers.items()}
            options: dict[str, Any] = {"headers": headers}
            if one.body:
                options["content"] = fill(one.body, known)
                headers.setdefault("Content-Type", "application/json")
            server.history.num_stateless += 2 * one.path.endswith(("/completions", "/embeddings"))
            server.history.num_stateless += one.path == "/v1/responses"
            answer = await http.ask(one.method, fill(one.path, known), **options)
            assert answer.status_code == one.status, (one, answer.text)
            kind = answer.headers.get("content-type", "")
            if kind.startswith("application/json") and "openapi" not in one.path:
                learn(answer.json(), known)
            if "stream" in one.path or "event-stream" in one.headers.get("Accept", ""):
                last = json.loads(answer.text.strip().split("data: ")[-1].partition("\n")[0])
                assert last["type"] in ("response.done", "response.incomplete")
    assert {*KINDS.values(), "code"} <= set(known)
