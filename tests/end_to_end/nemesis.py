"""C18: everything goes wrong at once, for minutes, and the history must hold all the same.

`python -m tests.end_to_end.nemesis --seed N --minutes M` starts a Redis, two workers and a core,
with fault proxies on the links to Redis and on half of the clients' links. Thirty sessions ask,
stop, delete, lose their connections and come back, while faults are drawn from the seed. Rounds end
with everything healed and the history checked. The seed repeats what is asked and done, in order;
what the machine makes of it, and when, differs.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import redis as redis_library
from websockets.exceptions import WebSocketException

from tests.end_to_end.client import Closed
from tests.end_to_end.client_model import Answer, Frame
from tests.end_to_end.connection_check import SESSION_EVENTS
from tests.end_to_end.fault_proxy import FaultProxy
from tests.end_to_end.harness import Client
from tests.end_to_end.history import HistoryViolated
from tests.end_to_end.wiring import Wired, wired
from tests.tiny_model import build_oracle_model, oracle_answer, oracle_word

NUM_SESSIONS = 30
ROUND_SECONDS = 30.0
QUIET_SECONDS = 120.0  # after the last fault of a round, until every answer has ended
CORE_DEATH_SECONDS = 15.0  # between two deaths: starts that fail are counted, and end Parley
LINK: dict[str, Any] = {
    "open_timeout": 5,
    "close_timeout": 1,
    "ping_interval": 2,
    "ping_timeout": 4,
}
TRANSIENT = ("store_unavailable", "engine_unavailable", "draining", "queue_full", "rate_limited")
# How an answer may end that nobody stopped: `owner_lost` when three owners died with it,
# `engine_error` when two cores did before it had another token.
ENDS = {"max_output_tokens", "owner_lost", "engine_error", "server_shutdown"}
STOPPED = ENDS | {"client_cancelled", "superseded"}


@dataclass
class Question:
    """What a tab wants to know, under one key until it is acknowledged."""

    key: str
    word: int
    num_tokens: int
    on_busy: str

    def frame(self, session: str) -> Frame:
        return {
            "session_id": session,
            "idempotency_key": self.key,
            "input": oracle_word(self.word),
            "on_busy": self.on_busy,
            "settings": {"temperature": 0, "max_output_tokens": self.num_tokens},
        }


@dataclass
class Tab:
    """One user's tab on one session: it reconnects as docs/protocol.md tells clients to."""

    nemesis: "Nemesis"
    dice: random.Random
    session: str = ""
    position: Frame | None = None  # epoch and offset of the last session event
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: dict[str, Question] = field(default_factory=dict)  # by response
    pending: Question | None = None  # not acknowledged yet
    stops: set[str] = field(default_factory=set)  # sent, and not yet seen to work
    stopped: set[str] = field(default_factory=set)
    judged: set[str] = field(default_factory=set)
    num_asked: int = 0
    is_deleting: bool = False
    num_noted: int = 0  # frames of this connection

    @property
    def open(self) -> list[str]:
        return [rid for rid in self.asked if (a := self.answers.get(rid)) is None or not a.done]

    async def live(self) -> None:
        """Act until the round is over and every answer has ended."""
        while not self.nemesis.is_over or self.open or self.pending:
            try:
                await self._connect()
            except (Closed, OSError, WebSocketException, TimeoutError):
                await asyncio.sleep(self.dice.uniform(0.05, 0.5))

    async def _connect(self) -> None:
        address = self.dice.choice((None, self.nemesis.clients.address))
        async with Client(self.nemesis.server, address=address, **LINK) as client:
            client.answers = self.answers
            self.num_noted = 0
            try:
                await self._attach(client)
                while not self.nemesis.is_over or self.open or self.pending:
                    await self._act(client)
                    self._note(client)
            finally:
                self._note(client)

    async def _attach(self, client: Client) -> None:
        if not self.session:
            created = await client.reply("session.create", idempotency_key=os.urandom(8).hex())
            if created["type"] == "error":
                await self._wait_as_told(created)
                raise Closed("try again")
            self.session = created["session"]["id"]
            self.position = {"epoch": created["epoch"], "offset": created["offset"]}
            return
        positions = [
            {"response_id": rid, "fence": a.fence, "after_sequence_number": a.last}
            for rid in self.open
            if (a := self.answers.get(rid)) is not None and a.last
        ]
        fields: Frame = {"session_id": self.session, "responses": positions}
        if self.position is not None and self.dice.random() < 0.7:
            fields["after"] = self.position
        subscribed = await client.reply("session.subscribe", **fields)
        if subscribed["type"] == "error":
            if self.is_deleting and subscribed["error"]["code"] == "session_not_found":
                self._begin_anew()
            await self._wait_as_told(subscribed)
            raise Closed("try again")
        for response in sorted(self.stops):  # unanswered frames are sent again
            await client.send("stop", response_id=response)

    def _note(self, client: Client) -> None:
        """Where the session's events are, and how answers ended."""
        for response, answer in self.answers.items():
            if answer.done is not None and response in self.asked and response not in self.judged:
                self._judge(response, answer)
        noted, self.num_noted = self.num_noted, len(client.frames)
        for frame in client.frames[noted:]:
            kind = frame["type"]
            if kind == "session.subscribed":
                epoch, offset = frame["epoch"], frame["offset"]
                if frame["recovered"] and self.position:
                    offset = min(offset, self.position["offset"])
                self.position = {"epoch": epoch, "offset": offset}
            elif kind in SESSION_EVENTS and frame.get("session_id") == self.session:
                if self.position is not None:
                    self.position = {**self.position, "offset": frame["offset"]}

    async def _act(self, client: Client) -> None:
        if self.pending is not None:
            await self._ask(client, self.pending)
        elif self.open and (len(self.open) > 2 or self.dice.random() < 0.8):
            await self._watch(client, self.open[0])
        elif self.nemesis.is_over:
            return
        elif not self.open and self.dice.random() < 0.05:
            await self._delete(client)
        else:
            self.num_asked += 1
            self.pending = Question(
                key=f"k{self.num_asked}",
                word=self.dice.randrange(1, 9_000),
                num_tokens=self.dice.choice((3, 20, 60, 150)),
                on_busy=self.dice.choice(("reject", "queue", "cancel")),
            )

    async def _ask(self, client: Client, question: Question) -> None:
        frame = question.frame(self.session)
        if question.on_busy == "cancel":
            self.stopped.update(self.open)
        for _ in range(self.dice.choice((1, 1, 1, 3))):  # and the same key again
            created = await client.reply("response.create", **frame)
        if created["type"] == "error":
            code = created["error"]["code"]
            assert code in (*TRANSIENT, "response_in_progress"), created
            if code == "response_in_progress":
                self.pending = None
            await self._wait_as_told(created)
            return
        self.asked[created["response"]["id"]] = question
        self.pending = None

    async def _watch(self, client: Client, response: str) -> None:
        """Wait for the end; or stop it, ask for another in its place, or lose the connection."""
        deed = self.dice.random()
        if deed < 0.15:
            client.cut()
            raise Closed("cut")
        if deed < 0.5:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.dice.uniform(0, 1.5)):
                    await client.done(response)
                    return
            self.stops.add(response)
            self.stopped.add(response)
            if deed < 0.25:
                await client.send("stop", session_id=self.session)
                self.stopped.update(self.open)
            else:
                await client.send("stop", response_id=response)
        await client.done(response)
        self.stops.discard(response)

    def _judge(self, response: str, answer: Answer) -> None:
        assert answer.done is not None
        self.judged.add(response)
        reason = answer.done["response"]["status_details"]["reason"]
        self.nemesis.ends[reason] += 1
        allowed = STOPPED if response in self.stopped else ENDS
        assert reason in allowed, f"{response} ended {answer.done['response']}"
        if reason == "max_output_tokens":
            question = self.asked[response]
            expected = oracle_answer(question.word, question.num_tokens)
            assert answer.final == expected, (answer.final, expected, answer.frames[-8:])

    async def _delete(self, client: Client) -> None:
        self.is_deleting = True
        deleted = await client.reply("session.delete", session_id=self.session)
        if deleted["type"] == "error" and deleted["error"]["code"] != "session_not_found":
            await self._wait_as_told(deleted)
            return
        self._begin_anew()
        raise Closed("another session")

    def _begin_anew(self) -> None:
        self.session, self.position, self.is_deleting = "", None, False
        self.asked.clear()
        self.stops.clear()

    async def _wait_as_told(self, error: Frame) -> None:
        wait_ms = error["error"].get("retry_after_ms", 100)
        await asyncio.sleep(min(wait_ms, 1000) / 1000 * self.dice.uniform(0.5, 1.0))


