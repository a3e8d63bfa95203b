"""A data directory of an older version opens: sessions, branches, links, users, cookies, logs."""

from __future__ import annotations

import asyncio
import json
from html import escape
from typing import Any

from sessions.directory.audit import in_todays_words
from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.site.harness import Client
from tests.helpers.tiny_model import oracle_word
from tests.upgrades.conftest import Opened


def holds(new: Any, old: Any) -> bool:
    """Whether all that the older version answered is there; a newer one may say more."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(
            name in new and holds(new[name], value) for name, value in old.items()
        )
    if isinstance(old, list):
        return (
            isinstance(new, list)
            and len(new) == len(old)
            and all(holds(a, b) for a, b in zip(new, old, strict=True))
        )
    return bool(new == old)


def test_all_that_was_shown_to_users_and_strangers_is_as_it_was(opened: Opened) -> None:
    """Every session, branch, export, queue and share link; presets, and names of models."""
    for path, old in opened.expected["answers"].items():
        assert holds(opened.server.get_json(path), old), path


async def test_a_share_link_of_the_older_version_is_a_page_for_browsers(opened: Opened) -> None:
    path = opened.expected["share_path"]
    shown = opened.expected["answers"][path]
    async with Http(opened.server, "nobody") as anybody:
        page = await anybody.get(path, headers={"Accept": "text/html"})
    assert page.status_code == 200
    assert page.text.count("<article") == len(shown["messages"]) > 0
    for message in shown["messages"]:
        assert escape(message["content"][0]["text"]) in page.text


def test_users_keep_their_tokens_and_what_is_theirs(opened: Opened) -> None:
    server, expected = opened.server, opened.expected
    status, body = server.get("/v1/sessions", expected["her_token"])
    assert status == 200 and holds(json.loads(body), expected["her_sessions"])
    for entry in expected["audit"]["entries"]:
        entry["reason"] = in_todays_words(entry["action"], entry["reason"])
    admin = (server.data_dir / "admin-token").read_text().strip()
    for path in ("users", "audit"):
        status, body = server.get(f"/v1/admin/{path}", admin)
        assert status == 200 and holds(json.loads(body), expected[path])


def test_the_log_of_a_finished_answer_is_replayed_as_it_was(opened: Opened) -> None:
    for response_id, old in opened.expected["logs"].items():
        path = f"/v1/responses/{response_id}?stream=true&starting_after=0"
        status, new = opened.server.get(path)
        assert status == 200 and events_of(new.decode()) == events_of(old)


def events_of(stream: str) -> list[tuple[object, ...]]:
    """Kind, id, text and logprobs of each event that is part of the log."""
    found: list[tuple[object, ...]] = []
    for block in stream.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "id" in fields:
            data = json.loads(fields["data"])
            said = (data.get("delta", ""), data.get("logprobs"))
            found.append((fields["event"], fields["id"], *said))
    return found


async def test_a_chat_of_the_older_version_goes_on(used: Opened) -> None:
    listed = used.expected["answers"]["/v1/sessions"]["sessions"]
    session = next(one["id"] for one in listed if one["title"] == "Drei Äste")
    path = f"/v1/sessions/{session}/messages"
    before = used.expected["answers"][path]["messages"]
    async with Client(used.server) as client:
        reply = await client.reply("session.subscribe", session_id=session)
        assert reply["type"] == "session.subscribed", reply
        settings = {"temperature": 0, "max_output_tokens": 3}
        response = await client.ask(session, oracle_word(30), settings=settings)
        assert (await client.done(response)).final
    after = (await asyncio.to_thread(used.server.get_json, path))["messages"]
    assert holds(after[: len(before)], before) and len(after) == len(before) + 2


def test_a_cookie_of_the_older_version_is_still_its_user_s(opened: Opened) -> None:
    assert opened.shown_to_browser(opened.expected["cookie"]) == opened.sessions
