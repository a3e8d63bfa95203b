"""What is measured of every engine, each through one door of its server.

A workload returns `Reading`s: one number each, with what else is worth keeping. Prompts are new
each time, except where a chat repeats its own history.
"""

import asyncio
import itertools
import statistics
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench.harness.report import percentile
from bench.peers.engines.peer import Running
from bench.peers.load.doors import Answer, ChatDoor, Door, LoadError
from bench.peers.load.prompts import Prompts
from bench.peers.machine.processes import busy_cores, quiet_after, sample_busy, tree

STOP_LOOK_SECONDS = 2.5  # after a stop: vLLM spins for a second
IDLE_LOOK_SECONDS = 0.5
STREAM_TOKENS = 880  # lasts longer than a long prompt, and has room in 1,024 tokens


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    contexts: tuple[tuple[int, int], ...] = ((128, 128), (2048, 64))  # and tokens to decode
    chats: tuple[int, ...] = (4, 8, 16, 32)
    burst: tuple[int, int] = (128, 128)  # tokens in and out
    prefill: int = 1024
    prefills: int = 3
    sessions: int = 8
    turns: int = 4
    turn: tuple[int, int] = (48, 64)
    streams: int = 4
    undisturbed: int = 24  # pieces of each stream before the long prompt comes
    stops: int = 5
    stop_tokens: int = 16  # before the stop
    through_chats: int = 16


FULL = Sizes()
QUICK = Sizes(
    contexts=((128, 16),),
    chats=(4,),
    burst=(32, 16),
    prefill=256,
    prefills=1,
    sessions=2,
    turns=2,
    turn=(24, 12),
    streams=2,
    undisturbed=8,
    stops=2,
    stop_tokens=6,
    through_chats=4,
)


@dataclass(frozen=True, slots=True)
class Reading:
    case: str
    value: float
    unit: str  # tok/s: more is better; of everything else less
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """One server's turn."""

    server: Running
    prompts: Prompts
    sizes: Sizes

    @property
    def door(self) -> ChatDoor:
        return self.server.door


Workload = Callable[[Turn], Coroutine[Any, Any, list[Reading]]]


async def warm_up(turn: Turn) -> None:
    """What is slow only once; also a batch, for engines that compile by its size."""
    await turn.door.answer(turn.prompts.draw(64), 16)
    await turn.door.answer(turn.prompts.draw(300), 4)
    await burst_of(turn, turn.door, 4, 32, 8)


async def wake(turn: Turn) -> None:
    """After the turns of others: a system may give back pages of files that nobody used since."""
    await turn.door.answer(turn.prompts.draw(32), 4)


async def decode(turn: Turn) -> list[Reading]:
    """One stream after a context of so many tokens."""
    readings = []
    for context, num_tokens in turn.sizes.contexts:
        answer = await turn.door.answer(turn.prompts.draw(context), num_tokens)
        details = {"first_ms": ms(answer.first_seconds), **work_of(answer)}
        rate = rate_of(answer)
        readings.append(Reading(f"decode@{context}", rate, "tok/s", details))
    return readings


async def bursts(turn: Turn) -> list[Reading]:
    """So many chats that ask at once, prompts included in the time."""
    readings = []
    for count in turn.sizes.chats:
        rate, answers = await burst_of(turn, turn.door, count, *turn.sizes.burst)
        first = [answer.first_seconds for answer in answers]
        gaps = [gap for answer in answers for gap in answer.gaps]
        details = {
            "first_ms_p50": ms(percentile(first, 50)),
            "first_ms_p95": ms(percentile(first, 95)),
            "gap_ms_p50": ms(percentile(gaps, 50)) if gaps else None,
            "gap_ms_p95": ms(percentile(gaps, 95)) if gaps else None,
            **work_of(answers[0]),
            "output_tokens": sum(answer.num_tokens for answer in answers),
        }
        readings.append(Reading(f"burst@{count}", rate, "tok/s", details))
    return readings


