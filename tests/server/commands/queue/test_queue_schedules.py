"""Queues and steers in any order, by two tabs that lose their connections at workers that die.

Whole workers run in this process, on a real Redis, with an engine that follows a script; the dice
choose what the tabs do and when a worker is killed. The session's log says what has become of each
input: asked once, in order, with its newest words, or withdrawn. A failure prints its seed;
`PARLEY_RACE_SEED=N` plays it again, as far as it is up to the dice.
"""

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from sessions.model.queue import derived_item_id
from sessions.store.store import SessionStore
from tests.end_to_end.frames.client_model import Frame
from tests.end_to_end.site.client import Closed
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_word
from tests.server.helpers.in_process import (
    PATIENT,
    LocalClient,
    kill,
    patient_history,
    running_worker,
)
from tests.server.helpers.scripted_engine import Dice, ScriptedEngine

AT_ONCE = 10  # schedules at a time, on the same workers
SETTINGS = {"temperature": 0, "max_output_tokens": 6}
MOVES = {
    "add": 8,
    "steer": 3,
    "edit": 3,
    "move": 2,
    "withdraw": 2,
    "withdraw by key": 1,
    "send": 2,
    "stop": 2,
    "resume": 2,
    "cut": 2,
}


class Site:
    """The workers that are alive, and what their clients are judged by."""

    def __init__(self, url: str, dice: Dice, stack: contextlib.AsyncExitStack) -> None:
        self._url, self._prefix = url, fresh_prefix()
        self._dice, self._engine = dice, ScriptedEngine(dice)
        self._stack = stack
        self._num_begun = 0
        self.workers: list[Worker] = []
        self.history = patient_history(url, self._prefix)
        self.clients: dict[LocalClient, Worker] = {}

    async def begin_worker(self) -> None:
        name = f"w{self._num_begun}"
        self._num_begun += 1
        worker = running_worker(self._url, self._prefix, self._engine, self._dice, name, PATIENT)
        self.workers.append(await self._stack.enter_async_context(worker))

    async def kill_worker(self) -> None:
        """Another one takes its place and its answers, as the supervisor arranges it."""
        dead = self.workers.pop(0)
        await kill(dead)
        for client, worker in [*self.clients.items()]:
            if worker is dead:
                await client.lose_worker()
        await self.begin_worker()
        await self.workers[0].takeover.adopt(dead.config.replica)


@dataclass
class Schedule:
    """One session and what its user wanted, however it was asked for."""

    site: Site
    dice: Dice
    session: str = ""
    keys: list[str] = field(default_factory=list)  # of all inputs
    texts: set[str] = field(default_factory=set)  # that were acknowledged
    withdrawn: set[str] = field(default_factory=set)  # items that somebody wanted to withdraw
    moves: Counter[str] = field(default_factory=Counter)

    def new_text(self) -> str:
        """Words that are asked for once."""
        return oracle_word(self.dice.random.randrange(1, 9_000)) + oracle_word(len(self.texts) + 1)


