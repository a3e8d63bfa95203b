import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from engine import async_llm as async_llm_module
from engine import client as client_module
from engine.async_llm import AsyncLLM
from engine.connection import CoreState
from engine.errors import (
    EngineDeadError,
    MaxQueuedTokensError,
    QueueOverflowError,
    RetryableRequestError,
    ValidationError,
)
from engine.ipc import Abort, AddRequest, Dead, SchedulerStats, SequenceOutput, UtilityReply
from engine.outputs import RequestOutput, RequestProgress
from engine.sampling_params import RequestOutputKind, SamplingParams
from tests.engine.scripted_core import ScriptedCore

M = TypeVar("M")

DELTA = SamplingParams(max_tokens=100, output_kind=RequestOutputKind.DELTA)
PROMPT = [40, 41, 42]
A, B, C = 67, 68, 69  # letters of the byte-level vocabulary


@pytest.fixture
async def engine(core: ScriptedCore, model: Path) -> AsyncIterator[AsyncLLM]:
    engine = AsyncLLM.connect(core.address, model=str(model))
    await engine.wait_ready(5)
    yield engine
    engine.shutdown()


async def receive(core: ScriptedCore, kind: type[M]) -> M:
    """The core's next message, without holding up the event loop."""
    return await asyncio.to_thread(core.receive, kind)


