"""The examples and the README's conversation, run as a reader would run them."""

import asyncio
import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from tests.end_to_end.oracle.calling_model import ANSWER, build_calling_model
from tests.end_to_end.site.fault_proxy import FaultProxy
from tests.end_to_end.site.harness import Server
from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT
from tests.helpers.running_time import running_time
from tests.helpers.tiny_model import oracle_answer, oracle_word

WAIT_MS = 300
NODE = shutil.which("node")
(TIMEOUT_COMMAND,) = re.findall(
    "^python .+$", (ROOT / "examples" / "timeout.py").read_text(), re.MULTILINE
)


def script(name: str) -> str:
    return str(ROOT / "examples" / name)


async def start(*command: str, cwd: Path | None = None) -> Process:
    return await asyncio.create_subprocess_exec(*command, cwd=cwd, stdout=PIPE, stderr=PIPE)


async def finish(process: Process, seconds: float = PATIENCE) -> str:
    """What it printed; it must end by itself, without an error."""
    async with asyncio.timeout(seconds):
        printed, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return printed.decode()


async def interrupt_after(process: Process, count: int) -> str:
    """Press Ctrl-C when so many bytes were printed; return everything that was."""
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        first = await process.stdout.readexactly(count)
    process.send_signal(signal.SIGINT)
    return first.decode() + await finish(process)


def node_has_websocket() -> list[str] | None:
    """The flags with which node knows `WebSocket`; None without such a node."""
    if NODE is None:
        return None
    for flags in ([], ["--experimental-websocket"]):
        asked = [NODE, *flags, "-e", "process.exit(globalThis.WebSocket ? 0 : 1)"]
        if subprocess.run(asked, capture_output=True).returncode == 0:
            return flags
    return None


