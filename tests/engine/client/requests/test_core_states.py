"""The core comes, stalls, dies and comes again, as `AsyncLLM` sees it; and its own shutdown."""

import asyncio
from pathlib import Path

import pytest

from engine.client.async_llm import AsyncLLM
from engine.client.requests.core_connection import HELLO_SECONDS, CoreConnection
from engine.client.requests.core_link import CoreState
from engine.errors import EngineDeadError, RetryableRequestError
from engine.ipc import Abort, AddRequest, Dead, SchedulerStats, SequenceOutput
from tests.engine.helpers.connected_engine import DELTA, PROMPT, A, B, receive, settle, texts
from tests.engine.helpers.connected_engine import engine as engine  # the fixture
from tests.engine.helpers.scripted_core import ScriptedCore
from tests.helpers.patience import PATIENCE


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
        await engine.wait_ready(PATIENCE)
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
        await engine.wait_ready(PATIENCE)
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
        await engine.wait_ready(PATIENCE)
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


async def test_the_next_core_is_greeted_at_once_and_not_when_a_ping_is_due(
    core: ScriptedCore, model: Path
) -> None:
    died = asyncio.Event()
    engine = AsyncLLM.connect(
        core.address,
        model=str(model),
        on_core_state=lambda state, reason: died.set() if state is CoreState.DEAD else None,
    )
    await engine.wait_ready(PATIENCE)
    await asyncio.to_thread(core.kill)
    await died.wait()
    link = engine._client.link
    assert isinstance(link, CoreConnection)
    timer = link._timer
    assert timer is not None
    assert timer.when() - asyncio.get_running_loop().time() <= HELLO_SECONDS
    engine.shutdown()


async def test_core_s_last_words_are_the_reason(core: ScriptedCore, model: Path) -> None:
    engine = AsyncLLM.connect(core.address, model=str(model), resubmit=False)
    await engine.wait_ready(PATIENCE)
    stream = await engine.add_request("r", PROMPT, DELTA)
    request = await receive(core, AddRequest)
    core.emit(request.request_id, A)
    core.send(Dead("out of luck"))
    with pytest.raises(EngineDeadError, match="out of luck"):
        while True:
            await stream.get()
    engine.shutdown()


@pytest.mark.row("E11")
async def test_outputs_of_another_epoch_are_dropped(engine: AsyncLLM, core: ScriptedCore) -> None:
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
    await engine.wait_ready(PATIENCE)
    core.loop_age_seconds = 10.0
    await settle(lambda: engine.core_state is CoreState.STALLED)
    assert not engine.is_ready
    core.loop_age_seconds = 0.0
    await engine.wait_ready(PATIENCE)
    core.is_silent = True  # as after SIGSTOP
    await settle(lambda: engine.core_state is CoreState.STALLED)
    with pytest.raises(EngineDeadError, match="not answered"):
        await engine.check_health()
    core.is_silent = False
    await engine.wait_ready(PATIENCE)
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
