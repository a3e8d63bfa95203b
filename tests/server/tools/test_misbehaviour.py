"""Servers that misbehave harm nobody else: a bystander's calls go on, memory is bounded, and
nothing of a dead server stays.
"""

import asyncio
import re
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from server.tools.client import ToolClient
from server.tools.messages import ToolResult
from tests.server.tools.helpers.misbehaving_http import misbehaving_http
from tests.server.tools.helpers.running import GOOD, RunningTools, has_ended, outcome, program

DONE = ToolResult(text="done")
UNAVAILABLE, FAILED, TIMEOUT = "tool_server_unavailable", "tool_failed", "tool_timeout"
TOO_LARGE = "tool_result_too_large"
# What each does, and what becomes of a call of its tool.
PROGRAMS: dict[str, ToolResult | str] = {
    "silent": UNAVAILABLE,
    "garbage": UNAVAILABLE,
    "dies_at_start": UNAVAILABLE,
    "old_wrong_version": UNAVAILABLE,
    "endless_pages": "tool_unknown",
    "endless_line": TOO_LARGE,
    "huge_result": TOO_LARGE,
    "values_bomb": TOO_LARGE,
    "wrong_shape": FAILED,
    "dies_in_call": FAILED,
    "leaves_child": FAILED,
    "prints": DONE,
    "many_tools": DONE,
    "control_names": DONE,
    "schema_bomb": DONE,
    "list_changes": DONE,
    "trickle": TIMEOUT,
    "ignores_cancel": TIMEOUT,
    "answers_twice": ToolResult(text="first"),
    "other_ids": TIMEOUT,
    "floods": TIMEOUT,
    "floods_junk": TIMEOUT,
    "floods_stderr": TIMEOUT,
    "deaf": TIMEOUT,
    "asks_back": ToolResult(text="error error error error"),
}
ADDRESSES: dict[str, ToolResult | str] = {
    "http_500": FAILED,
    "http_404": UNAVAILABLE,
    "redirects": FAILED,
    "redirects_in_a_circle": FAILED,
    "wrong_type": FAILED,
    "unpacks": FAILED,
    "endless_body": TOO_LARGE,
    "endless_events": TIMEOUT,
    "endless_event": TOO_LARGE,
    "hangs_up": FAILED,
    "never_answers": TIMEOUT,
    "ignores_notices": DONE,
    "refuses": UNAVAILABLE,
}
ALL = {**PROGRAMS, **ADDRESSES}
MAX_PEAK_BYTES = 400 * 2**20
# A call of the bystander, alone some 5 ms; on a busy machine half a second. Beside anything that
# held the loop up it would be twice this.
MAX_MEDIAN_SECONDS = 1.0


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTools]:
    folder = tmp_path_factory.mktemp("tools")
    with misbehaving_http() as address:
        servers = {name: program(name, env={"FOLDER": "${FOLDER}"}) for name in PROGRAMS}
        for name in ADDRESSES:
            servers[name] = {"url": f"{address}/{name}", "timeout_seconds": 2}
        for slow in ("ignores_notices", "unpacks"):  # and no more than that
            servers[slow]["timeout_seconds"] = 60
        servers["refuses"]["url"] = "http://127.0.0.1:1/"
        servers["orphans"] = servers["leaves_child"]
        running = RunningTools(folder, {"good": GOOD, **servers})
        yield running
        running.close()


@pytest.fixture
async def client(tools: RunningTools) -> AsyncIterator[ToolClient]:
    client = tools.client()
    yield client
    await client.close()


async def bystand(client: ToolClient, name: str, until: "asyncio.Task[object]") -> list[float]:
    """How long each call of the good server took meanwhile, and at least five."""
    seconds: list[float] = []
    while not until.done() or len(seconds) < 5:
        began = time.monotonic()
        key = f"good-{name}-{len(seconds)}-{began}"
        assert await outcome(client, key, "good__echo", text="hello") == ToolResult(text="hello")
        seconds.append(time.monotonic() - began)
    return seconds


def peak_bytes(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("name", ALL)
async def test_a_server_that_misbehaves_harms_no_other_call(
    name: str, tools: RunningTools, client: ToolClient
) -> None:
    await outcome(client, f"warm-{name}", "good__echo", text="")
    bad = asyncio.create_task(outcome(client, f"bad-{name}", f"{name}__act"))
    seconds = await bystand(client, name, bad)
    assert await bad == ALL[name]
    assert statistics.median(seconds) < MAX_MEDIAN_SECONDS
    assert peak_bytes(tools.pid) < MAX_PEAK_BYTES
    print(
        f"{name}: median {statistics.median(seconds) * 1000:.1f} ms, max {max(seconds):.3f} s of "
        f"{len(seconds)}; peak {peak_bytes(tools.pid) / 2**20:.0f} MiB"
    )


async def test_children_of_a_dead_server_end_with_it(
    tools: RunningTools, client: ToolClient
) -> None:
    """In its group or not, and although they hold its pipe."""
    assert await outcome(client, "children", "orphans__act") == FAILED
    pids = (tools.folder / "leaves_child-pids").read_text().split()
    assert len(pids) == 3
    for pid in map(int, pids):
        await has_ended(pid)


async def test_lists_name_what_is_missing(tools: RunningTools, client: ToolClient) -> None:
    found = await client.list_tools(20)
    names = [tool.name for tool in found.tools]
    assert "good__echo" in names and "silent__act" not in names
    assert len([name for name in names if name.startswith("many_tools__")]) == 128
    assert [name for name in names if name.startswith("control_names__")] == ["control_names__act"]
    assert [name for name in names if name.startswith("schema_bomb__")] == ["schema_bomb__act"]
    troubles = {trouble.server: trouble.message for trouble in found.troubles}
    assert "silent" in troubles and "left out" in troubles["control_names"]
    assert all(line.isprintable() for line in troubles.values())