class Nemesis:
    """Draws faults from a seed and carries them out."""

    def __init__(self, wiring: Wired, clients: FaultProxy, seed: int) -> None:
        self.server = wiring.server
        self.clients = clients
        self.ends: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.log: list[str] = []
        self.is_over = False
        self._wiring = wiring
        self._seed = seed
        self._core_died_at = 0.0
        self._began = time.monotonic()

    async def round(self, number: int, seconds: float, num_sessions: int) -> None:
        """Faults for so long, then quiet, then the check. Raises AssertionError."""
        self.is_over = False
        dice = random.Random(f"{self._seed}/{number}")
        tabs = [
            Tab(self, random.Random(f"{self._seed}/{number}/{tab}")) for tab in range(num_sessions)
        ]
        living = [asyncio.create_task(tab.live()) for tab in tabs]
        try:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                await asyncio.sleep(dice.uniform(0.3, 3.0))
                self._raise_what_broke(living)
                await self._strike(dice)
            await self._heal()
            self.is_over = True
            _, late = await asyncio.wait(living, timeout=QUIET_SECONDS)
            self._raise_what_broke(living)
            assert not late, (
                f"{len(late)} sessions are not done after {QUIET_SECONDS:.0f} s of quiet"
            )
        finally:
            for task in living:
                task.cancel()
            await asyncio.gather(*living, return_exceptions=True)
        await asyncio.to_thread(self.server.history.check)

    def save_history(self, violated: bool) -> Path:
        """Write down the faults, each frame of each connection, and what the server logged."""
        path = Path(tempfile.gettempdir()) / f"nemesis-{self._seed}.txt"
        with path.open("w") as file:
            print(*self.log, sep="\n", file=file)
            history = self.server.history
            for connection in history.judged if violated else history.connections:
                print(f"{connection.name}, closed with {connection.close_code}", file=file)
                for record in connection.records:
                    side = "C" if record.is_request else "S"
                    seconds = record.time - self._began
                    print(f"  {seconds:7.3f} {side} {record.frame}", file=file)
            file.write(self.server.log(None))
        return path

    @staticmethod
    def _raise_what_broke(living: list[asyncio.Task[None]]) -> None:
        for task in living:
            if task.done() and (broken := task.exception()) is not None:
                raise broken

    async def _strike(self, dice: random.Random) -> None:
        faults: dict[str, Callable[[random.Random], Awaitable[None]]] = {
            "worker killed": self._kill_worker,
            "worker hangs": self._hang_worker,
            "worker leaves": self._drain_worker,
            "core killed": self._kill_core,
            "core hangs": self._hang_core,
            "redis killed": self._kill_redis,
            "redis hangs": self._hang_redis,
            "scripts gone": self._flush_scripts,
            "link to redis": self._break_store_link,
            "link to clients": self._break_client_link,
        }
        name = dice.choice(sorted(faults))
        self.faults[name] += 1
        self.log.append(f"{time.monotonic() - self._began:7.2f} {name}")
        self.server.history.fault(name)
        await faults[name](dice)

    async def _heal(self) -> None:
        for proxy in (self._wiring.links, self.clients):
            proxy.command("pass")
        async with asyncio.timeout(QUIET_SECONDS):
            while True:
                with contextlib.suppress(OSError):
                    if (await asyncio.to_thread(self.server.get, "/readyz"))[0] == 200:
                        return
                await asyncio.sleep(0.2)

    # ---- faults ---------------------------------------------------------------------------------

    def _child(self, dice: random.Random, word: str) -> psutil.Process | None:
        children = sorted(self.server.children(word), key=lambda child: child.pid)
        return dice.choice(children) if children else None

    async def _kill_worker(self, dice: random.Random) -> None:
        self._signal(self._child(dice, "server.worker"), signal.SIGKILL)

    async def _drain_worker(self, dice: random.Random) -> None:
        self._signal(self._child(dice, "server.worker"), signal.SIGTERM)

    async def _hang_worker(self, dice: random.Random) -> None:
        await self._hang(self._child(dice, "server.worker"), dice.uniform(0.3, 3.0))

    async def _kill_core(self, dice: random.Random) -> None:
        now = time.monotonic()
        if now - self._core_died_at > CORE_DEATH_SECONDS:
            self._core_died_at = now
            self._signal(self._child(dice, "engine.core"), signal.SIGKILL)

    async def _hang_core(self, dice: random.Random) -> None:
        await self._hang(self._child(dice, "engine.core"), dice.uniform(0.3, 1.5))

    async def _kill_redis(self, dice: random.Random) -> None:
        server = self._wiring.redis
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await asyncio.sleep(dice.uniform(0.0, 2.0))
        server.start()

    async def _hang_redis(self, dice: random.Random) -> None:
        assert self._wiring.redis.pid is not None
        await self._hang(psutil.Process(self._wiring.redis.pid), dice.uniform(0.2, 3.0))

    async def _flush_scripts(self, dice: random.Random) -> None:

        client = redis_library.Redis.from_url(self._wiring.redis.url)
        await asyncio.to_thread(client.script_flush)
        client.close()

    async def _break_store_link(self, dice: random.Random) -> None:
        await self._break(self._wiring.links, dice, "blackhole every SUBSCRIBE")

    async def _break_client_link(self, dice: random.Random) -> None:
        await self._break(self.clients, dice, "rate 20000")

    @staticmethod
    async def _break(proxy: FaultProxy, dice: random.Random, own: str) -> None:
        commands = ("delay 0.03", "split", "blackhole", "blackhole replies", "rst", "fin", own)
        proxy.command(dice.choice(commands))
        await asyncio.sleep(dice.uniform(0.2, 3.0))
        proxy.command("pass")

    @staticmethod
    async def _hang(process: psutil.Process | None, seconds: float) -> None:
        if process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
            await asyncio.sleep(seconds)
            process.resume()

    @staticmethod
    def _signal(process: psutil.Process | None, number: signal.Signals) -> None:
        if process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


