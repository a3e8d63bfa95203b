import asyncio
import contextlib
import gc
import time
from typing import Any, TypeVar

import pytest

from engine.client.async_llm import AsyncLLM
from engine.errors import EngineDeadError, EngineGenerateError, ValidationError
from engine.ipc import Abort, AddRequest
from engine.outputs import RequestOutput
from engine.sampling_params import RequestOutputKind, SamplingParams
from engine.scaffolding import request_manager as request_manager_module
from engine.scaffolding.request_manager import RequestManager, RequestStatus, stream_generate
from tests.engine.helpers.scripted_core import ScriptedCore
from tests.helpers.patience import PATIENCE

M = TypeVar("M")

PROMPT = [40, 41, 42]
A, B, C = 67, 68, 69  # letters of the byte-level vocabulary
PARAMS = SamplingParams(max_tokens=50)


@pytest.fixture
def manager(engine: AsyncLLM) -> RequestManager:
    return RequestManager(engine)


async def receive(core: ScriptedCore, kind: type[M]) -> M:
    """The core's next message, without holding up the event loop."""
    return await asyncio.to_thread(core.receive, kind)


async def add(manager: RequestManager, core: ScriptedCore, request_id: Any, **more: Any) -> str:
    """Add a request; its internal id, once the core has it."""
    await manager.add_request(request_id, PROMPT, PARAMS, **more)
    return (await receive(core, AddRequest)).request_id


async def becomes(manager: RequestManager, request_id: Any, status: RequestStatus) -> None:
    """Wait for a status; fails after five seconds."""
    async with asyncio.timeout(PATIENCE):
        while await manager.get_request_status(request_id) is not status:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def read(manager: RequestManager, request_id: Any) -> list[RequestOutput]:
    return [output async for output in manager.stream(request_id)]


# ---- statuses


def test_statuses_are_strings() -> None:
    assert [str(status.value) for status in RequestStatus] == [
        "waiting",
        "running",
        "completed",
        "cancelled",
        "failed",
    ]
    assert RequestStatus("waiting") == "waiting"


async def test_a_request_waits_runs_and_completes(
    manager: RequestManager, core: ScriptedCore
) -> None:
    request_id = await add(manager, core, "r")
    assert await manager.get_request_status("r") is RequestStatus.WAITING
    core.emit(request_id, queue_position=2)
    assert await manager.get_request_status("r") is RequestStatus.WAITING
    core.emit(request_id, num_computed_tokens=2, scheduled_ts=1.0)  # its prompt is being read
    await becomes(manager, "r", RequestStatus.RUNNING)
    core.emit(request_id, A)
    core.emit(request_id, B, finish="length")
    await becomes(manager, "r", RequestStatus.COMPLETED)


async def test_a_preempted_request_is_running(manager: RequestManager, core: ScriptedCore) -> None:
    request_id = await add(manager, core, "r")
    core.emit(request_id, A, scheduled_ts=1.0)
    await becomes(manager, "r", RequestStatus.RUNNING)
    core.emit(request_id, queue_position=0, num_preemptions=1, scheduled_ts=1.0)
    core.emit(request_id, B, num_preemptions=1, scheduled_ts=1.0)
    stream = manager.stream("r")
    async with contextlib.aclosing(stream):
        while len((await anext(stream)).outputs[0].token_ids) < 2:
            pass
    assert await manager.get_request_status("r") is RequestStatus.RUNNING


async def test_an_aborted_request_is_cancelled_at_once(
    manager: RequestManager, core: ScriptedCore
) -> None:
    request_id = await add(manager, core, 0)
    await manager.abort_request(0)
    assert await manager.get_request_status(0) is RequestStatus.CANCELLED
    assert (await receive(core, Abort)).request_ids == [request_id]
    core.emit(request_id, finish="abort")
    (last,) = await read(manager, 0)
    assert (last.request_id, last.outputs[0].finish_reason) == (0, "abort")
    assert await manager.get_request_status(0) is RequestStatus.CANCELLED


async def test_abort_of_the_unknown_and_the_ended_does_nothing(
    manager: RequestManager, core: ScriptedCore
) -> None:
    core.on_add = lambda client_id, request: core.emit(request.request_id, A, finish="stop")
    await add(manager, core, "r")
    await becomes(manager, "r", RequestStatus.COMPLETED)
    await manager.abort_request("r")
    await manager.abort_request("never added")
    assert await manager.get_request_status("r") is RequestStatus.COMPLETED


async def test_a_request_that_ends_with_an_error_has_failed(
    manager: RequestManager, core: ScriptedCore
) -> None:
    request_id = await add(manager, core, "r")
    core.emit(request_id, finish="error", error=("boom", "it broke"))
    await becomes(manager, "r", RequestStatus.FAILED)
    (last,) = await read(manager, "r")
    assert last.error is not None and last.error.message == "it broke"


async def test_the_core_s_death_fails_what_was_open(
    manager: RequestManager, core: ScriptedCore
) -> None:
    await add(manager, core, "r")
    core.kill()
    await becomes(manager, "r", RequestStatus.FAILED)
    with pytest.raises(EngineDeadError):
        await read(manager, "r")
    assert await manager.get_request_status("r") is RequestStatus.FAILED


async def test_an_unknown_id_is_a_key_error(manager: RequestManager) -> None:
    with pytest.raises(KeyError):
        await manager.get_request_status("nobody")


# ---- what is kept


