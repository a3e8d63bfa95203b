"""How requests begin and end, with readers of every kind: through the real step loop and socket."""

import asyncio
import random
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.client.async_llm import AsyncLLM
from engine.client.requests.collector import RequestOutputCollector
from engine.errors import (
    EngineGenerateError,
    QueueOverflowError,
    RetryableRequestError,
    ValidationError,
)
from engine.ipc import AddRequest
from engine.outputs import RequestOutput
from engine.sampling_params import RequestOutputKind, SamplingParams
from tests.engine.helpers.small_tokenizers import build_chatml
from tests.engine.helpers.threaded_core import ThreadedCore, connected

PROMPT = [41, 42, 43]
LONG_TEXT = "Hello " * 90  # tokenized in another thread


def params(max_tokens: int, **options: Any) -> SamplingParams:
    kind = RequestOutputKind.DELTA
    return SamplingParams(**{"max_tokens": max_tokens, "output_kind": kind, "seed": 1} | options)


@pytest.fixture
def core() -> Iterator[ThreadedCore]:
    with ThreadedCore(max_num_batched_tokens=512) as core:
        yield core


@pytest.fixture
async def engine(core: ThreadedCore, tmp_path: Path) -> AsyncIterator[AsyncLLM]:
    async with connected(core, build_chatml(tmp_path)) as engine:
        yield engine


async def read(outputs: AsyncIterator[RequestOutput]) -> list[RequestOutput]:
    return [output async for output in outputs]


def reasons(outputs: list[RequestOutput]) -> list[str | None]:
    """How each answer of a stream has ended, in order of their indexes."""
    ends = {c.index: c.finish_reason for o in outputs for c in o.outputs if c.finished()}
    return [ends[index] for index in sorted(ends)]


async def held(core: ThreadedCore, engine: AsyncLLM, **options: Any) -> RequestOutputCollector:
    """A request whose first step has begun and does not end before `core.release`."""
    core.hold()
    stream = await engine.add_request("r", PROMPT, params(100, **options))
    await asyncio.to_thread(core.is_in_step.wait)
    return stream


# ---- aborts
async def test_abort_after_the_end_or_twice_or_of_an_unknown_id_does_nothing(
    core: ThreadedCore, engine: AsyncLLM
) -> None:
    await engine.abort("nobody")
    stream = await engine.add_request("r", PROMPT, params(2))
    (internal_id,) = engine.output_processor.request_states
    assert reasons(await read(stream)) == ["length"]
    await engine.abort("r")
    await engine.abort(internal_id, internal=True)
    await engine.engine_core.abort_requests_async([internal_id, internal_id])
    assert stream.get_nowait() is None
    assert (await engine.metrics())["aborts_total"] == 0
    stream = await held(core, engine)
    await engine.abort("r")
    await engine.abort("r")
    await core.release_after_message()
    outputs = await read(stream)
    assert [output.finished for output in outputs] == [True]
    metrics = await engine.metrics()
    assert (metrics["aborts_total"], metrics["requests_total"]) == (1, 2)


async def test_abort_of_a_parent_ends_all_answers_within_a_step(
    core: ThreadedCore, engine: AsyncLLM
) -> None:
    stream = await held(core, engine, n=3)
    while len(core.scheduler.running) < 3:
        await core.next_step()
    num_steps = len(core.model.steps)
    await engine.abort("r")
    assert engine.output_processor.find("r") == []
    await core.release_after_message()
    outputs = await read(stream)
    assert reasons(outputs) == ["abort"] * 3
    assert [output.finished for output in outputs].count(True) == 1 and outputs[-1].finished
    assert len(core.model.steps) == num_steps
    assert not engine.output_processor.parent_requests
    assert not engine.output_processor.request_states


async def test_abort_while_a_prompt_is_tokenized_ends_all_of_its_answers(engine: AsyncLLM) -> None:
    adding = asyncio.create_task(engine.add_request("r", LONG_TEXT, params(5, n=3)))
    await asyncio.sleep(0)
    await engine.abort("r")
    assert reasons(await read(await adding)) == ["abort"] * 3
    assert (await engine.metrics())["requests_total"] == 0


