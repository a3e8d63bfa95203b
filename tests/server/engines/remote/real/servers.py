"""vLLM and llama.cpp's server as processes, and an address behind which one takes another's place.

Both serve the built-in model. They are installed and built as `make bench-peers` does, once, in its
cache folder; what cannot be made is skipped, with the reason.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import orjson
import psutil
import pytest

from bench.peers.engines.llama_cpp import LlamaCpp as LlamaCppPeer
from bench.peers.engines.llama_cpp import gguf_file
from bench.peers.engines.peer import Site
from bench.peers.engines.vllm import VLLM as VLLMPeer
from bench.peers.machine.environments import Environments, Unavailable, cache_folder, reason
from bench.peers.machine.processes import free_port
from bench.peers.models import Checkpoint
from engine import demo_model

START_SECONDS = 600.0  # vLLM imports for a minute, and longer where others compute
MAX_ANSWERS = 16  # at a time
LOOK_SECONDS = 0.1


class RealServer(ABC):
    """One process, or several below one; it may be started again after its death."""

    kind: ClassVar[str]
    name: ClassVar[str]  # of the kind, and of how it is set
    min_equal: ClassVar[float]  # the share of its answers that a death changes nothing of

    def __init__(self, folder: Path, number: int) -> None:
        self.port = free_port()
        self._log = folder / f"{self.name}-{number}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._was_killed = False
        self._site = Site(
            Environments(cache_folder(), os.cpu_count() or 1),
            Checkpoint.open("demo", demo_model()),
            threads=1,
        )
        try:
            self._program, self._options = self._prepare()
        except Unavailable as why:
            pytest.skip(str(why))

    @abstractmethod
    def _prepare(self) -> tuple[str, list[str]]:
        """Make what is missing. Raises `Unavailable`."""

    @abstractmethod
    def _environment(self) -> dict[str, str]: ...

    def start(self) -> None:
        """Begin to start it."""
        self._was_killed = False
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, *self._options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "HF_HUB_OFFLINE": "1", **self._environment()},
                process_group=0,  # a session would be a group of the scheduler, and starve us
            )

    @property
    def is_running(self) -> bool:
        """Whether all of it is: what has lost one of its processes ends, sooner or later."""
        return not self._was_killed and self._process is not None and self._process.poll() is None

    async def serve(self) -> None:
        """Return when it takes requests."""
        async with asyncio.timeout(START_SECONDS), httpx2.AsyncClient() as http:
            while True:
                if not self.is_running:
                    pytest.fail(f"{self.kind} ended: {reason(self._log.read_text())}")
                with contextlib.suppress(httpx2.HTTPError):
                    if (await http.get(self._url("/health"), timeout=5)).status_code == 200:
                        return
                await asyncio.sleep(LOOK_SECONDS)  # nothing but its answer tells

    def kill(self, chosen: Callable[[psutil.Process], bool] = lambda _: True) -> None:
        """`kill -9` all of its processes, or those chosen."""
        self._was_killed = True
        for process in filter(chosen, self._processes()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """Whatever it does; none of its processes is left."""
        processes = self._processes()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=30)
        if self._process is not None:
            self._process.wait()
        self._process = None

    def _processes(self) -> list[psutil.Process]:
        """Also those whose parent has died: they are of its process group."""
        if self._process is None:
            return []
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getpgid(process.pid) == self._process.pid:
                    found.append(process)
        return found

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


class LlamaServer(RealServer):
    kind = name = "llamacpp"
    min_equal = 0.9
    layout: ClassVar[tuple[str, ...]] = ("--kv-unified",)

    def _prepare(self) -> tuple[str, list[str]]:
        LlamaCppPeer(self._site, "bf16").prepare()
        options = [
            *("--model", str(gguf_file(self._site, "bf16")), "--threads", "1"),
            *("--threads-batch", "1", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--parallel", str(MAX_ANSWERS), "--ctx-size", str(MAX_ANSWERS * 1024)),
            *(*self.layout, "--slots"),
        ]
        return str(self._site.environments.llama_program("llama-server")), options

    def _environment(self) -> dict[str, str]:
        return {}


class LlamaServerOfOne(LlamaServer):
    """Each token is computed alone, so it is the same whether it is read or written.

    Not quite always: an answer whose tokens lie in the holes of the cache, where others were, is
    summed in their order.
    """

    name = "llamacpp-of-one"
    min_equal = 0.99
    layout = (*LlamaServer.layout, "--ubatch-size", "1")


class VLLMServer(RealServer):
    kind = name = "vllm"
    min_equal = 0.99

    def _prepare(self) -> tuple[str, list[str]]:
        VLLMPeer(self._site, "bf16").prepare()
        options = [
            *("serve", str(demo_model()), "--served-model-name", "m", "--dtype", "bfloat16"),
            *("--host", "127.0.0.1", "--port", str(self.port), "--enable-scale-out"),
            *("--max-num-seqs", str(MAX_ANSWERS), "--enable-prompt-tokens-details"),
            *("--enforce-eager", "--disable-uvicorn-access-log"),  # which starts sooner
        ]
        return str(self._site.environments.program("vllm", "vllm")), options

    def _environment(self) -> dict[str, str]:
        return {
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        }


SERVERS: dict[str, type[RealServer]] = {
    each.name: each for each in (LlamaServer, LlamaServerOfOne, VLLMServer)
}


class Relay:
    """An address that stays, as that of a service does; it keeps the bodies that were asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.port = 0
        self._target: int | None = None  # the port of whoever is behind it; None: nobody
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "Relay":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    def point_at(self, port: int | None) -> None:
        """From the next connection on."""
        self._target = port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(_length(head))
            if self._target is None:
                return
            if body:
                self.asked.append(orjson.loads(body))
            theirs, ours = await asyncio.open_connection("127.0.0.1", self._target)
            ours.write(head + body)
            pumps: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(_pump(theirs, writer)),
                asyncio.ensure_future(reader.read(1)),  # until our own side has closed
            ]
            _, open_ones = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in open_ones:
                pump.cancel()
            ours.transport.abort()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the connection ends as theirs has
        finally:
            with contextlib.suppress(OSError):
                await writer.drain()
            writer.close()


def _length(head: bytes) -> int:
    lines = head.lower().split(b"\r\n")
    found = [line.partition(b":")[2] for line in lines if line.startswith(b"content-length:")]
    return int(found[0]) if found else 0


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while content := await source.read(1 << 16):
            sink.write(content)
            await sink.drain()


class Pair:
    """Two servers in turn behind one address: while one answers, the other is started again."""

    def __init__(self, relay: Relay, servers: Iterable[RealServer]) -> None:
        self._relay = relay
        self._turns: Iterator[RealServer] = itertools.cycle(servers)
        self.serving = next(self._turns)

    @property
    def kind(self) -> str:
        return self.serving.kind

    @property
    def name(self) -> str:
        return self.serving.name

    @property
    def min_equal(self) -> float:
        return self.serving.min_equal

    async def begin(self) -> None:
        if not self.serving.is_running:
            self.serving.end()
            self.serving.start()
        await self.serving.serve()
        self._relay.point_at(self.serving.port)

    async def prepare_next(self) -> None:
        """Have the other one ready, so that the gap after a death is short."""
        self._next = next(self._turns)
        self._next.end()
        self._next.start()
        await self._next.serve()

    def kill(self, chosen: Callable[[psutil.Process], bool] = lambda _: True) -> None:
        """Nobody is behind the address, until `replace`."""
        self._relay.point_at(None)
        self.serving.kill(chosen)

    def replace(self) -> None:
        self.serving = self._next
        self._relay.point_at(self.serving.port)
