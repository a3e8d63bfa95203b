"""Ask a running Parley one question and print the answer as it comes; Ctrl-C stops the answer.

python examples/python_client.py --data-dir data "Tell me a long story."

It needs the `websockets` package and nothing of Parley. A lost connection loses nothing: the client
comes back and goes on where it was. docs/protocol.md explains every frame and every rule.
"""

import argparse
import asyncio
import json
import random
import signal
import uuid
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.typing import Subprotocol

Frame = dict[str, Any]


class Asking:
    """One question and its answer so far. `take` is given each frame and says what to send."""

    def __init__(self, question: str) -> None:
        self.key = uuid.uuid4().hex  # names the question, so that sending it twice asks it once
        self.question = question
        self.session_id = self.response_id = self.text = ""
        self.last, self.fence, self.printed = 0, 1, 0
        self.is_stopping = self.is_resuming = False
        self.response: Frame | None = None  # of `response.done`

    def hello(self) -> list[Frame]:
        """For a new connection; a session of that key that exists already is only joined again."""
        self.is_resuming = False
        return [{"type": "session.create", "idempotency_key": self.key, "event_id": self.key}]

    def stop(self) -> list[Frame]:
        """With the key, this also finds an answer that has not begun yet."""
        self.is_stopping = True
        stop = {"type": "stop", "session_id": self.session_id, "idempotency_key": self.key}
        return [stop] if self.session_id else []

    def take(self, frame: Frame) -> list[Frame]:
        kind: str = frame["type"]
        number: int = frame.get("sequence_number", 0)
        if kind == "error":
            raise SystemExit(f"{frame['error']['code']}: {frame['error']['message']}")
        if kind == "session.created" and frame.get("event_id") == self.key:
            self.session_id = frame["session"]["id"]
            return self.resume(self.last) + (self.stop() if self.is_stopping else [])
        if frame.get("idempotency_key") == self.key and kind == "response.created":
            self.response_id, self.fence = frame["response"]["id"], frame["fence"]
        own = frame.get("response_id") or frame.get("response", {}).get("id")
        if own != self.response_id or not number:
            return []  # another tab's, or not an entry of the log
        if kind == "response.output_text.snapshot":
            self.text = frame["text"] if frame["part"] == 1 else self.text + frame["text"]
        elif kind == "response.done":
            text = frame.get("text", self.text).encode("utf-16-le")
            self.text = text[: 2 * frame["response"]["text_length"]].decode("utf-16-le")
            self.response = frame["response"]
        elif number <= self.last:
            return []
        elif frame.get("first_sequence_number", number) > self.last + 1:
            return self.resume(self.last)
        elif kind == "response.output_text.delta":
            if 2 * frame["text_offset"] != len(self.text.encode("utf-16-le")):
                return self.resume(0)
            self.text += frame["delta"]
        self.last, self.fence = number, frame["fence"]
        self.is_resuming = frame.get("part", 1) < frame.get("parts", 1)
        print(self.text[self.printed :], end="", flush=True)
        self.printed = max(self.printed, len(self.text))
        return []

    def resume(self, after: int) -> list[Frame]:
        """Ask for what is missing, once; for all of it if nothing has begun."""
        if not self.response_id:
            create = {"session_id": self.session_id, "idempotency_key": self.key}
            return [{"type": "response.create", **create, "input": self.question}]
        place = {"response_id": self.response_id, "fence": self.fence}
        again, self.is_resuming = not self.is_resuming, True
        frame = {"type": "response.resume", **place, "after_sequence_number": after}
        return [frame] if again else []


async def answer(asking: Asking, url: str, token: str) -> Frame:
    """The response object of `response.done`, over as many connections as that takes."""
    headers = {"Authorization": f"Bearer {token}"}
    for failures in range(100):
        try:
            async with connect(
                url, subprotocols=[Subprotocol("chat.v1")], additional_headers=headers
            ) as socket:

                async def send(frames: list[Frame], socket: Any = socket) -> None:
                    for frame in frames:
                        await socket.send(json.dumps(frame))

                asyncio.get_running_loop().add_signal_handler(
                    signal.SIGINT, lambda: asyncio.ensure_future(send(asking.stop()))
                )
                await send(asking.hello())
                while asking.response is None:
                    await send(asking.take(json.loads(await socket.recv())))
                return asking.response
        except ConnectionClosed as closed:
            code = closed.rcvd.code if closed.rcvd else 1006
            if code in (1000, 1002, 1007, 1009) or 4400 <= code < 4500:
                raise SystemExit(f"closed: {code} {closed.rcvd and closed.rcvd.reason}") from None
        except (OSError, InvalidHandshake):
            pass  # nobody is there yet
        await asyncio.sleep(random.uniform(0, min(20, 0.3 * 2**failures)))
    raise SystemExit("nobody answers")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", nargs="?", default="Tell me a long story.")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="the server's")
    options = parser.parse_args()
    url = json.loads((options.data_dir / "server.json").read_text())["url"]
    token = (options.data_dir / "token").read_text().strip()
    asking = Asking(options.question)
    response = await answer(asking, url.replace("http", "ws", 1) + "/v1/ws", token)
    reason, usage = response["status_details"]["reason"], response["usage"]
    print(f"\n[{response['status']}: {reason}, {usage['output_tokens']} tokens]")


if __name__ == "__main__":
    asyncio.run(main())