async def settle(condition: Any) -> None:
    """Give the event loop turns until something holds; fails after five seconds."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  (conditions of plain objects)
            await asyncio.sleep(0.001)


def texts(outputs: list[RequestOutput]) -> str:
    return "".join(output.outputs[0].text for output in outputs)


# ---- streaming


async def test_stream_of_deltas(engine: AsyncLLM, core: ScriptedCore) -> None:
    stream = await engine.add_request("r", {"prompt_token_ids": PROMPT, "prompt": "abc"}, DELTA)
    request = await receive(core, AddRequest)
    assert request.request_id.startswith("r-")
    assert request.prompt_token_ids == PROMPT
    core.emit(request.request_id, A)
    first = await stream.get()
    core.emit(request.request_id, B, finish="length")
    last = await stream.get()
    assert (first.outputs[0].text, last.outputs[0].text) == ("a", "b")
    assert (first.finished, last.finished, last.request_id) == (False, True, "r")
    assert (last.prompt, last.prompt_token_ids) == ("abc", PROMPT)
    assert engine.get_num_unfinished_requests() == 0


async def test_generate_yields_until_the_last_output(engine: AsyncLLM, core: ScriptedCore) -> None:
    def play(client_id: str, request: AddRequest) -> None:
        core.emit(request.request_id, A)
        core.emit(request.request_id, B)
        core.emit(request.request_id, C, finish="length")

    core.on_add = play
    outputs = [output async for output in engine.generate(PROMPT, DELTA, 7)]
    assert texts(outputs) == "abc"
    assert [output.finished for output in outputs].count(True) == 1
    assert outputs[-1].request_id == 7


async def test_text_prompt_is_tokenized(engine: AsyncLLM, core: ScriptedCore) -> None:
    await engine.add_request("short", "Hello", DELTA)
    short = await receive(core, AddRequest)
    assert short.prompt_token_ids == engine.get_tokenizer().encode("Hello")
    long_text = "Hello " * 150
    _stream = await engine.add_request("long", {"prompt": long_text, "cache_salt": "s"}, DELTA)
    assert isinstance(await receive(core, Abort), Abort)  # nobody held the first
    request = await receive(core, AddRequest)
    assert request.prompt_token_ids == engine.get_tokenizer().encode(long_text)
    assert request.cache_salt == "s"


async def test_seed_is_drawn_and_the_caller_s_parameters_stay(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    params = SamplingParams(max_tokens=5)
    streams = [await engine.add_request(name, PROMPT, params) for name in "ab"]
    seeds = [(await receive(core, AddRequest)).params.seed for _ in streams]
    assert None not in seeds and seeds[0] != seeds[1]
    assert params.seed is None


@pytest.mark.parametrize("skip_clone", [False, True])
async def test_parameters_are_copied_however_the_caller_keeps_them(
    engine: AsyncLLM, skip_clone: bool
) -> None:
    params = SamplingParams(stop=["x"], skip_clone=skip_clone)
    _stream = await engine.add_request("r", PROMPT, params)
    (state,) = engine.output_processor.find("r")
    params.stop_strings.append("y")
    assert state.params.stop == ["x"]


async def test_resumed_tokens_and_priority_go_to_the_core(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    _stream = await engine.add_request("r", PROMPT, DELTA, resume_token_ids=[A], priority=3)
    request = await receive(core, AddRequest)
    assert (request.resume_token_ids, request.priority) == ([A], 3)


async def test_resumed_text_is_without_what_ended_the_answer(engine: AsyncLLM) -> None:
    assert engine._client.ready is not None
    engine._client.ready = msgspec.structs.replace(engine._client.ready, eos_token_ids=[C])
    assert engine.resumed_text(PROMPT, DELTA, [A, B, C]) == "ab"
    params = SamplingParams(stop="bc", output_kind=RequestOutputKind.DELTA)
    assert engine.resumed_text(PROMPT, params, [A, B]) == "a"
    assert engine.resumed_text(PROMPT, params, [A, B, A]) == "aba"


async def test_stop_string_aborts_the_surplus(engine: AsyncLLM, core: ScriptedCore) -> None:
    params = SamplingParams(max_tokens=9, stop="bc", output_kind=RequestOutputKind.DELTA)
    stream = await engine.add_request("r", PROMPT, params)
    request = await receive(core, AddRequest)
    core.emit(request.request_id, A, B)
    core.emit(request.request_id, C)
    outputs = [output async for output in stream]
    assert texts(outputs) == "a"
    assert (await receive(core, Abort)) == Abort([request.request_id], reason="stop")


async def test_progress_is_told_before_the_first_token(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    told: list[RequestProgress] = []

    def play(client_id: str, request: AddRequest) -> None:
        core.emit(request.request_id, queue_position=2)
        core.emit(request.request_id, num_computed_tokens=3, scheduled_ts=1.0)
        core.emit(request.request_id, A, finish="length", num_computed_tokens=3, scheduled_ts=1.0)

    core.on_add = play
    async for _ in engine.generate(PROMPT, DELTA, "r", on_progress=told.append):
        pass
    assert told[-1] == RequestProgress(None, 3, 0, 3, True)


async def test_many_outputs_leave_the_loop_its_turns(engine: AsyncLLM, core: ScriptedCore) -> None:
    streams = [await engine.add_request(n, PROMPT, DELTA) for n in range(300)]
    requests = [await receive(core, AddRequest) for _ in streams]
    seen: list[int] = []
    core.emit_all([SequenceOutput(r.request_id, [A], "length") for r in requests])
    while engine.get_num_unfinished_requests():
        seen.append(engine.get_num_unfinished_requests())
        await asyncio.sleep(0)
    assert len(set(seen)) >= 3  # 300, 172, 44


async def test_many_answers_to_one_prompt_leave_the_loop_its_turns(
    engine: AsyncLLM, core: ScriptedCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_llm_module, "MAX_TURN_SECONDS", 0.0)
    monkeypatch.setattr(client_module, "ABORT_CONFIRM_SECONDS", 0.0)
    adding = asyncio.create_task(engine.add_request("r", PROMPT, SamplingParams(n=300)))
    num_turns = 0
    while not adding.done():
        num_turns += 1
        await asyncio.sleep(0)
    assert num_turns >= 300
    await engine.abort("r")  # and the core says nothing
    seen: list[int] = []
    while engine.get_num_unfinished_requests():
        seen.append(engine.get_num_unfinished_requests())
        await asyncio.sleep(0)
    assert len(set(seen)) >= 3  # 300, 172, 44
    last = await (await adding).get()
    assert last.finished and [each.index for each in last.outputs] == list(range(300))


async def test_answers_to_one_prompt_may_be_aborted_while_they_are_sent(
    engine: AsyncLLM, core: ScriptedCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_llm_module, "MAX_TURN_SECONDS", 0.0)
    monkeypatch.setattr(client_module, "ABORT_CONFIRM_SECONDS", 0.0)
    adding = asyncio.create_task(engine.add_request("r", PROMPT, SamplingParams(n=50)))
    for _ in range(10):
        await asyncio.sleep(0)
    await engine.abort("r")
    stream = await adding
    async with asyncio.timeout(5):
        *_, last = [output async for output in stream]
    assert {each.finish_reason for each in last.outputs} == {"abort"}
    await engine.check_health()
    num_sent = sum(isinstance(message, AddRequest) for message in core.received())
    assert 0 < num_sent < 50


# ---- refusals


@pytest.mark.parametrize(
    "prompt",
    ["", [], {"prompt_token_ids": []}, {}, None, [1000], [-1], [1, 2.5], list(range(999)) * 2],
)
async def test_impossible_prompt_is_refused(engine: AsyncLLM, prompt: Any) -> None:
    with pytest.raises(ValidationError):
        await engine.add_request("r", prompt, DELTA)
    assert engine.get_num_unfinished_requests() == 0


@pytest.mark.parametrize(
    "options",
    [
        {"prompt": {"prompt_embeds": 1}},
        {"prompt": iter("abc")},
        {"params": SamplingParams(structured_outputs={"json": "{}"})},
        {"params": SamplingParams(prompt_logprobs=1)},
        {"lora_request": object()},
        {"prompt": "x", "tokenization_kwargs": {"truncation": True}},
    ],
)
async def test_what_is_not_there_says_so(engine: AsyncLLM, options: dict[str, Any]) -> None:
    arguments = {"prompt": PROMPT, "params": DELTA, **options}
    with pytest.raises(NotImplementedError):
        await engine.add_request("r", **arguments)
    assert engine.get_num_unfinished_requests() == 0


async def test_too_many_waiting_requests_are_refused(core: ScriptedCore, model: Path) -> None:
    engine = AsyncLLM.connect(
        core.address, model=str(model), max_num_queued_reqs=1, max_num_queued_tokens=100
    )
    await engine.wait_ready(5)
    streams = [await engine.add_request(n, PROMPT, DELTA) for n in range(9)]  # 8 run, 1 waits
    with pytest.raises(QueueOverflowError) as caught:
        await engine.add_request("r", PROMPT, DELTA)
    assert caught.value.http_status == 503
    core.stats = SchedulerStats(8, 0, 101, 100, 100)
    core.emit((await receive(core, AddRequest)).request_id, A)
    await settle(lambda: engine.stats == core.stats)
    with pytest.raises(MaxQueuedTokensError):
        engine.check_admission()
    assert len(streams) == 9
    engine.shutdown()


# ---- abort


async def test_abort_acts_before_it_yields(engine: AsyncLLM, core: ScriptedCore) -> None:
    stream = await engine.add_request("r", PROMPT, DELTA)
    request = await receive(core, AddRequest)
    core.emit(request.request_id, A)
    await settle(lambda: stream.output is not None)
    abort = engine.abort("r")
    with pytest.raises(StopIteration):
        abort.send(None)
    assert engine.output_processor.find("r") == []
    assert await receive(core, Abort) == Abort([request.request_id])
    core.emit(request.request_id, B)
    core.emit(request.request_id, finish="abort", num_cached_tokens=16)
    outputs = [output async for output in stream]
    assert texts(outputs) == "a"
    last = outputs[-1]
    assert (last.outputs[0].finish_reason, last.num_cached_tokens) == ("abort", 16)
    assert last.metrics is not None and last.metrics.core_confirmed


async def test_last_output_waits_for_the_core(engine: AsyncLLM, core: ScriptedCore) -> None:
    stream = await engine.add_request("r", PROMPT, DELTA)
    request = await receive(core, AddRequest)
    await engine.abort("r")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stream.get(), 0.05)
    core.emit(request.request_id, finish="abort")
    assert (await stream.get()).finished


async def test_silent_core_is_not_waited_for(
    engine: AsyncLLM, core: ScriptedCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "ABORT_CONFIRM_SECONDS", 0.02)
    stream = await engine.add_request("r", PROMPT, DELTA)
    request = await receive(core, AddRequest)
    await engine.abort("r")
    (last,) = [output async for output in stream]
    assert last.outputs[0].finish_reason == "abort"
    assert last.metrics is not None and not last.metrics.core_confirmed
    core.emit(request.request_id, A, finish="abort")
    await engine.check_health()  # the late answer has come by now, and is dropped
    assert stream.get_nowait() is None


async def test_r2_r11_aborting_twice_unknown_ended_and_several(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    streams = {name: await engine.add_request(name, PROMPT, DELTA) for name in (1, 2, "r10")}
    requests = {r.request_id: r for r in [await receive(core, AddRequest) for _ in streams]}
    await engine.abort("nobody")
    await engine.abort("")
    await engine.abort("r1")
    await engine.abort([1, 2])
    await engine.abort([1, 2])
    for request_id in requests:
        if not request_id.startswith("r10"):
            core.emit(request_id, finish="abort")
    for name in (1, 2):
        assert [output.finished async for output in streams[name]] == [True]
    await engine.abort(1)
    await engine.check_health()
    aborts = [m for m in core.received() if isinstance(m, Abort)]
    assert sorted(i for a in aborts for i in a.request_ids) == sorted(requests)[:2]
    assert engine.get_num_unfinished_requests() == 1


async def test_abort_while_the_prompt_is_tokenized(engine: AsyncLLM, core: ScriptedCore) -> None:
    adding = asyncio.create_task(engine.add_request("r", "Hello " * 500, DELTA))
    await asyncio.sleep(0)
    await engine.abort("r")
    stream = await adding
    (last,) = [output async for output in stream]
    assert (last.outputs[0].finish_reason, last.outputs[0].token_ids) == ("abort", [])
    await engine.check_health()
    assert list(core.received()) == []  # the core never heard of it


# ---- readers that leave


async def open_requests(core: ScriptedCore) -> set[str]:
    """The requests that the core was given and was not told to end."""
    open_ids: set[str] = set()
    for message in core.received():
        if isinstance(message, AddRequest):
            open_ids.add(message.request_id)
        elif isinstance(message, Abort):
            open_ids -= set(message.request_ids)
    return open_ids


async def test_leaving_the_loop_aborts(engine: AsyncLLM, core: ScriptedCore) -> None:
    core.on_add = lambda client_id, request: core.emit(request.request_id, A)
    outputs = engine.generate(PROMPT, DELTA, "r")
    async for _ in outputs:
        break
    await outputs.aclose()
    assert engine.get_num_unfinished_requests() == 0
    await engine.check_health()
    assert await open_requests(core) == set()


async def test_stream_that_nobody_holds_is_aborted(engine: AsyncLLM, core: ScriptedCore) -> None:
    stream = await engine.add_request("r", PROMPT, DELTA)
    del stream
    gc.collect()
    assert engine.get_num_unfinished_requests() == 0
    await engine.check_health()
    assert await open_requests(core) == set()


async def test_closed_stream_is_aborted_once(engine: AsyncLLM, core: ScriptedCore) -> None:
    stream = await engine.add_request("r", PROMPT, DELTA)
    stream.close()
    stream.close()
    await engine.check_health()
    assert len([m for m in core.received() if isinstance(m, Abort)]) == 1


async def test_leaving_after_the_end_sends_nothing(engine: AsyncLLM, core: ScriptedCore) -> None:
    core.on_add = lambda client_id, request: core.emit(request.request_id, A, finish="length")
    async for _ in engine.generate(PROMPT, DELTA, "r"):
        pass
    await engine.check_health()
    assert not any(isinstance(m, Abort) for m in core.received())


# ---- the core comes, stalls, dies and comes again


async def test_engine_is_there_before_its_core(address: str, model: Path) -> None:
    states: list[CoreState] = []
    engine = AsyncLLM.connect(
        address, model=str(model), on_core_state=lambda state, reason: states.append(state)
    )
    assert not engine.is_ready and engine.core_state is CoreState.CONNECTING
    with pytest.raises(RetryableRequestError):
        await engine.add_request("r", PROMPT, DELTA)
    with pytest.raises(RetryableRequestError):
        _ = engine.model_config
    with pytest.raises(TimeoutError):
        await engine.wait_ready(0.01)
    with ScriptedCore(address):
        await engine.wait_ready(5)
        assert engine.is_ready and states == [CoreState.READY]
        assert (engine.model_config.max_model_len, engine.ready.num_blocks) == (1000, 100)
        engine.shutdown()


async def test_dead_core_ends_every_stream_that_is_not_resubmitted(
    address: str, model: Path
) -> None:
    reasons: list[tuple[CoreState, str]] = []
    engine = AsyncLLM.connect(
        address,
        model=str(model),
        resubmit=False,
        on_core_state=lambda *state: reasons.append(state),
    )
    with ScriptedCore(address) as first:
        await engine.wait_ready(5)
        streams = [await engine.add_request(n, PROMPT, DELTA) for n in range(3)]
        aborted = await engine.add_request("aborted", PROMPT, DELTA)
        await engine.abort("aborted")
        await asyncio.to_thread(first.kill)
        for stream in streams:
            with pytest.raises(EngineDeadError):
                await stream.get()
        (last,) = [output async for output in aborted]
        assert last.outputs[0].finish_reason == "abort"
    assert not engine.errored and not engine.is_ready
    with pytest.raises(RetryableRequestError):
        await engine.add_request("r", PROMPT, DELTA)
    with pytest.raises(EngineDeadError):
        await engine.metrics()
    with ScriptedCore(address, epoch=2) as second:
        await engine.wait_ready(5)
        second.on_add = lambda client_id, request: second.emit(
            request.request_id, A, finish="length"
        )
        assert texts([output async for output in engine.generate(PROMPT, DELTA, "r")]) == "a"
        engine.shutdown()
    assert [state for state, _ in reasons[:3]] == [
        CoreState.READY,
        CoreState.DEAD,
        CoreState.READY,
    ]


async def test_core_s_last_words_are_the_reason(core: ScriptedCore, model: Path) -> None:
    engine = AsyncLLM.connect(core.address, model=str(model), resubmit=False)
    await engine.wait_ready(5)
    stream = await engine.add_request("r", PROMPT, DELTA)
    request = await receive(core, AddRequest)
    core.emit(request.request_id, A)
    core.send(Dead("out of luck"))
    with pytest.raises(EngineDeadError, match="out of luck"):
        while True:
            await stream.get()
    engine.shutdown()


async def test_e11_outputs_of_another_epoch_are_dropped(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    stream = await engine.add_request("r", PROMPT, DELTA)
    request = await receive(core, AddRequest)
    core.emit_all([SequenceOutput(request.request_id, [A], "length")], epoch=99)
    core.emit(request.request_id, B, finish="length")
    assert texts([output async for output in stream]) == "b"


async def test_stalled_core_is_noticed_and_its_return_too(core: ScriptedCore, model: Path) -> None:
    states: list[CoreState] = []
    engine = AsyncLLM.connect(
        core.address,
        model=str(model),
        on_core_state=lambda state, reason: states.append(state),
        stall_seconds=0.1,
    )
    await engine.wait_ready(5)
    core.loop_age_seconds = 10.0
    await settle(lambda: engine.core_state is CoreState.STALLED)
    assert not engine.is_ready
    core.loop_age_seconds = 0.0
    await engine.wait_ready(5)
    core.is_silent = True  # as after SIGSTOP
    await settle(lambda: engine.core_state is CoreState.STALLED)
    with pytest.raises(EngineDeadError, match="not answered"):
        await engine.check_health()
    core.is_silent = False
    await engine.wait_ready(5)
    await engine.check_health()
    ready, stalled = CoreState.READY, CoreState.STALLED
    assert states == [ready, stalled, ready, stalled, ready]
    engine.shutdown()


async def test_utilities_and_load_are_known(engine: AsyncLLM, core: ScriptedCore) -> None:
    assert await engine.metrics() == {"num_running": 0}
    await engine.check_health()
    core.stats = SchedulerStats(1, 2, 3, 4, 5)
    stream = await engine.add_request("r", PROMPT, DELTA)
    core.emit((await receive(core, AddRequest)).request_id, A)
    await stream.get()
    assert engine.stats == core.stats


async def test_shutdown_ends_streams_and_everything_after_it(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    stream = await engine.add_request("r", PROMPT, DELTA)
    request = await receive(core, AddRequest)
    engine.shutdown()
    engine.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        await stream.get()
    with pytest.raises(EngineDeadError):
        await engine.add_request("r", PROMPT, DELTA)
    with pytest.raises(EngineDeadError):
        await engine.check_health()
    with pytest.raises(EngineDeadError):
        await engine.wait_ready()
    assert engine.errored and engine.is_stopped and not engine.is_running
    assert await receive(core, Abort) == Abort([request.request_id])


async def test_a_second_event_loop_is_refused_while_the_first_works(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    outputs = engine.generate(PROMPT, DELTA, "r")
    first = asyncio.create_task(anext(outputs))
    request = await receive(core, AddRequest)
    with pytest.raises(RuntimeError, match="another event loop"):
        await asyncio.to_thread(lambda: asyncio.run(engine.check_health()))
    core.emit(request.request_id, A, finish="length")
    assert (await first).outputs[0].finish_reason == "length"


def test_engine_may_move_to_another_event_loop(core: ScriptedCore, model: Path) -> None:
    engine = AsyncLLM.connect(core.address, model=str(model))
    core.on_add = lambda client_id, request: core.emit(request.request_id, A, finish="length")

    async def ask() -> str:
        await engine.wait_ready(5)
        return texts([output async for output in engine.generate(PROMPT, DELTA, "r")])

    assert [asyncio.run(ask()), asyncio.run(ask())] == ["a", "a"]
    engine.shutdown()


def test_reply_to_a_call_of_a_loop_that_has_ended_is_dropped(
    core: ScriptedCore, model: Path
) -> None:
    engine = AsyncLLM.connect(core.address, model=str(model))
    connection = engine._client.connection
    problems: list[dict[str, Any]] = []

    async def ask_and_leave() -> None:
        await engine.wait_ready(5)
        connection.call("nothing that this core answers")

    async def go_on() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, each: problems.append(each))
        await engine.start_background_loop()
        core.send_to(connection.client_id, UtilityReply(1, "late"))
        await engine.check_health()

    asyncio.run(ask_and_leave())
    asyncio.run(go_on())
    engine.shutdown()
    assert problems == []