async def run(
    model: Path,
    seed: int,
    minutes: float,
    num_sessions: int = NUM_SESSIONS,
    round_seconds: float = ROUND_SECONDS,
) -> Nemesis:
    """Rounds for so long. Raises AssertionError with what was violated."""
    print(f"nemesis: seed {seed}", flush=True)
    environment = {"PARLEY_TESTING": "1", "PARLEY_PACE": "60", "PARLEY_LOG_FORMAT": "text"}
    with wired(model, **environment) as wiring:
        address = urlsplit(wiring.server.url).netloc
        with FaultProxy(address) as clients:
            nemesis = Nemesis(wiring, clients, seed)
            wiring.server.history.are_stops_recorded = True
            deadline = time.monotonic() + minutes * 60
            number = 0
            while time.monotonic() < deadline:
                number += 1
                try:
                    await nemesis.round(number, round_seconds, num_sessions)
                except BaseException as error:
                    path = nemesis.save_history(isinstance(error, HistoryViolated))
                    print(f"nemesis: seed {seed}, round {number}, all that happened: {path}")
                    raise
                print(
                    f"nemesis: round {number} holds;"
                    f" answers {dict(nemesis.ends)}, faults {dict(nemesis.faults)}",
                    flush=True,
                )
    return nemesis


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--sessions", type=int, default=NUM_SESSIONS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nemesis-") as folder:
        model = build_oracle_model(Path(folder) / "model")
        asyncio.run(run(model, arguments.seed, arguments.minutes, arguments.sessions))


if __name__ == "__main__":
    main()
