"""`parley chat`: one session in the terminal, over the same websocket as the browser.

Ctrl-C stops the answer that is being written, and at the prompt drops the line; Ctrl-D leaves.
"""

import asyncio
import json
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from server.protocol.entries import is_final
from server.terminal.text import harmless
from sessions.background import start

console = Console(highlight=False, soft_wrap=True)

PROMPT = "[bold]›[/] "


def run_chat(url: str, token: str, session_id: str | None) -> int:
    """Talk until the user leaves. Returns the exit code."""
    try:
        return asyncio.run(TerminalChat(url, token, session_id).run())
    except (OSError, ConnectionClosed) as error:
        console.print(f"[red]parley: the connection was lost: {error}[/]")
        return 1


class TerminalChat:
    """A client that follows one answer at a time."""

    def __init__(self, url: str, token: str, session_id: str | None) -> None:
        self._url = url.replace("http", "ws", 1) + "/v1/ws"
        self._headers = {"Authorization": f"Bearer {token}"}
        self._session_id = session_id

    async def run(self) -> int:
        async with connect(
            self._url, subprotocols=[Subprotocol("chat.v1")], additional_headers=self._headers
        ) as socket:
            await self._open_session(socket)
            while (text := await _prompt()) is not None:
                if text.strip():
                    await self._ask(socket, text)
        return 0

    async def _open_session(self, socket: ClientConnection) -> None:
        if self._session_id is None:
            key = secrets.token_urlsafe(16)
            await _send(socket, "session.create", event_id=key[:16], idempotency_key=key)
            frame = await self._receive(socket, "session.created", key[:16])
            self._session_id = frame["session"]["id"]
        else:
            await _send(socket, "session.subscribe", session_id=self._session_id)
            await self._receive(socket, "session.subscribed")
        console.print(f"[dim]session {self._session_id}[/]")

    async def _receive(
        self, socket: ClientConnection, kind: str, event_id: str | None = None
    ) -> dict[str, Any]:
        """The next frame of that type, and of that event id: other tabs create sessions, too."""
        while True:
            frame: dict[str, Any] = json.loads(await socket.recv())
            if frame["type"] == kind and frame.get("event_id") == event_id:
                return frame
            if frame["type"] == "error":
                raise SystemExit(f"parley: {frame['error']['message']}")

    async def _ask(self, socket: ClientConnection, text: str) -> None:
        key = secrets.token_urlsafe(16)
        await _send(
            socket,
            "response.create",
            event_id=key[:16],
            session_id=self._session_id,
            idempotency_key=key,
            input=text,
        )
        stop = {"session_id": self._session_id, "idempotency_key": key}
        with _on_ctrl_c(lambda: start(_send(socket, "stop", **stop))):
            await self._follow(socket, key[:16])

    async def _follow(self, socket: ClientConnection, event_id: str) -> None:
        """Print our answer as it comes, then how it ended; other tabs' answers are passed over."""
        response_id = None
        async for message in socket:
            frame = json.loads(message)
            asked = event_id in (frame.get("event_id"), frame.get("error", {}).get("event_id"))
            if frame["type"] == "response.created" and asked:
                response_id = frame["response"]["id"]
            whose = frame.get("response_id") or frame.get("response", {}).get("id")
            if whose not in (None, response_id) or (frame["type"] == "error" and not asked):
                continue
            match frame["type"]:
                case "response.output_text.delta":
                    console.print(harmless(frame["delta"]), end="", markup=False)
                case "response.queued":
                    console.print(f"[dim]waiting, {frame['position']} ahead …[/]")
                case "connection.degraded" | "connection.restored":
                    console.print(f"\n[dim]{frame['type']}[/]")
                case "error":
                    console.print(f"[red]{frame['error']['message']}[/]")
                    return
                case "response.done" if not is_final(frame):
                    console.print("\n[dim]waiting until it is stored …[/]")
                case "response.done":
                    console.print()
                    _show_end(frame["response"])
                    return


def _show_end(response: dict[str, Any]) -> None:
    rate = response["timings"].get("tokens_per_s")
    parts = [response["status_details"]["reason"], f"{response['usage']['output_tokens']} tokens"]
    if rate is not None:
        parts.append(f"{rate} tokens/s")
    console.print(f"[dim]{' · '.join(parts)}[/]\n")


async def _send(socket: ClientConnection, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind, **fields}))


async def _prompt() -> str | None:
    """One line from the user, None when they leave.

    Nothing can interrupt the thread that reads. On Ctrl-C the terminal itself drops what was typed.
    """
    with _on_ctrl_c(lambda: console.print(f"\n[dim]Ctrl-D leaves[/]\n{PROMPT}", end="")):
        try:
            return await asyncio.to_thread(console.input, PROMPT)
        except EOFError:
            console.print()
            return None


@contextmanager
def _on_ctrl_c(act: Callable[[], object]) -> Iterator[None]:
    """What Ctrl-C does for the time of a `with` block."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, act)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