async def test_id_can_be_used_again_right_after_its_abort(engine: AsyncLLM) -> None:
    for _ in range(1000):
        first = await engine.add_request("x", PROMPT, params(100))
        await engine.abort("x")
        assert reasons(await read(engine.generate(PROMPT, params(1), "x"))) == ["length"]
        assert reasons(await read(first)) == ["abort"]


async def test_abort_compares_whole_ids(core: ThreadedCore, engine: AsyncLLM) -> None:
    core.hold()
    streams = {name: await engine.add_request(name, PROMPT, params(9)) for name in ("r10", "1r")}
    for name in ("r1", "", "r", "r10-", "0", ["r1", "r"]):
        await engine.abort(name)
    core.release()
    assert [reasons(await read(stream)) for stream in streams.values()] == [["length"]] * 2


# ---- readers that leave


@types.coroutine
def cancelled_at(coroutine: Coroutine[Any, Any, Any], number: int) -> Generator[Any, Any, bool]:
    """Run a coroutine and cancel it when it waits for the nth time; False if it ends before."""
    thrown: BaseException | None = None
    for turn in range(number + 1):
        try:
            future = coroutine.send(None) if thrown is None else coroutine.throw(thrown)
        except StopIteration:
            return False
        except asyncio.CancelledError:
            return True
        if turn == number and future is not None:
            future.cancel()
        try:
            yield future
            thrown = asyncio.CancelledError() if turn == number else None
        except BaseException as error:
            thrown = error
    with pytest.raises(asyncio.CancelledError):
        coroutine.throw(thrown or asyncio.CancelledError())
    return True


Reader = Callable[[AsyncLLM, Any, int], Coroutine[Any, Any, Any]]


async def _generate(engine: AsyncLLM, prompt: Any, n: int) -> None:
    async for _ in engine.generate(prompt, params(3, n=n), "r"):
        pass


async def _add_request(engine: AsyncLLM, prompt: Any, n: int) -> None:
    stream = await engine.add_request("r", prompt, params(3, n=n))
    try:
        async for _ in stream:
            pass
    finally:
        stream.close()


@pytest.mark.parametrize("reader", [_generate, _add_request])
@pytest.mark.parametrize("prompt", [PROMPT, LONG_TEXT], ids=["ids", "text"])
@pytest.mark.parametrize("n", [1, 3])
async def test_cancelling_at_any_await_leaves_nothing_behind(
    engine: AsyncLLM, reader: Reader, prompt: Any, n: int
) -> None:
    for number in range(100):
        has_waited = await cancelled_at(reader(engine, prompt, n), number)
        assert engine.get_num_unfinished_requests() == 0
        await engine.wait_for_requests_to_drain(10)
        if not has_waited:
            break
    assert number >= 1 + (prompt is LONG_TEXT)
    await _generate(engine, prompt, n)


async def _refused_rpc(engine: AsyncLLM) -> None:
    with pytest.raises(EngineGenerateError, match="no method"):
        await engine.collective_rpc("nothing")


async def test_cancelling_any_call_leaves_the_engine_alive(engine: AsyncLLM) -> None:
    calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        engine.check_health,
        engine.metrics,
        engine.is_paused,
        engine.pause_generation,
        engine.resume_generation,
        engine.reset_prefix_cache,
        engine.wait_for_requests_to_drain,
        engine.wait_ready,
        lambda: engine.abort("r"),
        lambda: _refused_rpc(engine),
        lambda: _generate(engine, PROMPT, 2),
    ]
    for call in calls:
        for number in range(100):  # at its first await, at its second, until it ends before
            has_waited = await cancelled_at(call(), number)
            await engine.resume_generation()
            await engine.check_health()
            if not has_waited:
                break
        assert not has_waited
    assert reasons(await read(engine.generate(PROMPT, params(2), "r"))) == ["length"]


