"""C18: everything goes wrong at once, for minutes, and the history must hold all the same.

`python -m tests.end_to_end.storm.nemesis --seed N --minutes M` starts a Redis, two workers and a
core (`--engines pair`: two cores; `remote`: engines at addresses, which lie as well), with fault
proxies on the links to Redis and on half of the clients' links. Thirty sessions ask, stop, delete,
lose their connections and come back, while faults are drawn from the seed. Rounds end with
everything healed and the history checked. The seed repeats what is asked and done, in order; what
the machine makes of it, and when, differs.
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
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import psutil
import redis as redis_library

from tests.end_to_end.clients.counted_words import FIRST_WORD, LAST_WORD
from tests.end_to_end.clients.http_client import Http, admin_token
from tests.end_to_end.clients.tab import Tab
from tests.end_to_end.oracle.history import HistoryViolated
from tests.end_to_end.oracle.stored_state import flush_store
from tests.end_to_end.site.fault_proxy import FaultProxy
from tests.end_to_end.site.wiring import Wired, wired
from tests.end_to_end.storm.engines import Site, child_of, hang, site
from tests.end_to_end.storm.facts import claims_of
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_topology import wait_for
from tests.helpers.tiny_model import build_oracle_model

NUM_SESSIONS = 30
ROUND_SECONDS = 30.0
QUIET_SECONDS = 120.0  # after the last fault of a round, until every answer has ended
REST_SECONDS = 10.0  # after that, until the workers have closed what was opened
IDLE_DESCRIPTORS = 40  # of a worker without clients; a new one has 22


class Nemesis:
    """Draws faults from a seed and carries them out."""

    def __init__(
        self, wiring: Wired, clients: FaultProxy, engines: Site, seed: int, only: Sequence[str]
    ) -> None:
        self.server = wiring.server
        self.clients = clients
        self.words: dict[str, int] = {}
        self.more_ends = engines.more_ends
        self.right = self.server.history.right = engines.right
        self.server.history.are_stops_recorded = True
        self.server.history.counts_requests = engines.counts_requests
        self.ends: Counter[str] = Counter()
        self.deeds: Counter[str] = Counter()
        self.tabs: list[Tab] = []
        self.evicted: set[str] = set()
        self._guest = ""
        self._token: str | None = None
        self._getting_token = asyncio.Lock()
        self.faults: Counter[str] = Counter()
        self.log: list[str] = []
        self.is_over = False
        self._wiring = wiring
        self.engines = engines
        self._seed = seed
        self._to_ask: set[int] = set()
        self._only = only
        self._deck: list[str] = []  # of faults to come
        self.began = time.monotonic()

    async def round(self, number: int, seconds: float, num_sessions: int) -> None:
        """Faults for so long, then quiet, then the check. Raises AssertionError."""
        self.is_over = False
        self.words.clear()
        dice = random.Random(f"{self._seed}/{number}")
        words = dice.sample(range(FIRST_WORD, LAST_WORD), LAST_WORD - FIRST_WORD)
        self._to_ask = set(words)
        self.tabs = [
            Tab(
                self,
                random.Random(f"{self._seed}/{number}/{tab}"),
                is_guest=tab % 3 == 2,
                to_ask=words[tab::num_sessions],
            )
            for tab in range(num_sessions)
        ]
        living = [asyncio.create_task(tab.live()) for tab in self.tabs]
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
        await asyncio.to_thread(self._check_engines)
        await asyncio.to_thread(wait_for, self._is_at_rest, REST_SECONDS)

    def _check_engines(self) -> None:
        """I12, I13: what clients were sent of engines, against what they say themselves."""
        claims = claims_of(self.server.history.judged, self.words)
        asked = self._to_ask.difference(*(tab.to_ask for tab in self.tabs))
        if violations := list(self.engines.violations(claims, asked)):
            raise HistoryViolated("\n".join(violations[:20]))

    def _is_at_rest(self) -> bool:
        """I10: what clients and faults had opened is closed."""
        workers = self.server.children("server.worker")
        return all(worker.num_fds() <= IDLE_DESCRIPTORS for worker in workers)

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
                    seconds = record.time - self.began
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
            "redis killed": self._kill_redis,
            "redis hangs": self._hang_redis,
            "redis flushed": self._flush_redis,
            "memory full": self._fill_memory,
            "scripts gone": self._flush_scripts,
            "token revoked": self._revoke_token,
            "session evicted": self._evict,
            "link to redis": self._break_store_link,
            "link to clients": self._break_client_link,
            **self.engines.faults(self.server),
        }
        if not self._deck:  # each fault once, before any comes again
            self._deck = sorted(n for n in faults if any(word in n for word in self._only))
            dice.shuffle(self._deck)
        name = self._deck.pop()
        self.faults[name] += 1
        self.log.append(f"{time.monotonic() - self.began:7.2f} {name}")
        self.server.history.fault(name)
        await faults[name](dice)

    async def _heal(self) -> None:
        for proxy in (self._wiring.links, self.clients):
            proxy.command("pass")
        await self.engines.heal()
        async with asyncio.timeout(QUIET_SECONDS):
            while True:
                with contextlib.suppress(OSError):
                    if (await asyncio.to_thread(self.server.get, "/readyz"))[0] == 200:
                        return
                await asyncio.sleep(0.2)

    # ---- faults ---------------------------------------------------------------------------------

    async def _kill_worker(self, dice: random.Random) -> None:
        self._signal(child_of(self.server, dice, "server.worker"), signal.SIGKILL)

    async def _drain_worker(self, dice: random.Random) -> None:
        self._signal(child_of(self.server, dice, "server.worker"), signal.SIGTERM)

    async def _hang_worker(self, dice: random.Random) -> None:
        if (worker := child_of(self.server, dice, "server.worker")) is not None:
            await hang(worker, dice.uniform(0.3, 3.0))

    async def _kill_redis(self, dice: random.Random) -> None:
        server = self._wiring.redis
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await asyncio.sleep(dice.uniform(0.0, 2.0))
        server.start()

    async def _hang_redis(self, dice: random.Random) -> None:
        assert self._wiring.redis.pid is not None
        await hang(psutil.Process(self._wiring.redis.pid), dice.uniform(0.2, 3.0))

    async def _flush_scripts(self, dice: random.Random) -> None:

        await asyncio.to_thread(self._operate, "SCRIPT", "FLUSH")

    async def _flush_redis(self, dice: random.Random) -> None:
        if dice.random() < 0.5:  # or the rounds would be about little else
            return
        with self.server.history.flushing() as note:
            note(await asyncio.to_thread(flush_store, self._wiring.redis.url))

    async def _fill_memory(self, dice: random.Random) -> None:
        await asyncio.to_thread(self._operate, "CONFIG", "SET", "maxmemory", "1")
        await asyncio.sleep(dice.uniform(0.3, 3.0))
        await asyncio.to_thread(self._operate, "CONFIG", "SET", "maxmemory", "0")

    def _operate(self, *words: str) -> None:
        """One command by Redis' operator, past the proxies."""
        url = self._wiring.redis.url
        with redis_library.Redis.from_url(url, socket_timeout=PATIENCE) as client:
            client.execute_command(*words)

    async def _revoke_token(self, dice: random.Random) -> None:
        if (token := self._token) is not None:
            self._token = None
            if await self._administer("DELETE", f"users/{self._guest}/tokens") is not None:
                self.server.history.revoke(token)

    async def _evict(self, dice: random.Random) -> None:
        session = dice.choice(self.tabs).session
        if session:
            self.evicted.add(session)
            await self._administer("POST", f"sessions/{session}/evict", {"reason": "by dice"})

    async def _administer(self, method: str, path: str, body: Any = None) -> Any:
        """What an admin is answered; None where that fails, or may have failed."""
        answer = await self._ask_as_admin(method, path, body)
        if answer is None or answer.status_code >= 300:
            return None
        return answer.json() if answer.content else {}

    async def _ask_as_admin(self, method: str, path: str, body: Any) -> httpx2.Response | None:
        """The answer, good or bad; None if there is none."""
        with contextlib.suppress(httpx2.HTTPError):
            async with Http(self.server, admin_token(self.server)) as http:
                return await http.ask(method, f"/v1/admin/{path}", json=body, timeout=3.0)
        return None

    async def token(self, refused: str | None) -> str:
        """The guest's token; another than the one that was refused."""
        async with self._getting_token:
            while self._token in (None, refused):
                made = await self._ask_as_admin("POST", f"users/{self._guest}/tokens", {})
                if made is not None and made.status_code == 404:  # the user is lost, with all else
                    made = await self._ask_as_admin("POST", "users", {"name": "Guest"})
                    if made is not None and made.status_code < 300:
                        self._guest = made.json()["id"]
                if made is not None and made.status_code < 300:
                    self._token = made.json()["token"]
                else:
                    self._token = None
                await asyncio.sleep(0.1)
            return str(self._token)

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
    engines: str = "core",
    planted: str | None = None,
    only: Sequence[str] = ("",),
) -> Nemesis:
    """Rounds for so long. Raises AssertionError with what was violated.

    `planted` is a PYTHONPATH for the server, with what makes that lie; of the faults those come
    whose names hold one of `only`.
    """
    print(f"nemesis: seed {seed}, engines {engines}", flush=True)
    environment = {"PARLEY_TESTING": "1", "PARLEY_PACE": "60", "PARLEY_LOG_FORMAT": "text"}
    with contextlib.ExitStack() as stack:
        there = stack.enter_context(site(engines, model, seed))
        environment["PARLEY_ENGINES"] = there.setting
        if planted is not None:
            environment["PYTHONPATH"] = planted
        wiring = stack.enter_context(wired(model, **environment))
        clients = stack.enter_context(FaultProxy(urlsplit(wiring.server.url).netloc))
        nemesis = Nemesis(wiring, clients, there, seed, only)
        deadline = time.monotonic() + minutes * 60
        number = 0
        while time.monotonic() < deadline:
            number += 1
            try:
                await nemesis.round(number, round_seconds, num_sessions)
            except BaseException as error:
                path = nemesis.save_history(isinstance(error, HistoryViolated))
                print(f"nemesis: seed {seed}, round {number}, all that happened: {path}")
                print(f"{type(error).__name__}: {error}", flush=True)
                raise
            print(
                f"nemesis: round {number} holds after {time.monotonic() - nemesis.began:.0f} s;"
                f" answers {dict(nemesis.ends)}, faults {dict(nemesis.faults)},"
                f" of engines {dict(there.happened)}, deeds {dict(nemesis.deeds)}",
                flush=True,
            )
    return nemesis


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--sessions", type=int, default=NUM_SESSIONS)
    parser.add_argument("--engines", choices=("core", "pair", "remote"), default="core")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nemesis-") as folder:
        model = build_oracle_model(Path(folder) / "model")
        asyncio.run(run(model, given.seed, given.minutes, given.sessions, engines=given.engines))


if __name__ == "__main__":
    main()