async def test_the_tool_client_carries_out_what_a_model_calls(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", build_calling_model(tmp_path / "model"))
    try:
        server.start()
        data_dir = ("--data-dir", str(server.data_dir))
        printed = await finish(await start(sys.executable, script("tool_client.py"), *data_dir))
    finally:
        server.close()
    called, answer = printed.strip().splitlines()
    assert re.fullmatch(r'\[current_time \{"zone": "UTC"\}: \d{4}-\S+\+00:00\]', called)
    assert answer == "".join(ANSWER)


async def test_the_python_client_streams_an_answer_until_ctrl_c_stops_it(server: Server) -> None:
    data_dir = ("--data-dir", str(server.data_dir))
    process = await start(sys.executable, script("python_client.py"), *data_dir, oracle_word(0))
    printed = await interrupt_after(process, 40)
    text, _, end = printed.rpartition("\n[")
    assert oracle_answer(0, 3000).startswith(text) and len(text) >= 40
    assert end.startswith("cancelled: client_cancelled, ")


async def test_the_javascript_client_streams_an_answer_until_ctrl_c_stops_it(
    server: Server,
) -> None:
    flags = node_has_websocket()
    if NODE is None or flags is None:
        pytest.skip("needs node 20 or later")
    arguments = (server.url, server.token, oracle_word(0))
    process = await start(NODE, *flags, script("javascript_client.js"), *arguments)
    printed = await interrupt_after(process, 40)
    assert printed.startswith(oracle_answer(0, 5))
    assert "[cancelled: client_cancelled, " in printed


async def refusal(process: Process) -> str:
    """The one line with which it ended."""
    async with asyncio.timeout(PATIENCE):
        printed, errors = await process.communicate()
    assert (process.returncode, printed) == (1, b"")
    (line,) = errors.decode().splitlines()
    return line


async def test_the_python_client_says_in_one_line_that_there_is_no_server(tmp_path: Path) -> None:
    client = (sys.executable, script("python_client.py"), f"--data-dir={tmp_path}")
    assert (await refusal(await start(*client))).startswith("no server is running: ")


async def test_the_javascript_client_says_in_one_line_what_it_lacks(server: Server) -> None:
    flags = node_has_websocket()
    if NODE is None or flags is None:
        pytest.skip("needs node 20 or later")
    client = (NODE, "--no-warnings", *flags, script("javascript_client.js"))
    assert (await refusal(await start(*client))).startswith("usage: ")
    assert (await refusal(await start(*client, server.url))).startswith("usage: ")
    refused = await refusal(await start(*client, server.url, "wrong"))
    assert refused == "closed: 4401 token_invalid"


@pytest.mark.slow
async def test_the_timeout_of_its_own_command_comes_before_the_end() -> None:
    command = shlex.split(TIMEOUT_COMMAND)
    printed = await finish(await start(sys.executable, *command[1:], cwd=ROOT))
    assert "Request cancelled successfully\n" in printed and "ended within" not in printed


@pytest.mark.slow
async def test_the_example_of_a_timeout_says_when_the_answer_ended_before_it() -> None:
    in_time = ("--pace", "0", "--seconds", str(PATIENCE))
    printed = await finish(await start(sys.executable, script("timeout.py"), *in_time))
    assert "The answer ended within" in printed and "timed out" not in printed


@asynccontextmanager
async def python_client(server: Server, folder: Path) -> AsyncIterator[tuple[Process, FaultProxy]]:
    """The client, which asks for a long answer, and what is between it and the server."""
    with FaultProxy(server.url.removeprefix("http://")) as proxy:
        (folder / "server.json").write_text(json.dumps({"url": f"http://{proxy.address}"}))
        (folder / "token").write_text(server.token)
        arguments = (f"--data-dir={folder}", oracle_word(900))
        yield await start(sys.executable, script("python_client.py"), *arguments), proxy


@asynccontextmanager
async def javascript_client(server: Server) -> AsyncIterator[tuple[Process, FaultProxy]]:
    """The same in JavaScript."""
    flags = node_has_websocket()
    if NODE is None or flags is None:
        pytest.skip("needs node 20 or later")
    with FaultProxy(server.url.removeprefix("http://")) as proxy:
        arguments = (f"http://{proxy.address}", server.token, oracle_word(900))
        yield await start(NODE, *flags, script("javascript_client.js"), *arguments), proxy


async def cut_twice(process: Process, proxy: FaultProxy) -> str:
    """Reset its connection while the answer streams, and again; after that, press Ctrl-C."""
    assert process.stdout is not None
    printed = b""
    for _ in range(2):
        async with asyncio.timeout(PATIENCE):
            printed += await process.stdout.readexactly(60)
        await asyncio.to_thread(proxy.command, "rst")
    return printed.decode() + await interrupt_after(process, 700)


@pytest.mark.slow  # that of JavaScript loses the network below, and the connection with it
async def test_the_python_client_goes_on_after_a_lost_connection(
    server: Server, tmp_path: Path
) -> None:
    async with python_client(server, tmp_path) as (process, proxy):
        printed = await cut_twice(process, proxy)
    assert printed.startswith(oracle_answer(900, 100))
    assert "\n[cancelled: client_cancelled, " in printed


@pytest.mark.slow
async def test_the_javascript_client_goes_on_after_a_lost_connection(server: Server) -> None:
    async with javascript_client(server) as (process, proxy):
        printed = await cut_twice(process, proxy)
    assert printed.startswith(oracle_answer(900, 100))
    assert "\n[cancelled: client_cancelled, " in printed


async def accepted(proxy: FaultProxy, count: int) -> None:
    while True:
        if proxy.num_accepted >= count:
            return
        await asyncio.sleep(0.01)  # they are counted in another thread


async def cut_off(process: Process, proxy: FaultProxy) -> str:
    """Two cuts while the answer streams: one swallows packets, in the other each try fails at once.

    Each lasts for some tries, which must not take long; one more must be enough when it is over.
    Returns what was printed.
    """
    assert process.stdout is not None
    printed = b""
    server = proxy.target
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # and never listens
        for cut, num_tries, seconds in (
            ("blackhole", 5, 30),
            (f"target 127.0.0.1:{deaf.getsockname()[1]}", 9, 15),
        ):
            async with asyncio.timeout(PATIENCE):
                printed += await process.stdout.readexactly(60)
                proxy.command(cut)
                proxy.command("rst")
                before, began = proxy.num_accepted, running_time()
                await accepted(proxy, before + num_tries)
                assert running_time() - began < seconds
                proxy.command(f"target {server}")
                during = proxy.num_accepted
                proxy.command("pass")
                printed += await process.stdout.readexactly(60)
                assert proxy.num_accepted - during <= 2
    return printed.decode() + await finish(process, PATIENCE)


@pytest.mark.slow
async def test_the_python_client_is_back_one_try_after_the_network(
    server: Server, tmp_path: Path
) -> None:
    async with python_client(server, tmp_path) as (process, proxy):
        printed = await cut_off(process, proxy)
    assert printed.startswith(oracle_answer(900, 100))
    assert "\n[" in printed


@pytest.mark.slow
async def test_the_javascript_client_is_back_one_try_after_the_network(server: Server) -> None:
    async with javascript_client(server) as (process, proxy):
        printed = await cut_off(process, proxy)
    assert printed.startswith(oracle_answer(900, 100))
    assert "\n[" in printed


class BusyServer:
    """Speaks just enough of chat.v1 to send a client away twice, and to answer the third time."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await serve(
            self._talk, "127.0.0.1", 0, subprotocols=[Subprotocol("chat.v1")]
        )
        host, port = next(iter(self._server.sockets)).getsockname()
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _talk(self, client: ServerConnection) -> None:
        self.arrivals.append(time.monotonic())
        if len(self.arrivals) == 1:
            await client.close(4429, f"too_many_connections;retry_after_ms={WAIT_MS}")
            return
        async for text in client:
            for frame in self._answers(json.loads(text)):
                await client.send(json.dumps(frame))

    def _answers(self, frame: dict[str, Any]) -> list[dict[str, Any]]:
        if frame["type"] == "session.create":
            session = {"type": "session.created", "session": {"id": "ses_A"}}
            return [{**session, "event_id": frame["event_id"]}]
        if len(self.arrivals) == 2:
            return [{"type": "error", "error": {"code": "draining", "retry_after_ms": WAIT_MS}}]
        response = {"id": "resp_R", "status": "completed", "text_length": 4}
        done = {"status_details": {"reason": "eos"}, "usage": {"output_tokens": 1}}
        key = frame["idempotency_key"]
        frames: list[dict[str, Any]] = [
            {"type": "response.created", "response": response, "idempotency_key": key},
            {"type": "response.output_text.delta", "response_id": "resp_R"},
            {"type": "response.done", "response": {**response, **done}, "durable": True},
        ]
        frames[1] |= {"text_offset": 0, "delta": "Fine"}
        return [{**one, "sequence_number": n, "fence": 1} for n, one in enumerate(frames, 1)]


async def check_patience(busy: BusyServer, process: Process) -> None:
    assert "Fine\n[completed: eos, 1 tokens]" in await finish(process)
    waits = [later - earlier for earlier, later in pairwise(busy.arrivals)]
    assert len(waits) == 2 and min(waits) >= WAIT_MS / 1000


async def test_the_python_client_waits_as_long_as_it_is_asked_to(tmp_path: Path) -> None:
    async with BusyServer() as busy:
        (tmp_path / "server.json").write_text(json.dumps({"url": busy.url}))
        (tmp_path / "token").write_text("x")
        client = (sys.executable, script("python_client.py"), f"--data-dir={tmp_path}")
        await check_patience(busy, await start(*client, "How is it?"))


async def test_the_javascript_client_waits_as_long_as_it_is_asked_to() -> None:
    flags = node_has_websocket()
    if NODE is None or flags is None:
        pytest.skip("needs node 20 or later")
    async with BusyServer() as busy:
        client = (NODE, *flags, script("javascript_client.js"), busy.url, "x", "How is it?")
        await check_patience(busy, await start(*client))


class HastyServer(BusyServer):
    """Loses its client after a word; then its end overtakes what the client has missed."""

    async def _talk(self, client: ServerConnection) -> None:
        self.arrivals.append(time.monotonic())
        async for text in client:
            frame = json.loads(text)
            for answer in self._answers(frame):
                await client.send(json.dumps(answer))
            if frame["type"] == "response.create":
                await client.close(1012, "restart")

    def _answers(self, frame: dict[str, Any]) -> list[dict[str, Any]]:
        whose = {"response_id": "resp_R", "fence": 1}
        details = {"status_details": {"reason": "eos"}, "usage": {"output_tokens": 2}}
        response = {"id": "resp_R", "status": "completed", "text_length": 8, **details}
        end = {"type": "response.done", "response": response, "durable": True}
        second = {"type": "response.output_text.delta", "text_offset": 4, "delta": "Fine"}
        match frame["type"]:
            case "session.create":
                session = {"type": "session.created", "session": {"id": "ses_A"}}
                created = {**session, "event_id": frame["event_id"]}
                overtakes = [{**end, **whose, "sequence_number": 4}]
                return [created] if len(self.arrivals) == 1 else [created, *overtakes]
            case "response.create":
                key = frame["idempotency_key"]
                begun = {"type": "response.created", "response": response, "idempotency_key": key}
                first = {"type": "response.output_text.delta", "text_offset": 0, "delta": "Very"}
                both = enumerate((begun, first), 1)
                return [{**one, **whose, "sequence_number": n} for n, one in both]
            case "response.resume":
                rest = enumerate((second, end), 3)
                return [{**one, **whose, "sequence_number": n} for n, one in rest]
        return []


async def test_the_javascript_client_does_not_take_an_end_for_the_words_before_it() -> None:
    flags = node_has_websocket()
    if NODE is None or flags is None:
        pytest.skip("needs node 20 or later")
    async with HastyServer() as hasty:
        client = (NODE, *flags, script("javascript_client.js"), hasty.url, "x", "How is it?")
        printed = await finish(await start(*client))
    assert printed == "VeryFine\n[completed: eos, 2 tokens]\n"
    assert len(hasty.arrivals) == 2


async def test_the_conversation_of_the_readme_works(server: Server, tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
    assert len(code.splitlines()) == 12
    (tmp_path / "data").symlink_to(server.data_dir)
    printed = await finish(await start(sys.executable, "-c", code, cwd=tmp_path))
    assert printed.startswith("t00001 t00002 ") and 200 < len(printed) < 1000


@pytest.mark.slow
async def test_the_crash_demonstration_ends_with_the_same_text() -> None:
    demo = await start(sys.executable, script("crash_demo.py"), "--tokens", "60")
    printed = await finish(demo, seconds=120)
    for words in ("kill -9", "took the answer over", "it goes on", "The same text"):
        assert words in printed
