"""`AsyncLLM` asks a core: what it sends, what it yields, and what it refuses."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.client import async_llm as async_llm_module
from engine.client.async_llm import AsyncLLM
from engine.client.parsing.marks import AddedToken, Marks
from engine.client.requests import core_client as client_module
from engine.client.requests.core_connection import CoreConnection
from engine.errors import MaxQueuedTokensError, QueueOverflowError, ValidationError
from engine.ipc import Abort, AddRequest, SchedulerStats, SequenceOutput, UtilityReply
from engine.outputs import RequestProgress
from engine.sampling_params import RequestOutputKind, SamplingParams
from tests.engine.helpers.connected_engine import DELTA, PROMPT, A, B, C, receive, settle, texts
from tests.engine.helpers.connected_engine import engine as engine  # the fixture
from tests.engine.helpers.scripted_core import ScriptedCore
from tests.helpers.patience import PATIENCE


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


async def test_an_answers_format_may_be_named(engine: AsyncLLM) -> None:
    assert engine.answer_grammar.format.name == "think"
    assert engine.prompt_end([A, B], Marks()) == "ab"
    named = AsyncLLM.connect("ipc://x", model="", tokenizer=engine.tokenizer, answer_format="glm")
    try:
        assert named.answer_grammar.format.name == "glm"
    finally:
        named.shutdown()
    with pytest.raises(ValidationError, match="must be one of hermes"):
        AsyncLLM.connect("x", model="", tokenizer=engine.tokenizer, answer_format="yaml")


async def test_resumed_text_has_marks_if_the_request_has(engine: AsyncLLM) -> None:
    assert engine._client.ready is not None
    engine._client.ready = msgspec.structs.replace(engine._client.ready, eos_token_ids=[B, C])
    marks = Marks([AddedToken(B, "<b>", False)], ["<b>"])
    assert engine.resumed_text(PROMPT, DELTA, [A, B, A], marks) == f"a{marks.characters[B]}a"
    assert engine.resumed_text(PROMPT, DELTA, [A, B], marks) == f"a{marks.characters[B]}"
    assert engine.resumed_text(PROMPT, DELTA, [A, C], marks) == "a"


@pytest.mark.parametrize("params", [SamplingParams(n=2), SamplingParams(detokenize=False)])
async def test_marks_need_one_answer_with_a_text(engine: AsyncLLM, params: SamplingParams) -> None:
    with pytest.raises(ValidationError, match="needs n = 1"):
        await engine.add_request("r", PROMPT, params, marks=Marks())
    with pytest.raises(ValidationError, match="must be Marks"):
        wrong: Any = "<b>"
        await engine.add_request("r", PROMPT, DELTA, marks=wrong)


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


async def test_progress_is_reported_before_the_first_token(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    reported: list[RequestProgress] = []

    def play(client_id: str, request: AddRequest) -> None:
        core.emit(request.request_id, queue_position=2)
        core.emit(request.request_id, num_computed_tokens=3, scheduled_ts=1.0)
        core.emit(request.request_id, A, finish="length", num_computed_tokens=3, scheduled_ts=1.0)

    core.on_add = play
    async for _ in engine.generate(PROMPT, DELTA, "r", on_progress=reported.append):
        pass
    assert reported[-1] == RequestProgress(None, 3, 0, 3, True)


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
    await engine.wait_ready(PATIENCE)
    streams = [await engine.add_request(n, PROMPT, DELTA) for n in range(9)]  # 8 run, 1 waits
    with pytest.raises(QueueOverflowError) as caught:
        await engine.add_request("r", PROMPT, DELTA)
    assert caught.value.http_status == 503
    streams.append(await engine.add_request("promised", PROMPT, DELTA, is_admitted=True))
    requests = [await receive(core, AddRequest) for _ in streams]
    assert [request.is_admitted for request in requests] == [False] * 9 + [True]  # so there, too
    core.stats = SchedulerStats(8, 0, 101, 100, 100)
    core.emit(requests[0].request_id, A)
    await settle(lambda: engine.stats == core.stats)
    with pytest.raises(MaxQueuedTokensError):
        engine.check_admission()
    assert len(streams) == 10
    engine.shutdown()


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
        await engine.wait_ready(PATIENCE)
        return texts([output async for output in engine.generate(PROMPT, DELTA, "r")])

    assert [asyncio.run(ask()), asyncio.run(ask())] == ["a", "a"]
    engine.shutdown()


def test_reply_to_a_call_of_a_loop_that_has_ended_is_dropped(
    core: ScriptedCore, model: Path
) -> None:
    engine = AsyncLLM.connect(core.address, model=str(model))
    connection = engine._client.link
    assert isinstance(connection, CoreConnection)
    problems: list[dict[str, Any]] = []

    async def ask_and_leave() -> None:
        await engine.wait_ready(PATIENCE)
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
