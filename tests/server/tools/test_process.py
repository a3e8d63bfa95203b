"""The tool process with servers that behave: calls, cancellation, and what death leaves of them."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from server.tools.client import ToolClient
from server.tools.messages import ToolError, ToolResult
from tests.helpers.patience import PATIENCE
from tests.server.tools.helpers.running import (
    GOOD,
    PROGRAMS,
    RunningTools,
    has_ended,
    heard,
    outcome,
    program,
)

EXAMPLE = Path(__file__).parents[3] / "examples" / "tool_server.py"


def run(folder: Path) -> RunningTools:
    good = {**GOOD, "env": {"FOLDER": str(folder)}, "max_result_bytes": 1000}
    careless = program("trickle", timeout_seconds=PATIENCE)
    servers = {"good": good, "short": program("trickle"), "careless": careless}
    return RunningTools(folder, servers)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTools]:
    running = run(tmp_path_factory.mktemp("tools"))
    yield running
    running.close()


@pytest.fixture
async def client(tools: RunningTools) -> AsyncIterator[ToolClient]:
    client = tools.client()
    yield client
    await client.close()


@pytest.fixture
def own_tools(tmp_path: Path) -> Iterator[RunningTools]:
    """A process of the test's own, to be killed."""
    running = run(tmp_path)
    yield running
    running.close()


@pytest.fixture
async def own_client(own_tools: RunningTools) -> AsyncIterator[ToolClient]:
    client = own_tools.client()
    yield client
    await client.close()


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """Of a call that no other test makes."""
    return str(request.node.name)


def pipes(tools: RunningTools, *names: str) -> list[Path]:
    paths = [tools.folder / name for name in names]
    for path in paths:
        os.mkfifo(path)
    return paths


async def said(path: Path, word: str) -> None:
    async with asyncio.timeout(PATIENCE):
        await asyncio.to_thread(path.write_text, word + "\n")


def test_nothing_runs_before_somebody_asks(own_tools: RunningTools) -> None:
    own_tools.keeper.watch()
    assert own_tools.keeper.pid is None


async def test_a_list_does_not_wait_for_a_server_that_starts(own_client: ToolClient) -> None:
    first = await own_client.list_tools(0)
    assert first.tools == ()
    assert {trouble.code for trouble in first.troubles} == {"tool_server_unavailable"}
    later = await own_client.list_tools(PATIENCE)
    assert "good__echo" in [tool.name for tool in later.tools]


async def test_results_are_text_and_errors_of_a_tool_are_kept(client: ToolClient, key: str) -> None:
    assert await outcome(client, f"{key}-1", "good__echo", text="é\n\x00") == ToolResult(
        text="é\n\x00"
    )
    failed = await outcome(client, f"{key}-2", "good__fail")
    assert isinstance(failed, ToolResult) and failed.is_error and "fail" in failed.text
    picture = await outcome(client, f"{key}-3", "good__picture")
    assert picture == ToolResult(text="a text\n[image of type image/png, not passed on]")


async def test_a_call_that_cannot_be_made_is_refused_by_its_code(
    client: ToolClient, key: str
) -> None:
    assert await outcome(client, f"{key}-1", "good__none") == "tool_unknown"
    assert await outcome(client, f"{key}-2", "none__echo") == "tool_unknown"
    assert await outcome(client, f"{key}-3", "good__echo") == "tool_arguments_invalid"
    assert await outcome(client, f"{key}-4", "good__echo", text=1) == "tool_arguments_invalid"
    half = await outcome(client, f"{key}-8", "good__echo", text="\ud800")  # no message can say it
    assert half == "tool_arguments_invalid"
    assert (
        await outcome(client, f"{key}-5", "good__echo", text="x" * 1001) == "tool_result_too_large"
    )
    assert (
        await outcome(client, f"{key}-6", "good__echo", text="x" * 2**18)
        == "tool_arguments_invalid"
    )
    assert (
        await outcome(client, f"{key}-7" * 201, "good__echo", text="") == "tool_arguments_invalid"
    )


async def test_a_server_gets_no_variables_of_ours(client: ToolClient, key: str) -> None:
    found = await outcome(client, f"{key}-1", "good__environment")
    assert isinstance(found, ToolResult)
    known = {"HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TZ", "USER"}
    assert set(found.text.split()) - known == {"FOLDER", "TOOL_SERVER_MARK"}


async def test_a_list_that_changes_is_read_again(client: ToolClient, key: str) -> None:
    assert await outcome(client, f"{key}-1", "good__grow") == ToolResult(text="grown")
    async with asyncio.timeout(PATIENCE):
        while "good__grown" not in [tool.name for tool in (await client.list_tools(10)).tools]:
            pass


async def test_a_caller_that_stops_waiting_ends_the_call_at_its_server(
    tools: RunningTools, client: ToolClient, key: str
) -> None:
    began, cancelled = pipes(tools, "w-began", "w-cancelled")
    call = asyncio.create_task(outcome(client, f"{key}-1", "good__wait", name="w"))
    await heard(began)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await heard(cancelled) == "yes"
    assert await outcome(client, f"{key}-1", "good__wait", name="w") == "tool_cancelled"


async def test_a_cancelled_call_is_over_at_once_although_its_server_does_not_care(
    client: ToolClient,
    key: str,
) -> None:
    async with asyncio.timeout(PATIENCE):
        while "careless__act" not in [tool.name for tool in (await client.list_tools(10)).tools]:
            pass
    call = asyncio.create_task(outcome(client, f"{key}-1", "careless__act"))
    await client.place()  # answered after the call was taken
    client.cancel(f"{key}-1")
    assert await call == "tool_cancelled"