async def test_the_last_ended_requests_stay_known(
    manager: RequestManager, core: ScriptedCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_manager_module, "NUM_ENDED_KEPT", 2)
    core.on_add = lambda client_id, request: core.emit(request.request_id, A, finish="stop")
    for number in range(4):
        await add(manager, core, number)
        await becomes(manager, number, RequestStatus.COMPLETED)
    core.on_add = None
    await add(manager, core, "open")
    for number in (0, 1):
        with pytest.raises(KeyError):
            await manager.get_request_status(number)
    for number in (2, 3):
        assert await manager.get_request_status(number) is RequestStatus.COMPLETED
    assert await manager.get_request_status("open") is RequestStatus.WAITING


async def test_an_id_may_be_used_again_after_its_end(
    manager: RequestManager, core: ScriptedCore
) -> None:
    await add(manager, core, "r")
    await manager.abort_request("r")
    await receive(core, Abort)
    with_new_id = await add(manager, core, "r")
    assert await manager.get_request_status("r") is RequestStatus.WAITING
    core.emit(with_new_id, A, finish="length")
    await becomes(manager, "r", RequestStatus.COMPLETED)


async def test_an_id_in_use_is_refused_and_its_request_goes_on(
    manager: RequestManager, core: ScriptedCore
) -> None:
    request_id = await add(manager, core, "r")
    with pytest.raises(ValidationError, match="open already"):
        await manager.add_request("r", PROMPT, PARAMS)
    core.emit(request_id, A, finish="length")
    await becomes(manager, "r", RequestStatus.COMPLETED)


async def test_the_request_is_known_as_it_was_added(
    manager: RequestManager, core: ScriptedCore
) -> None:
    before = time.time()
    await add(manager, core, "now")
    await add(manager, core, "then", arrival_time=12.5)
    request = manager.get_request("then")
    assert (request.request_id, request.prompt, request.arrival_time) == ("then", PROMPT, 12.5)
    assert (request.sampling_params, request.lora_request) == (PARAMS, None)
    assert manager.get_request("now").arrival_time >= before


async def test_a_manager_that_is_dropped_aborts_what_is_open(
    engine: AsyncLLM, core: ScriptedCore
) -> None:
    manager = RequestManager(engine)
    request_id = await add(manager, core, "r")
    del manager
    gc.collect()
    assert (await receive(core, Abort)).request_ids == [request_id]


# ---- reading


async def test_a_stream_that_is_left_goes_on_in_the_next(
    manager: RequestManager, core: ScriptedCore
) -> None:
    request_id = await add(manager, core, "r")
    core.emit(request_id, A)
    async with contextlib.aclosing(manager.stream("r")) as stream:
        first = await anext(stream)
    core.emit(request_id, B, finish="length")
    (last,) = await read(manager, "r")
    assert (first.outputs[0].text, last.outputs[0].text) == ("a", "ab")
    assert await read(manager, "r") == []  # nothing is left


# ---- stream_generate


async def test_every_reader_of_a_request_ends(manager: RequestManager, core: ScriptedCore) -> None:
    request_id = await add(manager, core, "r")
    readers = asyncio.gather(read(manager, "r"), read(manager, "r"))
    core.emit(request_id, A)
    core.emit(request_id, B, finish="length")
    async with asyncio.timeout(PATIENCE):
        outputs = [output for each in await readers for output in each]
    assert [output.finished for output in outputs].count(True) == 1
    assert await read(manager, "r") == []


@pytest.mark.parametrize("kind", list(RequestOutputKind))
async def test_text_comes_in_pieces_for_any_output_kind(
    engine: AsyncLLM, core: ScriptedCore, kind: RequestOutputKind
) -> None:
    params = SamplingParams(max_tokens=50, output_kind=kind)
    stream = stream_generate(engine, {"prompt_token_ids": PROMPT}, params, "r")
    first = asyncio.create_task(anext(stream))
    request_id = (await receive(core, AddRequest)).request_id
    core.emit(request_id, A)
    pieces = [await first]
    core.emit(request_id, B)
    core.emit(request_id, C, finish="length")
    pieces += [piece async for piece in stream]
    assert pieces[0] == "a" and "".join(pieces) == "abc" and "" not in pieces
    assert params.output_kind is kind


async def test_leaving_the_text_aborts_the_request(engine: AsyncLLM, core: ScriptedCore) -> None:
    core.on_add = lambda client_id, request: core.emit(request.request_id, A)
    async with contextlib.aclosing(stream_generate(engine, PROMPT, PARAMS, "r")) as stream:
        assert await anext(stream) == "a"
    request = await receive(core, AddRequest)
    assert (await receive(core, Abort)).request_ids == [request.request_id]


async def test_text_of_an_aborted_request_just_ends(engine: AsyncLLM, core: ScriptedCore) -> None:
    core.on_add = lambda client_id, request: core.emit(request.request_id, A, finish="abort")
    assert [piece async for piece in stream_generate(engine, PROMPT, PARAMS, "r")] == ["a"]


async def test_text_of_a_failed_request_raises(engine: AsyncLLM, core: ScriptedCore) -> None:
    def play(client_id: str, request: AddRequest) -> None:
        core.emit(request.request_id, finish="error", error=("boom", "it broke"))

    core.on_add = play
    with pytest.raises(EngineGenerateError, match="it broke"):
        await anext(stream_generate(engine, PROMPT, PARAMS, "r"))


async def test_several_answers_are_no_stream_of_text(engine: AsyncLLM) -> None:
    with pytest.raises(ValidationError, match="n must be 1"):
        await anext(stream_generate(engine, PROMPT, SamplingParams(n=2), "r"))
