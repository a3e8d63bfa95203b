"""Aborts on the client's side: by call, and by readers that leave; each is sent at once, and once.

The core is scripted. What it does with an abort is tested in
tests/engine/core/scheduling/test_scheduled_aborts.py, both halves together in
`test_request_lifecycle.py`. A user's stop, which leads to an abort, is the server's.
"""

import asyncio
import gc

import pytest

from engine.client import async_llm as async_llm_module
from engine.client.async_llm import AsyncLLM
from engine.client.requests import core_client as client_module
from engine.ipc import Abort, AddRequest
from engine.sampling_params import SamplingParams
from tests.engine.helpers.connected_engine import DELTA, PROMPT, A, B, receive, settle, texts
from tests.engine.helpers.connected_engine import engine as engine  # the fixture
from tests.engine.helpers.scripted_core import ScriptedCore
from tests.helpers.patience import PATIENCE


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
    async with asyncio.timeout(PATIENCE):
        *_, last = [output async for output in stream]
    assert {each.finish_reason for each in last.outputs} == {"abort"}
    await engine.check_health()
    num_sent = sum(isinstance(message, AddRequest) for message in core.received())
    assert 0 < num_sent < 50


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


async def test_aborts_of_several_and_twice_and_of_unknown_ids_end_each_request_once(
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


async def open_requests(core: ScriptedCore) -> set[str]:
    """The requests that the core was given and not asked to end."""
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
