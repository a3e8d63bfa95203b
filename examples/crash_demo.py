"""Kill the worker of an answer in mid-sentence, and watch the answer go on with the same text.

make demo-crash            (or: python examples/crash_demo.py "Tell me about the sea.")

It starts a Parley of its own with two workers, asks one question twice with the same seed, and
kills -9 the process that answers the second time. The exit status is 0 if both texts are the same.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 120.0
PATIENCE_SECONDS = 60.0  # for an answer to end
console = Console()


class Screen:
    """What is on the terminal: the text, by who wrote it, and what happened so far."""

    def __init__(self, question: str) -> None:
        self._question = question
        self._text = Text()
        self._events = Table.grid(padding=(0, 2))
        self._started: float | None = None

    def __rich__(self) -> Group:
        title = f"[bold]“{self._question}”[/]"
        text = Panel(self._text, title=title, border_style="dim", padding=(1, 2))
        return Group(self._events, text)

    def write(self, delta: str, style: str) -> None:
        self._text.append(delta, style)

    def clear(self) -> None:
        self._text = Text()

    def tell(self, what: str) -> None:
        self._started = self._started or time.monotonic()
        seconds = time.monotonic() - self._started
        self._events.add_row(f"[dim]{seconds:6.2f} s[/]", what)


class Tab:
    """One browser tab: a websocket at one of the two workers."""

    def __init__(self, socket: ClientConnection, replica: str) -> None:
        self.socket = socket
        self.replica = replica

    @property
    def pid(self) -> int:
        """Of its worker: a replica is named host-pid-random."""
        return int(self.replica.split("-")[-2])

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def next(self, *kinds: str) -> dict[str, Any]:
        """The next frame of one of these types."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                frame: dict[str, Any] = json.loads(await self.socket.recv())
                if frame["type"] == "error":
                    raise SystemExit(f"{frame['error']['code']}: {frame['error']['message']}")
                if frame["type"] in kinds:
                    return frame

    async def new_session(self) -> str:
        key = uuid.uuid4().hex
        await self.send("session.create", idempotency_key=key, event_id=key)
        while (frame := await self.next("session.created")).get("event_id") != key:
            pass
        return str(frame["session"]["id"])

    async def ask(self, session_id: str, question: str, settings: dict[str, Any]) -> None:
        key = uuid.uuid4().hex
        create = {"session_id": session_id, "idempotency_key": key, "input": question}
        await self.send("response.create", **create, settings=settings)


@asynccontextmanager
async def two_tabs(url: str, token: str) -> AsyncIterator[tuple[Tab, Tab]]:
    """A tab at each worker; the kernel chooses who gets a connection, so it may take some."""
    tabs: dict[str, Tab] = {}
    try:
        while len(tabs) < 2:
            socket = await connect(
                url.replace("http", "ws", 1) + "/v1/ws",
                subprotocols=[Subprotocol("chat.v1")],
                additional_headers={"Authorization": f"Bearer {token}"},
            )
            replica = json.loads(await socket.recv())["replica"]
            if replica in tabs:
                await socket.close()
            else:
                tabs[replica] = Tab(socket, replica)
        first, second = tabs.values()
        yield first, second
    finally:
        for tab in tabs.values():
            await tab.socket.close()


async def undisturbed(tab: Tab, question: str, settings: dict[str, Any], screen: Screen) -> str:
    """The text of the answer when nothing happens."""
    await tab.ask(await tab.new_session(), question, settings)
    text = ""
    while (frame := await tab.next("response.output_text.delta", "response.done"))[
        "type"
    ] != "response.done":
        text += frame["delta"]
        screen.write(frame["delta"], "dim")
    return text


async def disturbed(
    owner: Tab, viewer: Tab, question: str, settings: dict[str, Any], length: int, screen: Screen
) -> str:
    """The text that a viewer at the other worker sees when the owner is killed half-way."""
    session_id = await owner.new_session()
    await viewer.send("session.subscribe", session_id=session_id)
    await viewer.next("session.subscribed")
    await owner.ask(session_id, question, settings)
    text, style = "", "cyan"
    killed = 0.0
    while True:
        frame = await viewer.next("response.output_text.delta", "response.queued", "response.done")
        match frame["type"]:
            case "response.queued" if frame["reason"] == "takeover":
                ms = (time.monotonic() - killed) * 1000
                screen.tell(
                    f"[yellow]worker {viewer.pid} took the answer over[/] after {ms:.0f} ms"
                )
            case "response.output_text.delta":
                if killed and frame["fence"] == 2 and style == "cyan":
                    style = "green"
                    ms = (time.monotonic() - killed) * 1000
                    screen.tell(f"[green]it goes on[/], {ms:.0f} ms after the kill")
                text += frame["delta"]
                screen.write(frame["delta"], style)
            case "response.done" if frame["fence"] == 1:
                raise SystemExit("the answer ended before its worker did: ask for a longer one")
            case "response.done":
                return text
        if not killed and len(text) > length / 2:
            os.kill(owner.pid, signal.SIGKILL)
            killed = time.monotonic()
            screen.tell(f"[bold red]kill -9 {owner.pid}[/], the worker that writes this answer")


def start_parley(data_dir: Path) -> subprocess.Popen[bytes]:
    """A Parley of our own, with the demo model; what it prints goes to a file."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PARLEY_")}
    command = [sys.executable, "-m", "server", "serve", "--port", "0", "--workers", "2"]
    with (data_dir / "log").open("wb") as log:
        return subprocess.Popen(
            [*command, "--data-dir", str(data_dir)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


async def address_of(parley: subprocess.Popen[bytes], data_dir: Path) -> tuple[str, str]:
    """Url and token, as soon as it serves."""
    async with asyncio.timeout(START_SECONDS):
        while not (data_dir / "server.json").exists():
            if parley.poll() is not None:
                raise SystemExit((data_dir / "log").read_text())
            await asyncio.sleep(0.1)
    url: str = json.loads((data_dir / "server.json").read_text())["url"]
    return url, (data_dir / "token").read_text().strip()


async def show(question: str, settings: dict[str, Any], data_dir: Path) -> bool:
    """Run the demonstration; whether both texts are the same."""
    parley = start_parley(data_dir)
    screen = Screen(question)
    try:
        with console.status("starting Parley with two workers …"):
            url, token = await address_of(parley, data_dir)
        async with two_tabs(url, token) as (owner, viewer):
            with Live(screen, console=console, refresh_per_second=20):
                screen.tell(f"the workers are {owner.pid} and {viewer.pid}; first, undisturbed")
                expected = await undisturbed(viewer, question, settings, screen)
                screen.clear()
                screen.tell(f"the same question again, with the same seed, at {owner.pid}")
                text = await disturbed(owner, viewer, question, settings, len(expected), screen)
                screen.tell(f"the end, {len(text)} characters")
    finally:
        parley.terminate()
        parley.wait()
    return text == expected


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", nargs="?", default="Tell me a long story about the sea.")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=300, help="of the answer, at most")
    options = parser.parse_args()
    settings = {"seed": options.seed, "temperature": 0.8, "max_output_tokens": options.tokens}
    with tempfile.TemporaryDirectory() as folder:
        same = asyncio.run(show(options.question, settings, Path(folder)))
    if same:
        console.print("\n[bold green]The same text, to the last character.[/]")
        return 0
    console.print("\n[bold red]The texts differ.[/]")
    return 1


if __name__ == "__main__":
    sys.exit(main())
