"""What computes the answers of a storm: one core, two of them, or engines at addresses.

Each such site says how its engines are named to Parley, which faults they may have, ends all of
them, and says whether what Parley said of its answers was the truth.
"""

import asyncio
import contextlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import psutil

from tests.end_to_end.clients.counted_words import undo_lies
from tests.end_to_end.site.harness import Server
from tests.end_to_end.storm.counting_engine import ABORTS, DIES, HANGS, LIES
from tests.end_to_end.storm.facts import Claim, EngineFacts, violations
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_topology import wait_for
from tests.helpers.root import ROOT

CORE_DEATH_SECONDS = 15.0  # between two deaths: starts that fail are counted, and end Parley
REST_SECONDS = 60.0  # after a round, until engines have nothing to do
KINDS = ("vllm", "vllm-completions", "llamacpp")
OPTIONS = {"vllm-completions": "vllm"}  # what is named otherwise in the setting
DEATHS, STOPS = "engine killed", "engine stopped"
FAULTS = (DEATHS, STOPS, *DIES, *HANGS, *LIES)
CUT_BY_DEATHS = "answers of killed engines"

Strike = Callable[[random.Random], Awaitable[None]]


class Site(Protocol):
    """The engines of a storm."""

    setting: str  # PARLEY_ENGINES
    more_ends: frozenset[str]  # how an answer may end because of a lie
    counts_requests: bool  # each core counts its own; of others a worker counts what it asks
    happened: Counter[str]  # faults that were really carried out

    def faults(self, server: Server) -> dict[str, Strike]: ...

    async def heal(self) -> None:
        """No fault goes on, and all engines are there."""

    def right(self, text: str) -> str:
        """What belongs where this text is."""

    def violations(self, claims: Sequence[Claim], words: Collection[int]) -> Iterator[str]:
        """Of a round that is over, all answers of which have ended. `words` were asked in it."""


class Cores:
    """Parley's own engine, once or in a group."""

    more_ends: frozenset[str] = frozenset()
    counts_requests = True

    def __init__(self, number: int) -> None:
        self.setting = f"native*{number}" if number > 1 else "native"
        self.happened: Counter[str] = Counter()
        self._died_at = 0.0

    def faults(self, server: Server) -> dict[str, Strike]:
        return {
            "core killed": partial(self._kill, server),
            "core hangs": partial(self._hang, server, 0.3, 1.5),
            "core hangs for long": partial(self._hang, server, 3.0, 8.0),  # it is replaced
        }

    async def heal(self) -> None:
        pass

    def right(self, text: str) -> str:
        return text

    def violations(self, claims: Sequence[Claim], words: Collection[int]) -> Iterator[str]:
        return violations(claims, None, "exact")

    async def _kill(self, server: Server, dice: random.Random) -> None:
        now = time.monotonic()
        core = child_of(server, dice, "engine.core")
        if core is not None and now - self._died_at > CORE_DEATH_SECONDS:
            self._died_at = now
            with contextlib.suppress(psutil.NoSuchProcess):
                core.kill()
                self.happened["core killed"] += 1

    async def _hang(self, server: Server, least: float, most: float, dice: random.Random) -> None:
        core = child_of(server, dice, "engine.core")
        if core is not None:
            self.happened["core hangs"] += 1
            await hang(core, dice.uniform(least, most))


