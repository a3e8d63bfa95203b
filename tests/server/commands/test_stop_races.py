"""Stops, the wish, at any moment: dice choose the await point, the history judges.

Two whole workers run in this process, on a real Redis, with an engine that follows a script. Real
sockets and the real engine are tests/end_to_end/stop/'s; what becomes of an abort, tests/engine/'s.
A failure prints its seed; `PARLEY_RACE_SEED=N` plays it again, as far as it is up to the dice: what
Redis and the kernel do meanwhile is not.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from server.runs import producer
from sessions.connection.embedded import EmbeddedRedis
from sessions.model.ids import session_of
from tests.end_to_end.frames.client_model import Answer
from tests.end_to_end.oracle.history import EngineCounts
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_word
from tests.server.helpers.in_process import PATIENT, LocalClient, patient_history, running_workers
from tests.server.helpers.scripted_engine import Dice, Request, ScriptedEngine

NUM_TOKENS = 6
AT_ONCE = 8  # races at a time, on the same two workers
BATCHES_BETWEEN_CHECKS = 6


@dataclass
class Race:
    """One answer, and those who may stop it."""

    dice: Dice
    engine: ScriptedEngine
    asker: LocalClient
    second: LocalClient  # another tab, at the other worker in half of the races
    session: str
    key: str

    async def create(self) -> str:
        return await self.asker.ask(
            self.session,
            oracle_word(self.dice.random.randrange(1, 9_000)),
            idempotency_key=self.key,
            settings={"max_output_tokens": NUM_TOKENS},
        )

    async def reach(self, phase: str) -> tuple[str, Request]:
        """Begin the answer and wait for the phase, which lasts in half of the races.

        The answer may have passed the phase before it was to last: `Request.held_at` tells."""
        holds = self.dice.random.random() < 0.5
        response = await self.create()
        request = self.engine.requests[response]
        if holds:
            request.is_held.add(phase)
        await request.reached[phase].wait()
        await self.dice.give_way()
        if not holds:
            await asyncio.sleep(self.dice.random.random() * 0.01)
        return response, request

    async def stop(self, client: LocalClient, response: str) -> None:
        """In one of the ways that a client has."""
        if self.dice.random.random() < 0.5:
            await client.send("stop", response_id=response)
        else:
            await client.send("response.cancel", session_id=self.session)


async def stop_in(race: Race, phase: str) -> None:
    response, request = await race.reach(phase)
    was_held = request.held_at is not None
    await race.stop(race.asker, response)
    answer = await race.asker.done(response)
    request.released.set()
    if was_held:
        assert status(answer) == "cancelled"


async def stop_when_queued(race: Race) -> None:
    """Behind another answer of its session: nothing of it reaches the engine."""
    first = await race.create()
    race.engine.requests[first].is_held.add("mid")
    race.key += "-waits"
    waiting = await race.asker.reply(
        "response.create",
        session_id=race.session,
        idempotency_key=race.key,
        input=oracle_word(1),
        on_busy="queue",
    )
    response = waiting["response"]["id"]
    await race.dice.give_way()
    await race.asker.send("stop", response_id=response)
    answer = await race.asker.done(response)
    was_waiting = race.engine.requests[first].held_at is not None
    race.engine.requests[first].released.set()
    await race.asker.done(first)
    assert status(race.asker.answers[first]) != "cancelled"
    if was_waiting:
        assert status(answer) == "cancelled" and answer.text == ""


async def stop_before_it_is_created(race: Race) -> None:
    """By its key, from either tab, a moment before or after the question."""
    stopper = race.dice.random.choice((race.asker, race.second))
    creating = asyncio.create_task(race.create())
    if race.dice.random.random() < 0.5:
        await race.dice.give_way()
    await stopper.send("stop", session_id=race.session, idempotency_key=race.key)
    answer = await race.asker.done(await creating)
    assert status(answer) in ("cancelled", "incomplete")


async def stop_after_the_end(race: Race) -> None:
    response = await race.create()
    await race.asker.done(response)
    await race.dice.give_way()
    await race.asker.send("stop", response_id=response)
    await race.asker.wait(lambda: num_dones(race.asker, response) == 2, "the same end again")
    assert status(race.asker.answers[response]) == "incomplete"


async def stop_twice(race: Race) -> None:
    response, request = await race.reach("mid")
    for _ in range(3):
        await race.stop(race.asker, response)
        await race.dice.give_way()
    await race.asker.done(response)
    request.released.set()


async def stop_in_two_tabs(race: Race) -> None:
    response, request = await race.reach("mid")
    await asyncio.gather(race.stop(race.asker, response), race.stop(race.second, response))
    first, second = await race.asker.done(response), await race.second.done(response)
    request.released.set()
    assert first.final == second.final and status(first) == status(second)


async def stop_at_the_other_worker(race: Race) -> None:
    response, request = await race.reach(race.dice.random.choice(("prefill", "mid", "last")))
    was_held = request.held_at is not None
    await race.stop(race.second, response)
    first, second = await race.second.done(response), await race.asker.done(response)
    request.released.set()
    assert first.final == second.final
    if was_held:
        assert status(first) == "cancelled"


async def stop_and_disconnect(race: Race) -> None:
    response, request = await race.reach("mid")
    was_held = request.held_at is not None
    await race.stop(race.asker, response)
    race.asker.cut()
    answer = await race.second.done(response)
    request.released.set()
    if was_held:
        assert status(answer) == "cancelled"


async def stop_and_delete(race: Race) -> None:
    """The session goes while its answer is being stopped."""
    response, request = await race.reach("mid")
    await race.stop(race.asker, response)
    await race.dice.give_way()
    await race.second.send("session.delete", session_id=race.session)
    await ended_before_deleted(race.asker, response, has_stopped=True)
    await ended_before_deleted(race.second, response)
    request.released.set()


async def stop_at_the_other_worker_and_delete(race: Race) -> None:
    """Nothing is stored of the end then, and everybody hears of it."""
    response, request = await race.reach(race.dice.random.choice(("prefill", "mid")))
    await race.stop(race.second, response)
    await race.dice.give_way()
    await race.asker.send("session.delete", session_id=race.session)
    for client in (race.asker, race.second):
        has_stopped = client is race.second
        answer = await ended_before_deleted(client, response, has_stopped=has_stopped)
        assert answer.done is not None
        assert len(answer.final) == answer.done["response"]["text_length"]
    request.released.set()


async def ended_before_deleted(
    client: LocalClient, response: str, *, has_stopped: bool = False
) -> Answer:
    """The end of an answer whose session goes; other sessions of the same user go meanwhile.

    A stop that came after the answer's own end is answered with that end once more.
    """
    session = session_of(response)

    def ends() -> list[str]:
        about = [
            frame["type"]
            for frame in client.frames
            if session in (frame.get("session_id"), frame.get("response", {}).get("session_id"))
        ]
        return [kind for kind in about if kind in ("response.done", "session.deleted")]

    await client.wait(lambda: "session.deleted" in ends(), "session.deleted")
    answer = client.answers[response]
    is_sent_again = has_stopped and status(answer) == "incomplete" and len(ends()) == 3
    assert ends() == [*["response.done"] * (1 + is_sent_again), "session.deleted"]
    return answer


def status(answer: Answer) -> str:
    assert answer.done is not None
    return str(answer.done["response"]["status"])


def num_dones(client: LocalClient, response: str) -> int:
    return sum(
        f["type"] == "response.done" and f["response"]["id"] == response for f in client.frames
    )


CASES: dict[str, Callable[[Race], Awaitable[None]]] = {
    "before it is created": stop_before_it_is_created,
    "queued behind another": stop_when_queued,
    "queued at the engine": lambda race: stop_in(race, "queued"),
    "in prefill": lambda race: stop_in(race, "prefill"),
    "at the first token": lambda race: stop_in(race, "first"),
    "in the middle": lambda race: stop_in(race, "mid"),
    "at the last token": lambda race: stop_in(race, "last"),
    "after the end": stop_after_the_end,
    "thrice": stop_twice,
    "in two tabs": stop_in_two_tabs,
    "at another worker": stop_at_the_other_worker,
    "at another worker, with the session deleted": stop_at_the_other_worker_and_delete,
    "with the connection cut": stop_and_disconnect,
    "with the session deleted": stop_and_delete,
}


@pytest.fixture
async def race_seed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(producer, "FLUSH_SECONDS", 0.002)
    seed = int(os.environ.get("PARLEY_RACE_SEED") or random.SystemRandom().randrange(2**32))
    print(f"PARLEY_RACE_SEED={seed}")
    yield seed


async def run_races(redis: EmbeddedRedis, seed: int, count: int) -> Counter[str]:
    """So many races of each case; returns how each ended."""
    dice = Dice(seed)
    engine = ScriptedEngine(dice)
    prefix = fresh_prefix()
    history = patient_history(redis.url, prefix)
    history.are_stops_recorded = True
    history.engines.append(
        lambda: EngineCounts(engine.num_running, 0, 0, 0, float(engine.num_requests))
    )
    ends: Counter[str] = Counter()
    async with running_workers(redis.url, prefix, engine, dice, 2, PATIENT) as workers:

        async def run(case: str) -> None:
            async with AsyncExitStack() as stack:
                places = dice.random.sample(workers, 2)
                if not case.startswith("at another worker") and dice.random.random() < 0.5:
                    places[1] = places[0]
                asker, second = [
                    await stack.enter_async_context(LocalClient(place, history)) for place in places
                ]
                session = await asker.new_session()
                await second.reply("session.subscribe", session_id=session)
                await CASES[case](Race(dice, engine, asker, second, session, "key"))
                *_, last = second.answers.values() or asker.answers.values()
                ends[f"{case}: {status(last) if last.done else 'gone'}"] += 1

        todo = [case for case in CASES for _ in range(count)]
        dice.random.shuffle(todo)
        for number, start in enumerate(range(0, len(todo), AT_ONCE), 1):
            async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
                for case in todo[start : start + AT_ONCE]:
                    tasks.create_task(run(case))
            if number % BATCHES_BETWEEN_CHECKS == 0:
                await asyncio.to_thread(history.check)
        await asyncio.to_thread(history.check)
    return ends


async def test_a_stop_holds_at_any_moment(redis_server: EmbeddedRedis, race_seed: int) -> None:
    ends = await run_races(redis_server, race_seed, 16)
    print(dict(sorted(ends.items())))


@pytest.mark.slow
async def test_a_stop_holds_in_thousands_of_moments(
    redis_server: EmbeddedRedis, race_seed: int
) -> None:
    ends: Counter[str] = Counter()
    for number in range(17):  # on a fresh prefix each, for every check reads all that is stored
        ends += await run_races(redis_server, race_seed + number, 24)
    print(dict(sorted(ends.items())))
