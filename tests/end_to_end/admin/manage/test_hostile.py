"""Hostile names, titles and reasons at every door of admins: refused, or given back as one line.

The doors and their fields are those that the server declares, so that none can be forgotten.
"""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from server.api.rest.operation import Access, Operation
from tests.end_to_end.clients.http_client import LISTED, Http, code_of, fresh_key
from tests.end_to_end.clients.operators import new_user
from tests.end_to_end.frames.raw import Answer, ask, request
from tests.end_to_end.site.harness import Server

DOORS = [one for one in LISTED if one.access is Access.ADMIN]
HOSTILE = {
    "controls": "a\x00\x07\x08\r\n\x0b\x7f\x85\x9bb",
    "escapes": "\x1b]0;owned\x07\x1b[2J\x1b[31mred",
    "lines": 'one\ntwo\r{"event":"forged"}\u2028three\u2029four',
    "bidi": "user\u202egnp.exe\u2066\u200f\u061c",
    "markup": '<img src=x onerror="alert(1)">&amp;{{7*7}}',
    "traversal": "../../../etc/passwd%00",
    "long": "x" * 10_000,
}
BLANK = ["\u200b", "\u2060\ufeff", "\u00ad", "\u202e\u2069", " \t\n"]
UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# What must be right for a hostile field to be looked at.
FIELDS: dict[str, Any] = {
    "name": "x",
    "text": "x",
    "expires_in_s": 60,
    "level": "info",
    "reason": "x",
    "engine": "native",
}
READ_ONLY = ("GET", "HEAD")
# They would take away what the others are asked with, or end the worker that answers.
SPARED = ("/drain", "/restart")


def texts_of(body: Any) -> Iterator[str]:
    """Every text in a JSON value, keys among them."""
    if isinstance(body, str):
        yield body
    elif isinstance(body, dict):
        for name, value in body.items():
            yield from (name, *texts_of(value))
    elif isinstance(body, list):
        for value in body:
            yield from texts_of(value)


def fields_of(one: Operation) -> list[str]:
    """The texts that its body takes."""
    if one.body is None:
        return []
    return [
        field.encode_name for field in msgspec.structs.fields(one.body) if "str" in str(field.type)
    ]


def path_of(one: Operation, ids: dict[str, str]) -> str:
    return re.sub(r"{(\w+)}", lambda found: ids.get(found[1], "nothing"), one.path)


async def ids_of(server: Server, admin: Http) -> dict[str, str]:
    """Something to be found behind each door."""
    user = await new_user(admin, name="Victim")
    group = (await admin.post("/v1/admin/groups", {"name": "team"})).json()
    async with Http(server, user["token"]) as http:
        session = (await http.new_session())["id"]
        await http.post(f"/v1/sessions/{session}/share")
    (replica, *_) = (await admin.get("/v1/admin/replicas")).json()["replicas"]
    return {
        "uid": user["id"],
        "gid": group["id"],
        "session_id": session,
        "replica": replica["id"],
    }


@pytest.mark.parametrize("kind", HOSTILE)
async def test_hostile_words_are_refused_or_come_back_as_one_line(
    two_workers: Server, admin: Http, kind: str
) -> None:
    hostile, tried = HOSTILE[kind], 0
    ids = await ids_of(two_workers, admin)
    writing = [one for one in DOORS if one.method not in (*READ_ONLY, "DELETE")]
    for one in writing:
        for field in fields_of(one):
            if one.path.endswith(SPARED) and len(hostile) < 200:
                continue
            taken = [known.encode_name for known in msgspec.structs.fields(one.body)]
            body = {name: FIELDS[name] for name in taken if name in FIELDS} | {field: hostile}
            answer = await admin.ask(one.method, path_of(one, ids), json=body)
            assert answer.status_code < 500, (one.path, field, answer.text)
            shown = texts_of(answer.json() if answer.content else {})
            assert not any(map(UNSAFE.search, shown)), (one.path, field)
            assert len(answer.content) < 4000, (one.path, field)
            tried += 1
    assert tried > 15
    for one in DOORS:
        for name in re.findall(r"{(\w+)}", one.path):
            path = path_of(one, ids | {name: quote(hostile[:2000], safe="")})
            answer = await admin.ask(one.method, path, json=None if one.method == "GET" else {})
            assert 400 <= answer.status_code < 500, (one.method, one.path, answer.text)
            assert not any(map(UNSAFE.search, texts_of(answer.json()))), one.path
        if one.method == "GET" and one.query is not None:
            for known in msgspec.structs.fields(one.query):
                sought = {known.encode_name: hostile}
                answer = await admin.get(path_of(one, ids), params=sought)
                assert answer.status_code < 500, (one.path, sought, answer.text)
    await everything_is_one_line_each(two_workers, admin)
    await admin.ask("DELETE", "/v1/admin/notice")