class QueueTab:
    """One tab: it sends a request again, on another connection, until it is answered."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        self._schedule = schedule
        self._site = schedule.site
        self._random = schedule.dice.random
        self._name = name
        self._client: LocalClient | None = None
        self._num_inputs = 0
        self._queue: Frame = {"revision": -1, "items": []}
        self._active: str | None = None

    async def leave(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            self._site.clients.pop(client, None)
            await client.__aexit__()

    async def request(self, kind: str, **fields: Any) -> Frame:
        while True:
            try:
                client = await self._connected()
                reply = await client.reply(kind, **fields)
            except Closed:
                await self.leave()
                continue
            self._look(client)
            if "retry_after_ms" in reply.get("error", {}):
                await self._schedule.dice.give_way()
                continue
            return reply

    async def _connected(self) -> LocalClient:
        if self._client is None:
            worker = self._random.choice(self._site.workers)
            client = LocalClient(worker, self._site.history)
            self._site.clients[client] = worker
            self._client = await client.__aenter__()
            if self._schedule.session:
                await client.reply("session.subscribe", session_id=self._schedule.session)
        return self._client

    def _look(self, client: LocalClient) -> None:
        """What is on screen: the newest queue, and the answer that is being written."""
        for frame in client.frames:
            queue = frame.get("queue")
            if queue is not None and queue["revision"] > self._queue["revision"]:
                self._queue = queue
            if frame["type"] == "response.created":
                self._active = frame["response"]["id"]

    async def act(self, move: str) -> None:
        items = [item["id"] for item in self._queue["items"]]
        if move in ("edit", "move", "withdraw", "withdraw by key", "send") and not items:
            move = "add"
        if move in ("steer", "stop") and self._active is None:
            move = "add"
        self._schedule.moves[move] += 1
        match move:
            case "add":
                await self._ask("queue.add", session_id=self._schedule.session)
            case "steer":
                await self._ask("response.steer", previous_response_id=self._active)
            case "edit":
                text = self._schedule.new_text()
                if await self._change("queue.update", items, input=text):
                    self._schedule.texts.add(text)
            case "move":
                await self._change("queue.update", items, place=self._random.randrange(4))
            case "withdraw":
                await self._change("queue.remove", items)
            case "withdraw by key":
                await self._withdraw_by_key()
            case "send":
                await self._change("queue.send", items)
            case "stop":
                await self._stop(response_id=self._active)
            case "resume":
                await self.request("queue.send", session_id=self._schedule.session)
            case "cut":
                if self._client is not None:
                    self._client.cut()
                    await self.leave()

    async def _stop(self, **target: Any) -> None:
        """Once: what it is answered with may be the end of what it means."""
        try:
            client = await self._connected()
            await client.send("stop", **target)
        except Closed:
            await self.leave()

    async def _ask(self, kind: str, **fields: Any) -> None:
        self._num_inputs += 1
        key, text = f"{self._name}{self._num_inputs}", self._schedule.new_text()
        self._schedule.keys.append(key)
        fields |= {"idempotency_key": key, "input": text, "settings": SETTINGS}
        accepted = await self.request(kind, **fields)
        if accepted.get("error", {}).get("code") == "queue_full":
            self._schedule.keys.remove(key)
            return
        assert accepted["type"].endswith(".accepted"), accepted
        if accepted["status"] != "removed":
            self._schedule.texts.add(text)
        if self._random.random() < 0.2:  # and the same key again
            again = await self.request(kind, **fields)
            assert again["type"] == accepted["type"], again

    async def _change(self, kind: str, items: list[str], **fields: Any) -> bool:
        """Whether the item was still there."""
        item = self._random.choice(items)
        if kind == "queue.remove":
            self._schedule.withdrawn.add(item)
        session = self._schedule.session
        reply = await self.request(kind, session_id=session, item_id=item, **fields)
        if reply["type"] == "error":
            assert reply["error"]["code"] == "item_not_found", reply
            return False
        assert reply["type"] == "queue.accepted", reply
        return True

    async def _withdraw_by_key(self) -> None:
        item = self._random.choice(self._queue["items"])
        self._schedule.withdrawn.add(item["id"])
        session, key = self._schedule.session, item["idempotency_key"]
        await self._stop(session_id=session, idempotency_key=key)


async def play(schedule: Schedule) -> None:
    tabs = [QueueTab(schedule, name) for name in "ab"]
    try:
        key = f"session-{schedule.dice.seed}"
        created = await tabs[0].request("session.create", idempotency_key=key)
        schedule.session = created["session"]["id"]

        async def use(tab: QueueTab) -> None:
            for _ in range(schedule.dice.random.randrange(4, 10)):
                (move,) = schedule.dice.random.choices([*MOVES], [*MOVES.values()])
                await tab.act(move)
                await schedule.dice.give_way()

        await asyncio.gather(*map(use, tabs))
        await settle(schedule, tabs[0])
    finally:
        for tab in tabs:
            await tab.leave()
    await judge(schedule)


def living_store(schedule: Schedule) -> SessionStore:
    return schedule.site.workers[-1].store


async def settle(schedule: Schedule, tab: QueueTab) -> None:
    """Ask what waits, until nothing waits and nothing runs."""
    async with asyncio.timeout(PATIENCE):
        while True:
            store = living_store(schedule)
            queue = await store.queues.get(None, schedule.session)
            live = await store.responses.live(schedule.session)
            if not queue.items and not live.ids:
                return
            assert all(item.error is None for item in queue.items), queue
            if queue.is_paused:
                await tab.request("queue.send", session_id=schedule.session)
            await asyncio.sleep(0.01)  # what settles is seen from outside: there is no event


async def judge(schedule: Schedule) -> None:
    """Each input was asked once, first come first, with the words that it had then."""
    events = await living_store(schedule).sessions.events(schedule.session, after=1)
    assert events is not None
    data = [event.data for event in events]
    held: list[Frame] = []
    paused = False
    fates: Counter[str] = Counter()
    seen: set[str] = set()
    for place, event in enumerate(data):
        if event["type"] != "queue.updated":
            continue
        queue = event["queue"]
        left = {item["id"] for item in queue["items"]}
        gone = [item for item in held if item["id"] not in left]
        fates.update(item["id"] for item in gone)
        seen.update(item["input"] for item in queue["items"])
        message = data[place + 1].get("message", {}) if place + 1 < len(data) else {}
        if gone and message.get("role") == "user":
            assert gone == held[: len(gone)], "not the first was asked"
            assert not paused or gone[0].get("now"), "asked although the queue was paused"
            asked = "\n\n".join(item["input"] for item in gone)
            assert message["content"][0]["text"] == asked
        elif gone:
            assert len(gone) == 1 and gone[0]["id"] in schedule.withdrawn, "lost"
        held, paused = queue["items"], queue["paused"]
    assert held == []
    expected = {derived_item_id(schedule.session, key): key for key in schedule.keys}
    for item, key in expected.items():
        if fates[item] == 0:  # a stop by its key came first
            assert item in schedule.withdrawn, f"{key} was never there"
        assert fates[item] <= 1, f"{key} was asked twice"
    assert schedule.texts <= seen, schedule.texts - seen


@contextlib.asynccontextmanager
async def running_site(url: str, dice: Dice) -> AsyncIterator[Site]:
    async with contextlib.AsyncExitStack() as stack:
        site = Site(url, dice, stack)
        for _ in range(2):
            await site.begin_worker()
        yield site
        site.history.check()


async def run(url: str, seed: int, count: int) -> Counter[str]:
    moves: Counter[str] = Counter()
    for batch in range(-(-count // AT_ONCE)):
        dice = Dice(seed + batch)
        async with running_site(url, dice) as site:
            schedules = [
                Schedule(site, Dice(dice.random.randrange(2**32)))
                for _ in range(min(AT_ONCE, count - batch * AT_ONCE))
            ]
            playing = [asyncio.create_task(play(one)) for one in schedules]
            if batch == 0 or dice.random.random() < 0.7:
                # At any moment, which no event marks: that is what is tried.
                await asyncio.sleep(dice.random.random() * 0.3)
                await site.kill_worker()
                moves["killed"] += 1
            await asyncio.gather(*playing)
            for one in schedules:
                moves += one.moves
    return moves


@pytest.mark.row("C22")
@pytest.mark.parametrize("count", [AT_ONCE, pytest.param(1000, marks=pytest.mark.slow)])
async def test_every_input_is_asked_once_and_in_order(
    redis_server: EmbeddedRedis, count: int
) -> None:
    seed = int(os.environ.get("PARLEY_RACE_SEED") or random.randrange(2**32))
    print(f"PARLEY_RACE_SEED={seed}")
    moves = await run(redis_server.url, seed, count)
    print(moves)
    assert count < 100 or {*MOVES, "killed"} <= set(moves)
