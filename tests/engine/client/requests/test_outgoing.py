"""Nothing that one caller gives makes the core give up the client, and with it everybody else."""

import asyncio
import datetime
import decimal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.client.async_llm import AsyncLLM
from engine.client.requests.outgoing import check_readable, check_request, pack
from engine.core.scheduling.sequence import SampledToken
from engine.errors import ValidationError
from engine.ipc import MAX_MESSAGE_BYTES, AddRequest, Ping, Utility, encode
from engine.sampling_params import RequestOutputKind, SamplingParams
from tests.engine.helpers.fakes import FakeModel
from tests.engine.helpers.threaded_core import ThreadedCore
from tests.helpers.patience import PATIENCE

PROMPT = [97, 98]
LONG = "x" * (MAX_MESSAGE_BYTES + 1)
NOT_SENDABLE = "\ud800"

WRONG: list[tuple[str, Any]] = [
    *(("priority", value) for value in (1.5, None, True, "high", 1 << 70, 2.0)),
    *(("arrival_time", value) for value in (datetime.datetime.now(), decimal.Decimal(5), "now")),
    ("arrival_time", float("nan")),
    *(("resume_token_ids", value) for value in ([5.0], [True], ["a"], 5, [1 << 70], [None])),
    *(("request_id", value) for value in (LONG, "x" * 1025, NOT_SENDABLE)),
    *(("prompt_token_ids", value) for value in ([1.0], 5, [[1]], ["a"])),
    ("prompt_text", 5),
    ("prompt_text", NOT_SENDABLE),
    ("on_progress", 5),
    *(("tokenization_kwargs", value) for value in (5, {"add_special_tokens": False})),
]
PROMPTS: list[Any] = [
    NOT_SENDABLE,
    {"prompt": "a", "cachesalt": "b"},
    {"prompt": "a", "cache_salt": 0},
    {"prompt": "a", "cache_salt": NOT_SENDABLE},
    {"prompt": "a", "cache_salt": LONG},
    {"prompt_token_ids": "ab"},
]
ANYTHING: list[Any] = [
    *(None, True, 0, -1, 1, 1.5, float("nan"), 1 << 70, "text", NOT_SENDABLE, b"bytes"),
    *([], [1.5], ["a"], [[1]], [None], (1,), {}, {1: 2}, {"a": 1}, {"a": object()}, {1}, object()),
    *(datetime.datetime.now(), decimal.Decimal(5), iter([1])),
]
REFUSALS = (ValidationError, NotImplementedError)


@pytest.fixture(scope="module")
def shared_core() -> Iterator[ThreadedCore]:
    with ThreadedCore(num_blocks=500) as core:
        yield core


@pytest.fixture
async def engine(shared_core: ThreadedCore, model: Path) -> AsyncIterator[AsyncLLM]:
    engine = AsyncLLM.connect(shared_core.address, model=str(model), resubmit=False)
    await engine.wait_ready(PATIENCE)
    yield engine
    engine.shutdown()


async def read_to_the_end(stream: Any) -> str | None:
    async with asyncio.timeout(PATIENCE):
        *_, last = [output async for output in stream]
    reason: str | None = last.outputs[0].finish_reason
    return reason


async def check_bystander(engine: AsyncLLM, bystander: Any) -> None:
    """Somebody else's stream ends as it should, under a core that never gave us up."""
    assert await read_to_the_end(bystander) == "length"
    assert not engine.errored and engine.core_state == "ready"
    assert engine.get_num_unfinished_requests() == 0


@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda value: repr(value)[:20])
async def test_wrong_argument_is_refused_by_name_and_harms_nobody(
    engine: AsyncLLM, name: str, value: Any
) -> None:
    bystander = await engine.add_request("other", PROMPT, SamplingParams(max_tokens=3))
    arguments = {"request_id": "r", "prompt": PROMPT, "params": SamplingParams(), name: value}
    with pytest.raises(ValidationError) as caught:
        await engine.add_request(**arguments)
    assert caught.value.parameter == name
    await check_bystander(engine, bystander)


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: repr(prompt)[:30])
async def test_wrong_prompt_harms_nobody(engine: AsyncLLM, prompt: Any) -> None:
    bystander = await engine.add_request("other", PROMPT, SamplingParams(max_tokens=3))
    with pytest.raises(ValidationError):
        await engine.add_request("r", prompt, SamplingParams())
    await check_bystander(engine, bystander)


@pytest.mark.parametrize("name", SamplingParams.__struct_fields__)
async def test_parameter_of_any_type_is_refused_or_served(engine: AsyncLLM, name: str) -> None:
    bystander = await engine.add_request("other", PROMPT, SamplingParams(max_tokens=3))
    for number, value in enumerate(ANYTHING):
        for params in (_built(name, value), _changed(name, value)):
            if params is None:
                continue
            try:
                stream = await engine.add_request(f"{name}-{number}", PROMPT, params)
            except REFUSALS:
                continue
            stream.close()
    await engine.check_health()
    await check_bystander(engine, bystander)


def _built(name: str, value: Any) -> SamplingParams | None:
    try:
        return SamplingParams(**{"max_tokens": 3, "skip_clone": True, name: value})
    except REFUSALS:
        return None


def _changed(name: str, value: Any) -> SamplingParams:
    """Set after construction, where nothing checks it."""
    params = SamplingParams(max_tokens=3, skip_clone=True)
    setattr(params, name, value)
    return params