class Engine:
    """One at an address: a process that is killed, stopped and started again."""

    def __init__(self, kind: str, name: str, facts: EngineFacts, arguments: list[str]) -> None:
        self.kind, self.name = kind, name
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.num_commands = 0
        self._facts = facts
        self._arguments = arguments

    @property
    def entry(self) -> str:
        kind = OPTIONS.get(self.kind, self.kind)
        return f"{kind}=http://127.0.0.1:{self.port};name={self.name}"

    def start(self) -> None:
        words = [self.kind, str(self.port), self.name, *self._arguments]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.end_to_end.storm.counting_engine", *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
        )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # its last orders
                self.process.stdin.close()
            self._facts.died(self.process.pid)
            self.process = None

    def tell(self, line: str) -> None:
        assert self.process is not None and self.process.stdin is not None
        self.num_commands += 1
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def takes_connections(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
            return True
        return False


class Addresses:
    """Engines in processes of their own, one of each kind."""

    counts_requests = False
    more_ends: frozenset[str] = frozenset(
        {"eos"}
    )  # nobody can tell a stop too early from the model's own

    def __init__(self, folder: Path, model: Path, seed: int) -> None:
        file = folder / "facts"
        self.facts = EngineFacts(file)
        self.happened = self.facts.happened
        arguments = [str(file), str(model / "tokenizer.json"), str(seed)]
        self.engines = [Engine(kind, kind, self.facts, arguments) for kind in KINDS]
        self.setting = ",".join(engine.entry for engine in self.engines)
        self._striking: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        for engine in self.engines:
            engine.start()

    def close(self) -> None:
        for engine in self.engines:
            engine.kill()

    def faults(self, server: Server) -> dict[str, Strike]:
        found: dict[str, Strike] = {}
        for engine in self.engines:
            found[f"{DEATHS}: {engine.name}"] = partial(self._kill, engine)
            found[f"{STOPS}: {engine.name}"] = partial(self._stop, engine)
        for name in (*DIES, *HANGS, *LIES):
            found[f"engine: {name}"] = partial(self._mislead, name)
        return found

    # Faults of engines go on while others come.

    async def _kill(self, engine: Engine, dice: random.Random) -> None:
        self._strike(self._be_away(engine, dice.uniform(0.0, 4.0)))

    async def _stop(self, engine: Engine, dice: random.Random) -> None:
        seconds = dice.choice((0.5, 2.0, 2.0, 8.0, 23.0))  # it counts as dead after 20
        self._strike(self._stand_still(engine, seconds))

    async def _mislead(self, name: str, dice: random.Random) -> None:
        able = [engine for engine in self.engines if engine.kind == "vllm" or name not in ABORTS]
        engines = able if dice.random() < 0.2 else [dice.choice(able)]
        share, seconds = dice.choice((0.3, 1.0)), dice.uniform(1.0, 6.0)
        for engine in engines:
            self._strike(self._lie(engine, f"{share} {name}", seconds))

    def _strike(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._striking.add(task)
        task.add_done_callback(self._striking.discard)

    async def _be_away(self, engine: Engine, seconds: float) -> None:
        if engine.process is None:
            return
        self.facts.read()
        self.happened[CUT_BY_DEATHS] += len(self.facts.open_at([engine.process.pid]))
        engine.kill()
        self.facts.fault(time.monotonic(), DEATHS)
        await asyncio.sleep(seconds)
        if engine.process is None:
            engine.start()

    async def _stand_still(self, engine: Engine, seconds: float) -> None:
        if engine.process is None:
            return
        self.facts.fault(time.monotonic(), STOPS)
        engine.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            engine.signal(signal.SIGCONT)

    async def _lie(self, engine: Engine, line: str, seconds: float) -> None:
        if engine.process is None:
            return
        engine.tell(line)
        num_commands = engine.num_commands
        await asyncio.sleep(seconds)
        if (
            engine.process is not None and engine.num_commands == num_commands
        ):  # else it has another one
            engine.tell("")

    async def heal(self) -> None:
        for task in list(self._striking):
            task.cancel()
        await asyncio.gather(*self._striking, return_exceptions=True)
        for engine in self.engines:
            if engine.process is None:
                engine.start()
            engine.signal(signal.SIGCONT)
            engine.tell("")
        for engine in self.engines:
            await asyncio.to_thread(wait_for, engine.takes_connections, PATIENCE)

    def right(self, text: str) -> str:
        return undo_lies(text)

    def violations(self, claims: Sequence[Claim], words: Collection[int]) -> Iterator[str]:
        """Wait for the engines to be at rest, then judge."""
        deadline = time.monotonic() + REST_SECONDS
        pids = [engine.process.pid for engine in self.engines if engine.process is not None]
        self.facts.read()
        while (left := self.facts.open_at(pids)) and time.monotonic() < deadline:
            time.sleep(0.2)  # what they do is seen from outside: there is no event to wait for
            self.facts.read()
        yield from (f"I6 no answer is live, and an engine has {one}" for one in left)
        yield from violations(claims, self.facts, "tokens")
        yield from self.facts.odd(words)
        self.facts.forget()


@contextlib.contextmanager
def site(name: str, model: Path, seed: int) -> Iterator[Site]:
    """`core`, `pair`, or `remote`."""
    if name != "remote":
        yield Cores({"core": 1, "pair": 2}[name])
        return
    with tempfile.TemporaryDirectory(prefix="storm-") as folder:
        addresses = Addresses(Path(folder), model, seed)
        addresses.start()
        try:
            yield addresses
        finally:
            addresses.close()


def child_of(server: Server, dice: random.Random, word: str) -> psutil.Process | None:
    children = sorted(server.children(word), key=lambda child: child.pid)
    return dice.choice(children) if children else None


async def hang(process: psutil.Process, seconds: float) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.suspend()
        await asyncio.sleep(seconds)
        process.resume()


def free_port() -> int:
    """One that no connection of anybody's takes for itself while its engine is away."""
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