async def everything_is_one_line_each(server: Server, admin: Http) -> None:
    """What is listed afterwards, the audit and the log."""
    for one in DOORS:
        if one.method == "GET" and "{" not in one.path:
            listed = await admin.get(one.path)
            assert not any(map(UNSAFE.search, texts_of(listed.json()))), one.path
    entries = (await admin.get("/v1/admin/audit?limit=200")).json()["entries"]
    assert all(len(entry["reason"]) <= 1000 and len(entry["target"]) <= 1000 for entry in entries)
    for line in server.log(None).splitlines():
        assert isinstance(json.loads(line), dict), line[:200]
        assert UNSAFE.search(line) is None, line[:200]
        assert "forged" not in json.loads(line).get("event", "")


@pytest.mark.parametrize("surrogate", [r"\ud800", r"x\udfff", r"\udc00\ud800"])
async def test_lone_surrogates_are_no_json(
    two_workers: Server, admin: Http, surrogate: str
) -> None:
    token = (two_workers.data_dir / "admin-token").read_text().strip()
    for method, path, field in (
        ("POST", "/v1/admin/users", "name"),
        ("POST", "/v1/admin/groups", "name"),
        ("PUT", "/v1/admin/notice", "text"),
    ):
        body = f'{{"{field}": "{surrogate}", "expires_in_s": 60}}'.encode()
        headers = [
            ("Authorization", f"Bearer {token}"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
        ]
        answer: Answer = await ask(
            two_workers, request(two_workers, method, path, headers, body=body)
        )
        assert answer.status == 400, answer
        assert answer.error["code"] in ("invalid_json", "invalid_field")


@pytest.mark.parametrize("blank", BLANK)
async def test_what_nobody_can_see_is_no_name_no_notice_no_title_and_no_reason(
    two_workers: Server, admin: Http, blank: str
) -> None:
    ids = await ids_of(two_workers, admin)
    session = f"/v1/admin/sessions/{ids['session_id']}"
    worker = f"/v1/admin/replicas/{ids['replica']}"
    before = (await admin.get("/v1/admin/audit?limit=1")).json()["entries"]
    for method, path, body, param in (
        ("POST", "/v1/admin/users", {"name": blank}, "name"),
        ("POST", "/v1/admin/users", {"name": "x", "purpose": blank}, "purpose"),
        ("PATCH", f"/v1/admin/users/{ids['uid']}", {"name": blank}, "name"),
        ("POST", f"/v1/admin/users/{ids['uid']}/tokens", {"purpose": blank}, "purpose"),
        ("POST", "/v1/admin/groups", {"name": blank}, "name"),
        ("PATCH", f"/v1/admin/groups/{ids['gid']}", {"name": blank}, "name"),
        ("PUT", "/v1/admin/notice", {"text": blank, "expires_in_s": 60}, "text"),
        ("POST", f"{session}/stop", {"reason": blank}, "reason"),
        ("POST", f"{session}/evict", {"reason": blank}, "reason"),
        ("POST", f"{session}/unlock", {"reason": blank}, "reason"),
        ("POST", f"{worker}/drain", {"reason": blank}, "reason"),
        ("POST", f"{worker}/restart", {"reason": blank}, "reason"),
        ("POST", f"{worker}/log-level", {"level": "info", "reason": blank}, "reason"),
        ("POST", "/v1/admin/engines/oracle/restart", {"reason": blank}, "reason"),
    ):
        refused = await admin.ask(method, path, json=body)
        assert code_of(refused) == (400, "invalid_field"), path
        assert refused.json()["error"]["param"] == param
    assert (await admin.get("/v1/admin/audit?limit=1")).json()["entries"] == before
    async with Http(two_workers) as user:
        refused = await user.post("/v1/sessions", {"title": blank}, headers=fresh_key())
        assert code_of(refused) == (400, "invalid_field")
        mine = (await user.new_session(title="mine"))["id"]
        refused = await user.ask("PATCH", f"/v1/sessions/{mine}", json={"title": blank})
        assert code_of(refused) == (400, "invalid_field")
