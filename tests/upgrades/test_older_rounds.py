"""An older version beside this one, amid calls of tools, of which it knows nothing."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.oracle.calling_model import ANSWER, build_calling_model, words_of
from tests.end_to_end.site.deaths import everything_is_killed
from tests.end_to_end.site.harness import TESTING, Client, Server
from tests.helpers.redis_server import running_redis
from tests.helpers.redis_topology import wait_for
from tests.server.tools.helpers.running import GOOD, heard
from tests.upgrades.older_tree import OLDER, extract_to_run
from tests.upgrades.using import begun_by

pytestmark = pytest.mark.slow

TOOLS = {"temperature": 0, "tools": [{"type": "mcp", "server_label": "good"}]}


@pytest.fixture(params=OLDER)
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """The older version, and this one with tools and a model that calls one."""
    tree = extract_to_run(request.param, tmp_path / "tree")
    model = build_calling_model(tmp_path / "model", words_of(("good__count", {"name": "c"})))
    tools = tmp_path / "tools.json"
    good = {**GOOD, "env": {"FOLDER": str(tmp_path)}, "consent": "never"}
    tools.write_text(json.dumps({"mcpServers": {"good": good}}))
    with ExitStack() as stack:
        redis = stack.enter_context(running_redis())
        environment = TESTING | {"PARLEY_REDIS_URL": redis.url}
        older = Server(tmp_path / "older", model, None, PYTHONPATH=str(tree), **environment)
        older.root = tree
        newer = Server(
            tmp_path / "newer", model, older.history, PARLEY_TOOLS=str(tools), **environment
        )
        for server in (older, newer):
            stack.callback(server.close)
            server.start()
        yield older, newer


async def test_an_older_worker_ends_an_answer_amid_its_calls_and_the_chat_goes_on(
    hosts: tuple[Server, Server], tmp_path: Path
) -> None:
    older, newer = hosts
    for name in ("c-began", "c-go"):
        os.mkfifo(tmp_path / name)
    async with Client(newer) as owner:
        session = await owner.new_session()
        await owner.ask(session, "count", settings=TOOLS)
        assert await heard(tmp_path / "c-began") == "1"
        newer.history.fault("kill -9 of all of one host")
        await everything_is_killed(newer)
        assert newer.process is not None
        newer.process.wait()

    def ended() -> dict[str, Any] | None:
        # Not by a viewer: the older version sends entries on as they are stored.
        last = older.get_json(f"/v1/sessions/{session}/messages")["messages"][-1]
        return last if last["status"] != "in_progress" else None

    await asyncio.to_thread(wait_for, ended)
    message = older.get_json(f"/v1/sessions/{session}/messages")["messages"][-1]
    assert message["status_details"]["reason"] == "owner_lost"
    newer.start()
    async with Client(newer) as back:
        await back.reply("session.subscribe", session_id=session)
        second = await back.ask(session, "again", settings=TOOLS)
        assert await heard(tmp_path / "c-began") == "1"  # of another process, which begins anew
        await asyncio.to_thread((tmp_path / "c-go").write_text, "on\n")
        following = await begun_by(back, "calls_" + second.removeprefix("resp_"))
        assert (await back.done(following)).final == "".join(ANSWER)