async def burst_of(
    turn: Turn, door: Door, count: int, num_in: int, num_out: int
) -> tuple[float, list[Answer]]:
    """Tokens of all answers over the time from the first question to the last token."""
    prompts = [turn.prompts.draw(num_in) for _ in range(count)]
    answers = await asyncio.gather(*(door.answer(prompt, num_out) for prompt in prompts))
    seconds = max(one.ended for one in answers) - min(one.asked for one in answers)
    return sum(one.num_tokens for one in answers) / seconds, list(answers)


async def prefill(turn: Turn) -> list[Reading]:
    """Prompt tokens over the time to the first token: of several prompts, the middle one."""
    count = turn.sizes.prefill
    answers = [
        await turn.door.answer(turn.prompts.draw(count), 2) for _ in range(turn.sizes.prefills)
    ]
    first = sorted(answer.first_seconds for answer in answers)
    details = {"first_ms": [ms(seconds) for seconds in first], **work_of(answers[-1])}
    rate = count / statistics.median(first)
    return [Reading(f"prefill@{count}", rate, "tok/s", details)]


async def chat(turn: Turn) -> list[Reading]:
    """Sessions side by side, each with several turns and a growing history."""
    sizes = turn.sizes

    async def session() -> list[Answer]:
        conversation = turn.door.conversation()
        num_in, num_out = sizes.turn
        return [
            await conversation.say(turn.prompts.text(num_in), num_out) for _ in range(sizes.turns)
        ]

    sessions = await asyncio.gather(*(session() for _ in range(sizes.sessions)))
    answers = [answer for session in sessions for answer in session]
    total = max(one.ended for one in answers) - min(one.asked for one in answers)
    first = [
        statistics.median(ms(session[number].first_seconds) for session in sessions)
        for number in range(sizes.turns)
    ]
    details = {
        "first_ms_by_turn": first,
        "prompt_tokens_by_turn": [answer.prompt_tokens for answer in sessions[0]],
        "cached_tokens_by_turn": [answer.cached_tokens for answer in sessions[0]],
        "output_tokens": sum(answer.num_tokens for answer in answers),
    }
    shape = f"{sizes.sessions}x{sizes.turns}"
    return [
        Reading(f"chat@{shape}", total, "s", details),
        Reading(f"first of turn {sizes.turns}@{shape}", first[-1], "ms", details),
    ]


async def gap(turn: Turn) -> list[Reading]:
    """What a long prompt does to the streams that are running when it comes."""
    sizes, running = turn.sizes, dict[int, Answer]()
    is_over = False
    many = asyncio.get_running_loop().create_future()

    def until(answer: Answer) -> bool:
        running[id(answer)] = answer
        is_enough = len(running) == sizes.streams and all(
            len(one.arrivals) > sizes.undisturbed for one in running.values()
        )
        if is_enough and not many.done():
            many.set_result(None)
        return is_over

    async def stream() -> None:
        await turn.door.answer(turn.prompts.draw(128), STREAM_TOKENS, until)
        if not is_over:
            raise LoadError("a stream was over before the long prompt was read")

    async with asyncio.TaskGroup() as group:
        for _ in range(sizes.streams):
            group.create_task(stream())
        await many
        long = await turn.door.answer(turn.prompts.draw(sizes.prefill), 2)
        is_over = True
    start, end = long.asked, long.arrivals[0]
    streams = [one.moments for one in running.values()]
    all_run = max(moments[1] for moments in streams)  # before that they read each other's prompts
    before = [gap for moments in streams for gap in gaps_within(moments, all_run, start)]
    during = [gap for moments in streams for gap in gaps_over(moments, start, end)]
    if not before or not during:
        raise LoadError("the streams showed no gaps")
    undisturbed, disturbed = statistics.median(before), percentile(during, 95)
    details = {
        "undisturbed_ms_p50": ms(undisturbed),
        "undisturbed_ms_p95": ms(percentile(before, 95)),
        "disturbed_ms_p95": ms(disturbed),
        "disturbed_ms_max": ms(max(during)),
        "prefill_ms": ms(end - start),
    }
    return [Reading(f"gap beside {sizes.prefill}", disturbed / undisturbed, "x", details)]


