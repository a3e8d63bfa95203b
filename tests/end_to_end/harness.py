"""The product as a test sees it: `parley serve` as processes, and a client that keeps a ledger.

`Client` follows the ordering rules of docs/protocol.md and checks them on every frame, so each test
that uses it also tests that nothing is lost, doubled or sent behind an end.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS = 60.0
FRAME_SECONDS = 60.0  # a core that starts anew on a busy machine takes a while

Frame = dict[str, Any]


def utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


class Server:
    """A running `parley serve`."""

    def __init__(self, data_dir: Path, model: Path | str, **environment: str) -> None:
        self.data_dir = data_dir
        self._log = (data_dir.parent / f"{data_dir.name}.log").open("ab")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PARLEY_")}
        self._environment = {
            **inherited,
            "PARLEY_MODEL": str(model),
            "PARLEY_PORT": "0",
            "PARLEY_DATA_DIR": str(data_dir),
            "PARLEY_MAX_MESSAGES_PER_S": "0",
            **environment,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.token = ""

    def start(self) -> Self:
        """Return when `/readyz` says so."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "server", "serve"],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"parley serve did not start:\n{self.log()}")
            time.sleep(0.05)  # a start is observed from outside: there is no event to wait for
        return self

    def _is_ready(self) -> bool:
        try:
            self.url = json.loads((self.data_dir / "server.json").read_text())["url"]
            self.token = (self.data_dir / "token").read_text().strip()
            return self.get("/readyz")[0] == 200
        except (OSError, ValueError):
            return False

    def log(self) -> str:
        self._log.flush()
        return Path(self._log.name).read_text(errors="replace")[-4000:]

    def get(self, path: str, token: str | None = None) -> tuple[int, bytes]:
        """Status and body; `token` None sends our own."""
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        request = urllib.request.Request(self.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def get_json(self, path: str) -> Any:
        status, body = self.get(path)
        assert status == 200, (status, body)
        return json.loads(body)

    def metric(self, name: str) -> float:
        _, body = self.get("/metrics")
        line = next(x for x in body.decode().splitlines() if x.startswith(name + " "))
        return float(line.split()[-1])

    def children(self, word: str) -> list[psutil.Process]:
        """Our direct children whose command line holds `word`."""
        assert self.process is not None
        return [
            child
            for child in psutil.Process(self.process.pid).children()
            if word in " ".join(child.cmdline())
        ]

    def kill_child(self, word: str) -> None:
        """`kill -9` the one child that `word` names: server.worker, engine.core or redis-server."""
        (child,) = self.children(word)
        child.kill()

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.stop()
            self.process.kill()
            self.process.wait()
        self._log.close()


@dataclass
class Answer:
    """What one client knows of one response."""

    text: str = ""
    last: int = 0
    fence: int = 0
    num_deltas: int = 0
    done: Frame | None = None
    frames: list[Frame] = field(default_factory=list)

    @property
    def final(self) -> str:
        """The text after `response.done`, by the rules of the protocol."""
        assert self.done is not None
        text: str = self.done.get("text", self.text)
        cut = self.done["response"]["text_length"] * 2
        return text.encode("utf-16-le")[:cut].decode("utf-16-le")


class Client:
    """One websocket with its ledger. Use as an async context manager."""

    def __init__(self, server: Server, **options: Any) -> None:
        self._server = server
        self._options = options
        self.frames: list[Frame] = []
        self.answers: dict[str, Answer] = {}
        self.session_offsets: dict[str, int] = {}
        self.close_code: int | None = None
        self._next = 0
        self._arrived = asyncio.Condition()
        self.socket: ClientConnection

    async def __aenter__(self) -> Self:
        url = self._server.url.replace("http", "ws", 1) + "/v1/ws"
        headers = {"Authorization": f"Bearer {self._server.token}"}
        self.socket = await connect(
            url,
            subprotocols=[Subprotocol("chat.v1")],
            additional_headers=headers,
            max_size=None,
            **self._options,
        )
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        # Closing again what was lost while half a message was on its way makes websockets abort a
        # transport that asyncio has taken apart, and Python 3.11 raises AttributeError then.
        if self.close_code is None:
            await self.socket.close()
        await self._task

    def cut(self) -> None:
        """Lose the connection without a close frame."""
        self.socket.transport.abort()

    async def _read(self) -> None:
        try:
            async for message in self.socket:
                frame = json.loads(message)
                async with self._arrived:
                    self.frames.append(frame)
                    self._apply(frame)
                    self._arrived.notify_all()
        except ConnectionClosed:
            pass
        async with self._arrived:
            self.close_code = self.socket.close_code
            self._arrived.notify_all()

    def _apply(self, frame: Frame) -> None:
        """The ordering rules, asserted."""
        kind = frame["type"]
        if "offset" in frame and kind.startswith(("message.", "session.")):
            if kind not in ("session.subscribed", "session.created"):
                self.session_offsets[frame["session_id"]] = frame["offset"]
        if kind == "message.updated" and frame["message"]["status"] == "in_progress":
            # An answer goes on behind the text that its message has.
            text = "".join(part["text"] for part in frame["message"]["content"])
            self.answers.setdefault(frame["message"]["response_id"], Answer(text=text))
        response_id = frame.get("response_id") or frame.get("response", {}).get("id")
        if "sequence_number" not in frame or frame.get("replayed"):
            return
        answer = self.answers.setdefault(response_id, Answer())
        answer.frames.append(frame)
        assert answer.done is None or kind == "response.done", f"{kind} behind response.done"
        last = frame["sequence_number"]
        first = frame.get("first_sequence_number", last)
        if kind == "response.output_text.snapshot":
            answer.text = frame["text"] if frame["part"] == 1 else answer.text + frame["text"]
        else:
            assert first == answer.last + 1 or kind == "response.done", (answer.last, frame)
            if kind == "response.output_text.delta":
                assert frame["text_offset"] == utf16_length(answer.text), frame
                answer.text += frame["delta"]
                answer.num_deltas += 1
            elif kind == "response.done":
                assert answer.done is None, "two response.done"
                answer.done = frame
        answer.last, answer.fence = last, frame["fence"]

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def wait(self, condition: Callable[[], Any], what: str = "a frame") -> Any:
        """Wait until the condition is true of what has arrived, and return its value."""
        try:
            async with asyncio.timeout(FRAME_SECONDS), self._arrived:
                while not (value := condition()):
                    if self.close_code is not None:
                        raise AssertionError(f"closed with {self.close_code} before {what}")
                    await self._arrived.wait()
                return value
        except TimeoutError:
            kinds = [frame["type"] for frame in self.frames[-8:]]
            raise AssertionError(f"no {what}; last frames: {kinds}") from None

    async def next(self, *kinds: str) -> Frame:
        """The next frame of one of these types; those before it are passed over."""

        def find() -> Frame | None:
            while self._next < len(self.frames):
                frame = self.frames[self._next]
                self._next += 1
                if frame["type"] in kinds:
                    return frame
            return None

        frame: Frame = await self.wait(find, " or ".join(kinds))
        return frame

    async def reply(self, kind: str, **fields: Any) -> Frame:
        """Send a frame and return its direct reply, or the error that answers it."""
        event_id = os.urandom(8).hex()
        await self.send(kind, event_id=event_id, **fields)

        def find() -> Frame | None:
            for frame in self.frames:
                if event_id in (frame.get("event_id"), frame.get("error", {}).get("event_id")):
                    return frame
            return None

        frame: Frame = await self.wait(find, f"reply to {kind}")
        return frame

    async def new_session(self) -> str:
        created = await self.reply("session.create", idempotency_key=os.urandom(8).hex())
        return str(created["session"]["id"])

    async def ask(self, session_id: str, text: str, **fields: Any) -> str:
        """Send `response.create` and return the response's id."""
        fields.setdefault("idempotency_key", os.urandom(8).hex())
        frame = await self.reply("response.create", session_id=session_id, input=text, **fields)
        assert frame["type"] == "response.created", frame
        return str(frame["response"]["id"])

    async def deltas(self, response_id: str, count: int) -> Answer:
        """Wait until so many deltas of the answer have come."""
        return await self.wait(  # type: ignore[no-any-return]
            lambda: (a := self.answers.get(response_id)) and a.num_deltas >= count and a,
            f"{count} deltas",
        )

    async def done(self, response_id: str) -> Answer:
        """Wait for the end of the answer."""
        return await self.wait(  # type: ignore[no-any-return]
            lambda: (a := self.answers.get(response_id)) and a.done and a, "response.done"
        )

    async def closed(self) -> int:
        await self.wait(lambda: self.close_code is not None, "the close")
        assert self.close_code is not None
        return self.close_code


@contextlib.asynccontextmanager
async def clients(server: Server, count: int) -> AsyncIterator[list[Client]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Client(server)) for _ in range(count)]
