"""The product as a test sees it: `parley serve` as processes, and a client that keeps a ledger.

`Client` follows the ordering rules of docs/protocol.md and checks them on every frame. A `Server`
has a `History`, in which its clients record; conftest.py checks it after every test.
"""

import asyncio
import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

import psutil
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from sessions.connection.embedded import EmbeddedRedis
from tests.end_to_end.frames.client_model import Answer as Answer
from tests.end_to_end.frames.client_model import Frame as Frame
from tests.end_to_end.oracle.history import EngineCounts, History
from tests.end_to_end.oracle.stored_state import Stored, read_store
from tests.end_to_end.site.client import ChatClient
from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT

REST_SECONDS = 3.0  # a server at rest ends within
# Short intervals, but for those that would punish a client or a core that the machine halts.
TESTING = {"PARLEY_TESTING": "1", "PARLEY_PING_SECONDS": "20", "PARLEY_WATCHDOG_SECONDS": "30"}


MOVES = "parley_engine_moved_total{"  # a request that goes on at another engine is no new one
open_servers: list["Server"] = []  # their histories are checked after each test


def refusal_of_start(folder: Path, *arguments: str) -> str:
    """The line in which `parley serve` says why it does not start; `folder` is for its files."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PARLEY_")}
    own = {"PARLEY_PORT": "0", "PARLEY_LOG_FORMAT": "text", "PARLEY_DATA_DIR": f"{folder}/data"}
    done = subprocess.run(
        [sys.executable, "-m", "server", "serve", *arguments],
        cwd=ROOT,
        env={**inherited, **own, "XDG_CACHE_HOME": f"{folder}/cache"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    (line,) = [line for line in said.splitlines() if "parley:" in line]
    assert "Traceback" not in said and "[error" not in said
    return line


class Server:
    """A running `parley serve`. Servers on one Redis share the history of the first."""

    module = "server"
    root = Path(os.environ.get("TESTS_ROOT", ROOT))  # where the program lies: here, or in a wheel

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
        if "PARLEY_REDIS_URL" not in environment:  # no test counts on 1 s there
            environment = {"PARLEY_REDIS_TIMEOUT_SECONDS": "3"} | environment
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
        self.begin_start()
        assert self.process is not None
        deadline = time.monotonic() + PATIENCE
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"parley serve did not start:\n{self.log()}")
            time.sleep(0.05)  # a start is observed from outside: there is no event to wait for
        if self not in open_servers:
            open_servers.append(self)
        if self._blocks_free_at_rest is None:
            self._blocks_free_at_rest = self.metric("parley_kv_blocks_free")
        return self

    def begin_start(self) -> None:
        """Return at once."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", self.module, "serve"],
            cwd=self.root,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            process_group=0,  # as where it is run: a session would be a group of the scheduler
        )

    def is_ready(self) -> bool:
        """Whether `/readyz` says so now."""
        try:
            self.url = json.loads((self.data_dir / "server.json").read_text())["url"]
            chosen = self._environment.get("PARLEY_TOKEN")
            self.token = chosen or (self.data_dir / "token").read_text().strip()
            return self.get("/readyz")[0] == 200
        except (OSError, ValueError):
            return False

    def log(self, num_characters: int | None = 4000) -> str:
        """The end of what the server has logged; None for all of it."""
        self._log.flush()
        text = Path(self._log.name).read_text(errors="replace")
        return text if num_characters is None else text[-num_characters:]

    def get(self, path: str, token: str | None = None) -> tuple[int, bytes]:
        """Status and body; `token` None sends our own."""
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        request = urllib.request.Request(self.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def get_json(self, path: str) -> Any:
        status, body = self.get(path)
        assert status == 200, (status, body)
        return json.loads(body)

    def metric(self, name: str) -> float:
        """A worker that has not joined the core yet knows nothing of it: it is asked again."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            _, body = self.get("/metrics")
            for line in body.decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.split()[-1])
            time.sleep(0.05)  # as at the start: there is no event to wait for
        raise AssertionError(f"no metric {name}")

    def num_closes(self, code: int) -> float:
        """How many sockets the server says it has closed with that code."""
        name = f'parley_closes_total{{code="{code}"}} '
        lines = self.get("/metrics")[1].decode().splitlines()
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    def children(self, word: str) -> list[psutil.Process]:
        """Our direct children whose command line holds `word`.

        `redis-server` names the store, whichever server it is.
        """
        assert self.process is not None
        found = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # a zombie counts as none
                if word.replace("redis-server", "-server") in " ".join(child.cmdline()):
                    found.append(child)
        return found

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
        title = " ".join(redis.cmdline())  # `valkey-server unixsocket:PATH`
        return "unix://" + title.split("unixsocket:")[1].strip()

    def _engine_counts(self) -> EngineCounts | None:
        try:
            if not self.is_alive or self.get("/readyz")[0] != 200:
                return None
            _, body = self.get("/metrics")
        except OSError:
            return None
        values = dict(line.rsplit(" ", 1) for line in body.decode().splitlines() if line)
        if "parley_kv_blocks_free" not in values:
            return None  # of another worker than /readyz, which has not joined the core yet
        free = float(values["parley_kv_blocks_free"])
        at_rest = self._blocks_free_at_rest or free
        moves = [float(n) for name, n in values.items() if name.startswith(MOVES)]
        if moves:  # of several engines, which come and go
            at_rest = float(values["parley_kv_blocks"])
        return EngineCounts(
            running=float(values["parley_requests_running"]),
            waiting=float(values["parley_requests_waiting"]),
            blocks_free=free,
            blocks_free_at_rest=at_rest,
            requests_total=float(values["parley_engine_requests_total"]) - sum(moves),
        )

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)

    def _stop_soon(self) -> None:
        """Stop, and do not wait for answers that a test has left behind."""
        assert self.process is not None
        self.process.terminate()
        try:
            self.process.wait(REST_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait(40)

    def close(self) -> None:
        if self in open_servers:
            open_servers.remove(self)
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._stop_soon()
            self.process.kill()
            self.process.wait()
        self._log.close()


def other_user(server: Server) -> Server:
    """The same server for the admin, who is another user with sessions of their own."""
    other = copy.copy(server)
    other.token = (server.data_dir / "admin-token").read_text().strip()
    return other


class Client(ChatClient):
    """One websocket. Use as an async context manager.

    `address` (host:port) is another way to the server, through a proxy; `token` another user's;
    `headers` are further ones of the upgrade.
    """

    socket: ClientConnection

    def __init__(
        self,
        server: Server,
        *,
        address: str | None = None,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(server.history)
        self._server = server
        self._address = address
        authorization = {"Authorization": f"Bearer {token or server.token}"}
        self._headers = {**authorization, **(headers or {})}
        self._options = options

    async def __aenter__(self) -> Self:
        base = self._server.url if self._address is None else f"http://{self._address}"
        self.socket = await connect(
            base.replace("http", "ws", 1) + "/v1/ws",
            subprotocols=[Subprotocol("chat.v1")],
            additional_headers=self._headers,
            max_size=None,
            **self._options,
        )
        self.open_record()
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        # Closing again what was lost while half a message was on its way makes websockets abort a
        # transport that asyncio has taken apart, and Python 3.11 raises AttributeError then.
        if self.close_code is None or self.broken is not None:
            await self.socket.close()
        await self._task
        if self.broken is not None:
            raise self.broken

    @property
    def was_closed(self) -> bool:
        """Whether the server closed the connection, by a close frame."""
        return bool(self.socket.protocol.close_rcvd_then_sent)

    def cut(self) -> None:
        """Lose the connection without a close frame."""
        self.socket.transport.abort()

    async def _read(self) -> None:
        try:
            async for message in self.socket:
                await self.take(json.loads(message))
        except ConnectionClosed:
            pass
        except AssertionError as broken:
            self.broken = broken
        await self.end(self.socket.close_code or 0)

    async def _transmit(self, text: str) -> None:
        await self.socket.send(text)


@contextlib.asynccontextmanager
async def clients(server: Server, count: int) -> AsyncIterator[list[Client]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Client(server)) for _ in range(count)]