async def test_a_call_that_is_cancelled_as_it_comes_is_over_at_once(
    client: ToolClient, key: str
) -> None:
    async with asyncio.timeout(PATIENCE):
        while "careless__act" not in [tool.name for tool in (await client.list_tools(10)).tools]:
            pass
    for number in range(20):
        call = asyncio.create_task(outcome(client, f"{key}-{number}", "careless__act"))
        await asyncio.sleep(0)  # it is written
        client.cancel(f"{key}-{number}")  # both are read at once
        assert await call == "tool_cancelled"


async def test_a_key_runs_once_and_a_takeover_gets_the_result_of_a_dead_workers_call(
    tools: RunningTools, client: ToolClient, key: str
) -> None:
    began, go = pipes(tools, "c-began", "c-go")
    dead = tools.client()
    place = await dead.place()
    call = asyncio.create_task(dead.call(f"{key}-k", "good__count", b'{"name": "c"}'))
    assert await heard(began) == "1"
    assert dead._writer is not None
    dead._writer.transport.abort()
    with pytest.raises(ToolError) as raised:
        await call
    assert (raised.value.code, raised.value.may_have_run) == ("tool_outcome_unknown", True)
    recall = asyncio.create_task(client.recall(f"{key}-k", place))
    again = asyncio.create_task(client.call(f"{key}-k", "good__count", b'{"name": "c"}'))
    await client.place()
    await said(go, "on")
    expected = ToolResult(text="call 1: on", is_replayed=True)
    assert [await recall, await again] == [expected, expected]
    assert await client.recall(f"{key}-k", None) == expected
    await dead.close()


async def test_a_takeover_knows_which_call_never_began(client: ToolClient, key: str) -> None:
    place = await client.place()
    with pytest.raises(ToolError) as raised:
        await client.recall(f"{key}-k", place)
    assert (raised.value.code, raised.value.may_have_run) == ("tool_not_started", False)
    assert await outcome(client, f"{key}-k", "good__echo", text="late") == "tool_key_reused"
    assert await outcome(client, f"{key}-k2", "good__echo", text="new") == ToolResult(text="new")


async def test_after_the_death_of_the_process_no_call_is_repeated_and_servers_are_gone(
    own_tools: RunningTools, own_client: ToolClient
) -> None:
    (began,) = pipes(own_tools, "w-began")
    place = await own_client.place()
    call = asyncio.create_task(outcome(own_client, "k", "good__wait", name="w"))
    server = int(await heard(began))
    os.kill(own_tools.pid, signal.SIGKILL)
    assert await call == "tool_outcome_unknown"
    await has_ended(server)
    with pytest.raises(ToolError) as raised:
        await own_client.recall("k", place)
    assert raised.value.code == "tool_outcome_unknown"
    assert await outcome(own_client, "k2", "good__echo", text="x") == ToolResult(text="x")


async def test_a_server_that_dies_in_a_call_serves_the_next_one(
    own_client: ToolClient, key: str
) -> None:
    assert await outcome(own_client, f"{key}-1", "good__die") == "tool_failed"
    found: ToolResult | str = "tool_server_unavailable"
    async with asyncio.timeout(PATIENCE):
        for number in range(10**6):
            if found != "tool_server_unavailable":
                break
            found = await outcome(own_client, f"{key}-again-{number}", "good__echo", text="x")
    assert found == ToolResult(text="x")


async def test_servers_end_with_the_supervisor(
    own_tools: RunningTools, own_client: ToolClient
) -> None:
    (began,) = pipes(own_tools, "w-began")
    call = asyncio.create_task(outcome(own_client, "k", "good__wait", name="w"))
    server, process = int(await heard(began)), own_tools.pid
    await asyncio.to_thread(own_tools.close)
    await call
    await has_ended(server)
    await has_ended(process)


async def test_a_worker_that_says_what_is_no_request_is_left_alone(
    tools: RunningTools, client: ToolClient, key: str
) -> None:
    await client.place()
    reader, writer = await asyncio.open_unix_connection(str(tools.keeper.path))
    writer.write((2**31).to_bytes(4))
    async with asyncio.timeout(PATIENCE):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()
    assert await outcome(client, f"{key}-1", "good__echo", text="x") == ToolResult(text="x")


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of the good server, which listens by then."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "FOLDER": str(tmp_path)}
    command = [sys.executable, str(PROGRAMS / "good_server.py"), "--http", str(port)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        _await_port(port)
        yield f"http://127.0.0.1:{port}/mcp"
        process.kill()


async def test_a_server_at_an_address_is_called_like_a_program(
    tmp_path: Path, address: str
) -> None:
    running = RunningTools(tmp_path, {"far": {"url": address}})
    client = running.client()
    began, cancelled = pipes(running, "w-began", "w-cancelled")
    try:
        assert await outcome(client, "1", "far__echo", text="x") == ToolResult(text="x")
        call = asyncio.create_task(outcome(client, "2", "far__wait", name="w"))
        await heard(began)
        client.cancel("2")
        assert await call == "tool_cancelled"
        assert await heard(cancelled) == "yes"
    finally:
        await client.close()
        running.close()


def _await_port(port: int) -> None:
    """Until the server listens: it says so to nobody."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return


async def test_the_example_of_the_page_works(tmp_path: Path) -> None:
    running = RunningTools(tmp_path, {"clock": {"command": sys.executable, "args": [str(EXAMPLE)]}})
    client = running.client()
    try:
        dates = {"first": "2026-01-01", "second": "2026-11-26"}
        assert await outcome(client, "1", "clock__days_between", **dates) == ToolResult(text="329")
    finally:
        await client.close()
        running.close()