def gaps_within(moments: Sequence[float], start: float, end: float) -> list[float]:
    """Gaps that began and ended in this time."""
    return [b - a for a, b in itertools.pairwise(moments) if start <= a and b <= end]


def gaps_over(moments: Sequence[float], start: float, end: float) -> list[float]:
    """Gaps that overlap this time: whole, even if they began before it or end after it."""
    return [b - a for a, b in itertools.pairwise(moments) if start < b and a < end]


async def stop(turn: Turn) -> list[Reading]:
    """From a stop in mid-answer until the server's processors are quiet."""
    step = 1 / rate_of(await turn.door.answer(turn.prompts.draw(128), 32))
    pids = [process.pid for process in tree(turn.server.pid)]
    await asyncio.sleep(IDLE_LOOK_SECONDS)  # some engines spin for a while after an answer
    quiet: list[float] = []
    for _ in range(turn.sizes.stops):
        idle = busy_cores(await sample_busy(pids, IDLE_LOOK_SECONDS))
        answer = await turn.door.answer(
            turn.prompts.draw(128), 2000, lambda one: len(one.arrivals) >= turn.sizes.stop_tokens
        )
        samples = await sample_busy(pids, STOP_LOOK_SECONDS)
        took = quiet_after(samples, idle)
        late = samples[0][0] - answer.ended
        quiet.append(STOP_LOOK_SECONDS if took is None else took + late)
    step_ms, quiet_ms = ms(step), [ms(one) for one in quiet]
    details = {"step_ms": step_ms, "quiet_ms": quiet_ms, "idle_cores": round(idle, 3)}
    value = statistics.median(quiet_ms)
    return [
        Reading("quiet after a stop", value, "ms", details),
        Reading("quiet behind one step", max(0.0, value - step_ms), "ms", details),
    ]


async def through(turn: Turn) -> list[Reading]:
    """Parley's engine alone, and the same through its server: what the server costs."""
    engine = turn.server.engine
    if engine is None:
        return []
    count, readings = turn.sizes.through_chats, []

    async def rate_through(name: str, door: Door) -> float:
        rate, answers = await burst_of(turn, door, count, *turn.sizes.burst)
        readings.append(Reading(f"{name} door@{count}", rate, "tok/s", work_of(answers[0])))
        return rate

    rates = {name: await rate_through(name, door) for name, door in turn.server.doors.items()}
    async with engine.joined():
        alone = await rate_through("engine", engine)
    return readings + [
        Reading(f"lost by {name}@{count}", 100 * (1 - rate / alone), "%")
        for name, rate in rates.items()
    ]


WORKLOADS: dict[str, Workload] = {
    "decode": decode,
    "prefill": prefill,
    "burst": bursts,
    "chat": chat,
    "gap": gap,
    "stop": stop,
    "through": through,
}


def parts(workload: str, sizes: Sizes) -> list[Sizes]:
    """What engines take turns with: one size at a time, as the machine changes within minutes."""
    if workload == "decode":
        return [replace(sizes, contexts=(one,)) for one in sizes.contexts]
    if workload == "burst":
        return [replace(sizes, chats=(one,)) for one in sizes.chats]
    return [sizes]


def rate_of(answer: Answer) -> float:
    """Raises `LoadError` where a server streams in name only."""
    if len(answer.moments) < 2:
        raise LoadError("the whole answer came at once")
    return answer.tokens_per_second


def work_of(answer: Answer) -> dict[str, Any]:
    """The figures that show whether the engine did the work asked for."""
    return {
        "prompt_tokens": answer.prompt_tokens,
        "cached_tokens": answer.cached_tokens,
        "output_tokens": answer.num_tokens,
        "pieces": len(answer.arrivals),
    }


def ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)