@pytest.mark.parametrize("name", ["priority", "arrival_time", "resume_token_ids", "request_id"])
async def test_argument_of_any_type_is_refused_or_served(engine: AsyncLLM, name: str) -> None:
    bystander = await engine.add_request("other", PROMPT, SamplingParams(max_tokens=3))
    for value in ANYTHING:
        arguments = {"request_id": "r", "prompt": PROMPT, "params": SamplingParams(max_tokens=2)}
        try:
            stream = await engine.add_request(**{**arguments, name: value})
        except REFUSALS:
            continue
        stream.close()
    await engine.check_health()
    await check_bystander(engine, bystander)


async def test_request_that_is_too_long_for_a_message_is_refused(engine: AsyncLLM) -> None:
    bystander = await engine.add_request("other", PROMPT, SamplingParams(max_tokens=3))
    with pytest.raises(ValidationError, match="at most"):
        await engine.add_request("r", PROMPT, SamplingParams(stop=[LONG]))
    await check_bystander(engine, bystander)


@pytest.mark.parametrize("value", [LONG, object(), NOT_SENDABLE], ids=["long", "object", "half"])
async def test_extra_args_of_any_content_stay_with_the_caller(engine: AsyncLLM, value: Any) -> None:
    params = SamplingParams(max_tokens=2, extra_args={"held": [value]})
    outputs = [output async for output in engine.generate(PROMPT, params, "r")]
    assert outputs[-1].outputs[0].finish_reason == "length"
    assert params.extra_args is not None and params.extra_args["held"][0] is value


@pytest.mark.parametrize(
    "argument", [LONG, object(), 1 << 70, NOT_SENDABLE], ids=["long", "object", "big", "surrogate"]
)
async def test_call_that_cannot_be_sent_is_refused(engine: AsyncLLM, argument: Any) -> None:
    bystander = await engine.add_request("other", PROMPT, SamplingParams(max_tokens=3))
    with pytest.raises(ValidationError) as caught:
        await engine.collective_rpc("method", args=(argument,))
    assert caught.value.parameter == "args"
    await check_bystander(engine, bystander)


async def test_request_past_all_checks_is_still_checked(engine: AsyncLLM) -> None:
    wrong: Any = [1.5]
    request = AddRequest("r", wrong, SamplingParams(seed=1), 0.0)
    with pytest.raises(ValidationError) as caught:
        await engine.engine_core.add_request_async(request)
    assert caught.value.parameter == "prompt_token_ids"


def test_unreadable_message_names_the_field() -> None:
    wrong: Any = "now"
    with pytest.raises(ValidationError) as caught:
        check_request(AddRequest("r", [1], SamplingParams(), wrong))
    assert caught.value.parameter == "arrival_time"
    params = SamplingParams()
    params.ignore_eos = wrong
    with pytest.raises(ValidationError) as caught:
        check_request(AddRequest("r", [1], params, 0.0))
    assert caught.value.parameter == "ignore_eos"
    with pytest.raises(ValidationError):
        check_readable(Utility(wrong, "name"))


def test_longest_message_is_sent_and_one_byte_more_is_not() -> None:
    overhead = len(pack(Utility(1, "x", [LONG[:-1000]]))) - (len(LONG) - 1000)
    longest = LONG[: MAX_MESSAGE_BYTES - overhead]
    assert len(pack(Utility(1, "x", [longest]))) == MAX_MESSAGE_BYTES
    with pytest.raises(ValidationError):
        pack(Utility(1, "x", [longest + "x"]))
    pack(Ping(1))


def test_checking_a_request_costs_little() -> None:
    request = AddRequest("r" * 40, list(range(1000)), SamplingParams(stop=["a"], seed=1), 0.0)
    times = []
    for _ in range(200):
        started = time.process_time()
        check_request(request)
        times.append(time.process_time() - started)
    assert min(times) < 50e-6


async def test_outputs_do_not_share_the_prompt_with_what_is_sent_again(engine: AsyncLLM) -> None:
    params = SamplingParams(max_tokens=3, output_kind=RequestOutputKind.DELTA)
    given = [97, 98]
    stream = await engine.add_request("r", given, params)
    (state,) = engine.output_processor.request_states.values()
    given.clear()
    first = await stream.get()
    assert first.prompt_token_ids == [97, 98]
    first.prompt_token_ids.clear()
    assert state.submission is not None
    assert state.submission.request.prompt_token_ids == state.prompt_token_ids == [97, 98]


async def test_steps_of_more_than_a_messages_limit_arrive(model: Path) -> None:
    """The client trusts its core: what one step says of all streams may be of any length."""
    whole = [(i, -1.0 - i, i) for i in range(150_000)]
    num_streams = 1 + MAX_MESSAGE_BYTES // len(encode(whole))
    params = SamplingParams(max_tokens=1, logprobs=1)
    fake = FakeModel(lambda sequence: SampledToken(5, whole))
    with ThreadedCore(fake, max_num_batched_tokens=2000) as core:
        engine = AsyncLLM.connect(core.address, model=str(model), resubmit=False)
        await engine.wait_ready(PATIENCE)
        core.hold()
        streams = [await engine.add_request(n, PROMPT, params) for n in range(num_streams)]
        core.release()
        for stream in streams:
            async with asyncio.timeout(PATIENCE):
                (output,) = [output async for output in stream]
            (position,) = output.outputs[0].logprobs or []
            assert output.finished and len(position) == 150_000
        await engine.check_health()
        engine.shutdown()
