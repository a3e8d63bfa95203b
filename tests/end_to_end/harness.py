"""The product as a test sees it: `parley serve` as processes, and a client that keeps a ledger.

`Client` follows the ordering rules of docs/protocol.md and checks them on every frame. A `Server`
has a `History`, in which its clients record; conftest.py checks it behind every test.
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
from pathlib import Path
from typing import Any, Self

import psutil
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from sessions.embedded import EmbeddedRedis
from tests.end_to_end.client_model import Answer, Frame
from tests.end_to_end.history import EngineCounts, History
from tests.end_to_end.stored_state import Stored, read_store

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS = 60.0
FRAME_SECONDS = 60.0  # a core that starts anew on a busy machine takes a while


open_servers: list["Server"] = []  # their histories are checked behind each test


class Server:
    """A running `parley serve`. Servers on one Redis share the history of the first."""

    def __init__(
        self,
        data_dir: Path,
        model: Path | str,
        history: History | None = None,
        **environment: str,
    ) -> None:
        self.data_dir = data_dir
        self.history = history or History(self._read_store)
        self.history.engines.append(self._engine_counts)
        self._blocks_free_at_rest: float | None = None
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
        if self not in open_servers:
            open_servers.append(self)
        if self._blocks_free_at_rest is None:
            self._blocks_free_at_rest = self.metric("parley_kv_blocks_free")
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
        self.history.fault(f"kill -9 {word}")
        child.kill()

    # ---- for the history checker ----------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def _read_store(self) -> Stored | None:
        """What Redis holds; when everything has ended, from its files."""
        prefix = self._environment.get("PARLEY_REDIS_PREFIX", "parley:")
        if (url := self._environment.get("PARLEY_REDIS_URL")) is not None:
            stored = read_store(url, prefix)
        elif self.is_alive:
            stored = read_store(self.redis_url, prefix)
        else:
            redis = EmbeddedRedis(self.data_dir / "redis")
            redis.start()
            try:
                stored = read_store(redis.url, prefix)
            finally:
                redis.stop()
        stored.is_served = self.is_alive
        return stored

    @property
    def redis_url(self) -> str:
        """Where the embedded Redis listens."""
        (redis,) = self.children("redis-server")
        title = " ".join(redis.cmdline())  # `redis-server unixsocket:PATH`
        return "unix://" + title.split("unixsocket:")[1].strip()

    def _engine_counts(self) -> EngineCounts | None:
        try:
            if not self.is_alive or self.get("/readyz")[0] != 200:
                return None
            _, body = self.get("/metrics")
        except OSError:
            return None
        values = dict(line.rsplit(" ", 1) for line in body.decode().splitlines() if line)
        free = float(values["parley_kv_blocks_free"])
        return EngineCounts(
            running=float(values["parley_requests_running"]),
            waiting=float(values["parley_requests_waiting"]),
            blocks_free=free,
            blocks_free_at_rest=self._blocks_free_at_rest or free,
            requests_total=float(values["parley_engine_requests_total"]),
        )

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)

    def close(self) -> None:
        if self in open_servers:
            open_servers.remove(self)
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.stop()
            self.process.kill()
            self.process.wait()
        self._log.close()


class Client:
    """One websocket with its ledger. Use as an async context manager.

    `address` (host:port) is another way to the server, through a proxy; `token` another user's.
    """

    def __init__(
        self,
        server: Server,
        *,
        address: str | None = None,
        token: str | None = None,
        **options: Any,
    ) -> None:
        self._server = server
        self._address = address
        self._token = token or server.token
        self._options = options
        self.frames: list[Frame] = []
        self.answers: dict[str, Answer] = {}
        self.close_code: int | None = None
        self.broken: AssertionError | None = None  # a rule of the protocol
        self._next = 0
        self._arrived = asyncio.Condition()
        self.socket: ClientConnection

    async def __aenter__(self) -> Self:
        base = self._server.url if self._address is None else f"http://{self._address}"
        url = base.replace("http", "ws", 1) + "/v1/ws"
        headers = {"Authorization": f"Bearer {self._token}"}
        self.socket = await connect(
            url,
            subprotocols=[Subprotocol("chat.v1")],
            additional_headers=headers,
            max_size=None,
            **self._options,
        )
        self.record = self._server.history.connect()
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        # Closing again what was lost while half a message was on its way makes websockets abort a
        # transport that asyncio has taken apart, and Python 3.11 raises AttributeError then.
        if self.close_code is None:
            await self.socket.close()
        await self._task
        if self.broken is not None:
            raise self.broken

    def cut(self) -> None:
        """Lose the connection without a close frame."""
        self.socket.transport.abort()

    async def _read(self) -> None:
        try:
            async for message in self.socket:
                frame = json.loads(message)
                self.record.received(frame)
                async with self._arrived:
                    self.frames.append(frame)
                    self._apply(frame)
                    self._arrived.notify_all()
        except ConnectionClosed:
            pass
        except AssertionError as broken:
            self.broken = broken
        async with self._arrived:
            self.close_code = self.socket.close_code or 0
            self.record.closed(self.close_code)
            self._arrived.notify_all()

    def _apply(self, frame: Frame) -> None:
        """The ordering rules, asserted."""
        message = frame["message"] if frame["type"] == "message.updated" else {}
        if message.get("status") == "in_progress" and "content" in message:
            # An answer goes on behind the text that its message has.
            text = "".join(part["text"] for part in message["content"])
            self.answers.setdefault(message["response_id"], Answer(text=text))
        response_id = frame.get("response_id") or frame.get("response", {}).get("id")
        if "sequence_number" not in frame or frame.get("replayed"):
            return
        self.answers.setdefault(response_id, Answer()).apply(frame)

    async def send(self, kind: str, **fields: Any) -> None:
        await self.send_frame({"type": kind, **fields})

    async def send_frame(self, frame: Frame) -> None:
        self.record.sent(frame)
        await self.socket.send(json.dumps(frame))

    async def wait(self, condition: Callable[[], Any], what: str = "a frame") -> Any:
        """Wait until the condition is true of what has arrived, and return its value."""
        try:
            async with asyncio.timeout(FRAME_SECONDS), self._arrived:
                while not (value := condition()):
                    if self.broken is not None:
                        raise self.broken
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
