"""`parley serve --tools`: refused in lines, or a process that is started by whoever connects."""

import json
import sys
from pathlib import Path

from server.tools.client import ToolClient
from server.tools.messages import ToolResult
from tests.end_to_end.site.harness import Server
from tests.end_to_end.terminal.test_command_line import parley
from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT
from tests.server.tools.helpers.running import has_ended, outcome


def test_each_mistake_of_the_file_is_a_line_and_nothing_is_started(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    secret = "sesame-of-the-operator"
    entry = {"url": f"http://u:{secret}@b", "headers": {"A": f"{secret}\n"}, "consent": 1}
    path.write_text(json.dumps({"mcpServers": {"a": entry}}))
    data_dir = tmp_path / "data"
    ended = parley("serve", "--tools", str(path), PARLEY_DATA_DIR=str(data_dir), PARLEY_PORT="0")
    assert ended.returncode == 2
    lines = [json.loads(line)["error"] for line in ended.stderr.strip().splitlines()]
    assert len(lines) == 3
    assert all(line.startswith(f"{path}: a: ") for line in lines)
    assert secret not in ended.stderr and not data_dir.exists()


def socket_in(folder: Path) -> Path:
    (path,) = folder.glob("parley-tools-*/socket")
    return path


async def test_the_tool_process_is_started_by_a_worker_that_connects_and_ends_with_the_server(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tools.json"
    clock = {"command": sys.executable, "args": [str(ROOT / "examples" / "tool_server.py")]}
    path.write_text(json.dumps({"mcpServers": {"clock": clock}}))
    server = Server(tmp_path / "data", "demo", PARLEY_TOOLS=str(path), TMPDIR=str(tmp_path))
    server.start()
    try:
        assert server.children("server.tools.process") == []
        socket = socket_in(tmp_path)
        client = ToolClient(socket)
        found = await client.list_tools(PATIENCE)
        assert {tool.name for tool in found.tools} == {"clock__now", "clock__days_between"}
        dates = {"first": "2026-01-01", "second": "2026-01-03"}
        assert await outcome(client, "k", "clock__days_between", **dates) == ToolResult(text="2")
        (process,) = server.children("server.tools.process")
        (program,) = process.children()
        await client.close()
    finally:
        assert server.stop() == 0
        server.close()
    await has_ended(program.pid)
    await has_ended(process.pid)
    assert not socket.parent.exists()
