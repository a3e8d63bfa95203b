"""Ask a running Parley one question and print the answer as it comes; Ctrl-C stops the answer.

python examples/python_client.py --data-dir data "Tell me a long story."

It needs the `websockets` package and nothing of Parley. A lost connection loses nothing: the client
reconnects and continues after the last entry that it has. docs/protocol.md has all the rules.
"""

import argparse
import asyncio
import json
import random
import signal
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

KEY = uuid.uuid4().hex  # names our session and our question: sent again, each is made once
LOSSES = (1001, 1006, 1012)  # nobody refused: the network, or the worker, is gone


class Retries:
    """How long to wait before a try, in seconds.

    Quick tries first, because a network that is back says nothing; then a growing back-off, as for
    every refusal of the server.
    """

    def __init__(self) -> None:
        self.quick, self.failures = 20, 0

    def wait(self, is_loss: bool, tried: float | None = None) -> float:
        """`tried`: how long the last try took, if it failed; None after a connection."""
        if not is_loss or not self.quick:
            self.failures += 1
            return random.uniform(0, min(20, 0.3 * 2 ** (self.failures - 1)))
        self.quick -= 1
        at_once = random.uniform(0, 0.25)
        return at_once if tried is None else max(0.0, 0.25 + at_once - tried)


async def connections(url: str, headers: dict[str, str]) -> AsyncIterator[ClientConnection]:
    """One connection after the other: ask for the next one when one is lost."""
    retries, opening, lost = Retries(), 10.0, time.monotonic()
    while True:
        began = time.monotonic()
        try:
            socket = await connect(
                url,
                subprotocols=[Subprotocol("chat.v1")],
                additional_headers=headers,
                open_timeout=min(10.0, max(0.5, 3 * opening, (began - lost) / 4)),
                close_timeout=1,
            )
        except (OSError, InvalidHandshake) as error:
            if isinstance(error, InvalidStatus) and error.response.status_code < 500:
                raise SystemExit(f"refused: {error}") from None
            await asyncio.sleep(retries.wait(True, time.monotonic() - began))
            continue
        opened = time.monotonic()
        opening = opened - began
        try:
            yield socket
        finally:
            await socket.close()
        lost = time.monotonic()
        if lost - opened > 30:
            retries = Retries()
        code, reason = socket.close_code or 1006, socket.close_reason or ""
        asked = int(reason.partition("retry_after_ms=")[2] or 0) / 1000 * random.uniform(1, 1.25)
        await asyncio.sleep(max(asked, retries.wait(code in LOSSES)))


async def follow(socket: ClientConnection, question: str, known: dict[str, Any]) -> dict[str, Any]:
    """Print the text that `known` does not have; return the response object at the end."""
    create = {"type": "session.create", "idempotency_key": KEY, "event_id": KEY}
    resume, snapshot = known.get("resume"), ""
    await socket.send(json.dumps(resume or create))
    while True:
        frame = json.loads(await socket.recv())
        kind, number = frame["type"], frame.get("sequence_number")
        response_id = frame.get("response_id") or frame.get("response", {}).get("id")
        if kind == "error":  # one that says when to try again is answered by coming back
            if (wait_ms := frame["error"].get("retry_after_ms")) is None:
                raise SystemExit(f"{frame['error']['code']}: {frame['error']['message']}")
            await asyncio.sleep(wait_ms / 1000)
            await socket.close(1001)
        if kind == "session.created" and frame.get("event_id") == KEY:
            known["name"] = {"session_id": frame["session"]["id"], "idempotency_key": KEY}
            ask = {"type": "response.create", **known["name"], "input": question}
            await socket.send(json.dumps(ask))
        if kind == "response.created" and frame["idempotency_key"] == KEY:
            resume = known["resume"] = {"type": "response.resume", "response_id": response_id}
        if resume is None or response_id != resume["response_id"] or number is None:
            continue  # another tab's answer, or no entry of this one's log
        if kind == "response.done" and is_final(frame):
            return dict(frame["response"])  # its `text_length` may be a little less than is seen
        if kind == "response.output_text.delta":
            print(frame["delta"], end="", flush=True)
            known["text"] += frame["delta"]
        if kind == "response.output_text.snapshot":  # instead of more entries than are worth it
            snapshot += frame["text"]
            if frame["part"] < frame["parts"]:
                continue
            print(snapshot[len(known["text"]) :], end="", flush=True)
            known["text"], snapshot = snapshot, ""
        resume |= {"fence": frame["fence"], "after_sequence_number": number}


def is_final(done: dict[str, Any]) -> bool:
    """Whether Redis has this end. Otherwise another follows, unless the session is lost with it."""
    return bool(done["durable"]) or done["response"]["status_details"]["reason"] == "store_lost"


async def stop_when(asked: asyncio.Event, socket: ClientConnection, known: dict[str, Any]) -> None:
    """Send a stop; by its key it finds even an answer that has not begun."""
    await asked.wait()
    await socket.send(json.dumps({"type": "stop", **known.get("name", {})}))


async def main(question: str, data_dir: Path) -> None:
    try:
        url = json.loads((data_dir / "server.json").read_text())["url"].replace("http", "ws", 1)
        headers = {"Authorization": f"Bearer {(data_dir / 'token').read_text().strip()}"}
    except FileNotFoundError as error:
        raise SystemExit(f"no server is running: there is no {error.filename}") from None
    known: dict[str, Any] = {"text": ""}  # it outlives a connection
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, asked.set)
    async for socket in connections(f"{url}/v1/ws", headers):
        stopping = asyncio.create_task(stop_when(asked, socket, known))
        try:
            response = await follow(socket, question, known)
            reason, tokens = (
                response["status_details"]["reason"],
                response["usage"]["output_tokens"],
            )
            print(f"\n[{response['status']}: {reason}, {tokens} tokens]")
            return
        except ConnectionClosed:
            code, reason = socket.close_code or 1006, socket.close_reason or ""
            if code in (1000, 1002, 1007, 1009) or (4400 <= code < 4500 and code != 4429):
                raise SystemExit(f"closed: {code} {reason}") from None
        finally:
            stopping.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", nargs="?", default="Tell me a long story.")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="the server's")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.question, arguments.data_dir))