# ---- every request has one end
async def test_prompt_larger_than_the_cache_is_refused_at_once(tmp_path: Path) -> None:
    with ThreadedCore(num_blocks=4) as core:
        async with connected(core, build_chatml(tmp_path)) as engine:
            with pytest.raises(ValidationError, match="17 tokens"):
                await engine.add_request("r", list(range(1, 18)), params(1))
            assert core.model.steps == []
            fits = engine.generate(list(range(1, 14)), params(1), "r")
            assert reasons(await read(fits)) == ["length"]


async def test_every_refusal_raises(core: ThreadedCore, tmp_path: Path) -> None:
    folder = build_chatml(tmp_path)
    async with connected(core, folder, max_num_queued_reqs=0) as engine:
        for name, prompt, options in (
            ("empty", [], {}),
            ("long", [5] * 300, {}),
            ("unknown token", [5000], {}),
            ("no prompt", None, {}),
            ("logprobs", PROMPT, {"logprobs": 21}),
            ("prompt's logprobs", PROMPT, {"prompt_logprobs": 21}),
            ("unknown bias", PROMPT, {"logit_bias": {5000: 1.0}}),
        ):
            with pytest.raises(ValidationError):
                await engine.add_request(name, prompt, params(1, **options))
        with pytest.raises(QueueOverflowError):
            await engine.add_request("r", PROMPT, params(1, n=65))
        await engine.pause_generation()
        with pytest.raises(RetryableRequestError):
            await read(await engine.add_request("paused", PROMPT, params(1)))
        await engine.resume_generation()
        assert (await engine.metrics())["requests_total"] == 1  # the core has only seen the last


@pytest.mark.parametrize("seed", range(3))
async def test_every_accepted_id_has_exactly_one_last_output(engine: AsyncLLM, seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    ends: list[str] = []

    async def ask(name: str) -> None:
        n = rng.choice([1, 1, 2, 4])
        stream = await engine.add_request(name, PROMPT, params(rng.randrange(1, 40), n=n))
        patience = rng.randrange(30)
        finished = 0
        completions: list[int] = []
        async for output in stream:
            finished += output.finished
            completions += [c.index for c in output.outputs if c.finished()]
            patience -= 1
            if patience == 0:
                await engine.abort(name)
        assert finished == 1 and sorted(completions) == list(range(n))
        assert stream.get_nowait() is None
        ends.append(name)

    async def cancel(name: str) -> None:
        task = asyncio.create_task(ask(name))
        for _ in range(rng.randrange(6)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    names = [f"r{number}" for number in range(60)]
    await asyncio.gather(*(ask(name) if rng.random() < 0.7 else cancel(name) for name in names))
    assert len(ends) == len(set(ends)) >= 20
    await engine.wait_for_requests_to_drain(10)


async def test_invalid_request_that_bypasses_the_client_ends_as_well(
    core: ThreadedCore, engine: AsyncLLM
) -> None:
    bias = params(1, logit_bias={5000: 1.0})
    for request in (AddRequest("a", [5] * 300, params(1), 0.0), AddRequest("b", [5], bias, 0.0)):
        await engine.engine_core.add_request_async(request)
    await engine.wait_for_requests_to_drain(10)
    assert (await engine.metrics())["requests_total"] == 2
    assert core.model.steps == []


async def test_answers_share_the_blocks_of_their_prompt(
    core: ThreadedCore, engine: AsyncLLM
) -> None:
    prompt = list(range(1, 42))  # 10 blocks and one token
    outputs = await read(engine.generate(prompt, params(4, n=4), "r"))
    assert reasons(outputs) == ["length"] * 4
    assert outputs[-1].num_cached_tokens == 0
    computed = [sum(step.values()) for step in core.model.steps]
    assert sum(computed) == 41 + 3 * 1 + 4 * 3  # the prompt once, then what differs
