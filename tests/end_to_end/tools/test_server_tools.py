"""Real processes: `parley serve --tools`, its engine, MCP servers, and what deaths leave."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.frames.client_model import Frame
from tests.end_to_end.oracle.calling_model import ANSWER, build_calling_model, words_of
from tests.end_to_end.site.harness import TESTING, Client, Server
from tests.end_to_end.site.owned_answer import owner_and_other
from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT
from tests.server.tools.helpers.running import GOOD, heard, program

CLOCK = {"command": sys.executable, "args": [str(ROOT / "examples" / "tool_server.py")]}
DATES = {"first": "2026-01-01", "second": "2026-01-03"}
ANSWERED = "".join(ANSWER)


@contextlib.asynccontextmanager
async def serving(
    folder: Path, servers: dict[str, Any], *calls: tuple[str, dict[str, Any]], **environment: str
) -> AsyncIterator[Server]:
    """A server with a model that makes these calls."""
    path = folder / "tools.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    model = build_calling_model(folder / "model", words_of(*calls))
    server = Server(folder / "data", model, None, PARLEY_TOOLS=str(path), **environment)
    try:
        await asyncio.to_thread(server.start)
        await asyncio.to_thread(_start_servers, server)
        yield server
    finally:
        await asyncio.to_thread(server.close)


def _start_servers(server: Server) -> None:
    """A question waits for them, but not as long as this machine may take."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        listed = server.get_json("/v1/tools")["servers"]
        if all(each["status"] == "ready" for each in listed if each["server_label"] != "silent"):
            return
    raise AssertionError(f"not ready: {listed}")


def offering(*labels: str) -> Frame:
    tools = [{"type": "mcp", "server_label": label} for label in labels]
    return {"temperature": 0, "tools": tools}


async def next_answer(client: Client, after: str) -> str:
    """The text of the round that the server itself has begun."""
    key = "calls_" + after.removeprefix("resp_")

    def find() -> str | None:
        created = [f["response"]["id"] for f in client.frames if f.get("idempotency_key") == key]
        return created[0] if created else None

    return (await client.done(await client.wait(find, "the next round"))).final


async def item(client: Client, status: str) -> Frame:
    """What has become of a call, once it has this status."""

    def find() -> Frame | None:
        items = [frame["item"] for frame in client.frames if "item" in frame]
        outputs = [each for each in items if each["type"] == "function_call_output"]
        return next((each for each in outputs if each["status"] == status), None)

    found: Frame = await client.wait(find, f"an item {status}")
    return found


async def test_the_example_of_the_page_answers_with_consent(tmp_path: Path) -> None:
    call = ("clock__days_between", DATES)
    async with serving(tmp_path, {"clock": CLOCK}, call) as server:
        async with Client(server) as client:
            session = await client.new_session()
            first = await client.ask(session, "how long?", settings=offering("clock"))
            waiting = await item(client, "awaiting_consent")
            assert waiting["name"] == "clock__days_between"
            path = f"/v1/responses/{first}/consent"
            async with Http(server) as http:
                answer = await http.post(path, {"call_id": waiting["call_id"], "decision": "allow"})
                assert answer.status_code == 200
            assert await next_answer(client, first) == ANSWERED
            found = server.get_json(f"/v1/sessions/{session}/messages")["messages"]
            assert [each["role"] for each in found] == ["user", "assistant", "tool", "assistant"]
            assert found[1]["tool_outputs"][0]["output"] == found[2]["content"][0]["text"] == "2"
            listed = server.get_json("/v1/tools")["servers"][0]
            assert (listed["server_label"], listed["status"]) == ("clock", "ready")
            consents = {tool["name"]: tool["consent"] for tool in listed["tools"]}
            assert consents == {"clock__now": "always", "clock__days_between": "always"}


async def test_a_call_runs_once_although_its_worker_is_killed(tmp_path: Path) -> None:
    good = {**GOOD, "env": {"FOLDER": str(tmp_path)}, "consent": "never", "timeout_seconds": 600}
    began, go = tmp_path / "k-began", tmp_path / "k-go"
    for pipe in (began, go):
        os.mkfifo(pipe)
    environment = {**TESTING, "PARLEY_WORKERS": "2"}
    call = ("good__count", {"name": "k"})
    async with serving(tmp_path, {"good": good}, call, **environment) as server:
        async with owner_and_other(server) as (owner, other, pid):
            session = await owner.new_session()
            await other.reply("session.subscribe", session_id=session)
            first = await owner.ask(session, "count", settings=offering("good"))
            assert await heard(began) == "1"
            await item(other, "in_progress")
            server.history.fault("kill -9 of the owner")
            os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(go.write_text, "on\n")
            assert (await item(other, "completed"))["output"] == "call 1: on"
            assert await next_answer(other, first) == ANSWERED
            done = (await other.done(first)).done
            assert done is not None and done["fence"] == 2
            found = server.get_json(f"/v1/sessions/{session}/messages")["messages"]
            assert found[1]["tool_outputs"][0]["output"] == "call 1: on"


async def test_a_server_that_hangs_harms_nobody_elses_answer(tmp_path: Path) -> None:
    silent = program("silent", timeout_seconds=600, consent="never")
    good = {**GOOD, "env": {"FOLDER": str(tmp_path)}, "consent": "never", "timeout_seconds": 600}
    began = tmp_path / "h-began"
    os.mkfifo(began)
    call = ("good__wait", {"name": "h"})
    servers = {"good": good, "silent": silent}
    async with serving(tmp_path, servers, call) as server:
        async with Client(server) as stuck, Client(server) as bystander:
            theirs = await bystander.new_session()
            session = await stuck.new_session()
            first = await stuck.ask(session, "wait", settings=offering("good"))
            await heard(began)
            refused = await stuck.reply(
                "response.create",
                session_id=await stuck.new_session(),
                idempotency_key="k",
                input="x",
                settings=offering("silent"),
            )
            assert refused["error"]["code"] == "tool_server_unavailable"
            said = await bystander.ask(theirs, "hello", settings={"temperature": 0})
            assert (await bystander.done(said)).final
            await stuck.send("stop", response_id=first)
            done = (await stuck.done(first)).done
            assert done is not None and done["response"]["status"] == "cancelled"


async def test_a_server_without_tools_refuses_them_by_name(server: Server) -> None:
    assert server.get_json("/v1/tools") == {"servers": []}
    async with Client(server) as client:
        session = await client.new_session()
        refused = await client.reply(
            "response.create",
            session_id=session,
            idempotency_key="k",
            input="t00001",
            settings=offering("clock"),
        )
        assert refused["error"]["code"] == "tool_not_found"
