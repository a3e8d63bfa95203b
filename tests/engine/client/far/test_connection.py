"""A client and a core on two machines: what breaks between them, and what becomes of answers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.client.async_llm import AsyncLLM
from engine.client.far import connection
from engine.client.far.connection import CoreRefusal, FarCoreConnection
from engine.client.requests.core_link import CoreState, Exactness
from engine.errors import EngineGenerateError, EngineStartError, ValidationError
from engine.far.keys import make_keys, trust
from engine.far.sizes import MAX_OTHER_BYTES
from engine.grammar.params import StructuredOutputsParams
from engine.ipc import Ready
from engine.lora import LoRARequest
from engine.sampling_params import RequestOutputKind, SamplingParams
from tests.engine.helpers.connected_engine import settle
from tests.engine.helpers.far.machines import Machines, Net
from tests.engine.helpers.threaded_core import ThreadedCore
from tests.helpers.patience import PATIENCE

PROMPT = [1, 2, 3]
QUICK = {"stall_seconds": 0.1, "silent_seconds": 0.3}


def params(num_tokens: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=num_tokens, temperature=0.0, output_kind=RequestOutputKind.DELTA
    )


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


@pytest.fixture
def core(machines: Machines) -> Iterator[ThreadedCore]:
    with machines.core() as core:
        yield core


@asynccontextmanager
async def joined(
    machines: Machines, model: Path, address: str = "", **options: Any
) -> AsyncIterator[AsyncLLM]:
    link = FarCoreConnection(address or machines.address, machines.of_client, **options)
    engine = AsyncLLM.connect(link, model=str(model))
    try:
        await engine.wait_ready(PATIENCE)
        yield engine
    finally:
        engine.shutdown()


async def ask(engine: AsyncLLM, num_tokens: int, request_id: str = "r") -> tuple[list[int], Any]:
    ids: list[int] = []
    async for output in engine.generate(
        {"prompt_token_ids": PROMPT}, params(num_tokens), request_id
    ):
        ids += output.outputs[0].token_ids
    return ids, output


def counted(num_tokens: int) -> list[int]:
    return list(range(4, 4 + num_tokens))


async def test_an_answer_comes_from_another_machine_as_from_this_one(
    machines: Machines, core: ThreadedCore, model: Path
) -> None:
    async with joined(machines, model) as engine:
        ids, last = await ask(engine, 50)
        assert ids == counted(50) and last.outputs[0].finish_reason == "length"
        assert engine.exactness is Exactness.EXACT
        assert engine.ready.config.model == engine.ready.config.address == ""  # its paths
        assert engine.ready.config.far is None and engine.ready.pid == 0


async def test_a_stop_is_confirmed_by_the_core(
    machines: Machines, core: ThreadedCore, model: Path
) -> None:
    async with joined(machines, model) as engine:
        core.hold()
        stream = engine.generate({"prompt_token_ids": PROMPT}, params(100), "r")
        reading = asyncio.create_task(anext(stream))
        await asyncio.to_thread(core.is_in_step.wait)
        await engine.abort("r")
        core.release()
        outputs = [await reading, *[output async for output in stream]]
        assert outputs[-1].outputs[0].finish_reason == "abort"
        assert outputs[-1].metrics is not None and outputs[-1].metrics.core_confirmed
    await settle(lambda: not core.scheduler.sequences)


async def test_what_the_core_would_not_read_is_refused_here_and_costs_no_connection(
    machines: Machines, core: ThreadedCore, model: Path
) -> None:
    async with joined(machines, model) as engine:
        client_id = engine._client.link.client_id  # type: ignore[attr-defined]  # of a far link
        with pytest.raises(ValidationError, match="besides token ids"):
            await engine._call("metrics", "x" * MAX_OTHER_BYTES)
        assert (await ask(engine, 5))[0] == counted(5)
        assert engine._client.link.client_id == client_id  # type: ignore[attr-defined]  # of a far link


async def test_what_would_be_too_large_is_known_before_it_is_asked(
    machines: Machines, core: ThreadedCore, model: Path
) -> None:
    async with joined(machines, model) as engine:
        with pytest.raises(ValidationError, match="besides token ids"):
            engine.check_params(SamplingParams(stop=["x" * MAX_OTHER_BYTES]))
        number = {"const": 1 << 70}  # which no message can have, and a schema may
        engine.check_params(SamplingParams(structured_outputs=StructuredOutputsParams(json=number)))


async def test_a_connection_that_breaks_is_made_anew_and_no_token_is_lost_or_repeated(
    machines: Machines, core: ThreadedCore, model: Path
) -> None:
    net = Net(machines.address)
    async with net.running(), joined(machines, model, net.address) as engine:
        states: list[CoreState] = []
        engine._client._report_state = lambda state, _: states.append(state)
        core.hold()
        asking = asyncio.create_task(ask(engine, 150))
        for _ in range(3):
            await core.next_step()
        net.cut()
        await settle(lambda: CoreState.DEAD in states)
        core.release()
        ids, last = await asking
        assert ids == counted(150)
        assert last.metrics is not None and last.metrics.num_resubmits == 1
        assert net.num_connections == 2
        await settle(lambda: not core.scheduler.sequences)  # of either connection
        assert core.scheduler.totals.aborts + core.scheduler.totals.requests > 1


async def test_a_net_that_swallows_everything_is_a_dead_core_until_it_is_back(
    machines: Machines, model: Path
) -> None:
    net = Net(machines.address)
    with machines.core(io={"far_silence_seconds": 0.5}) as core:
        async with net.running(), joined(machines, model, net.address, **QUICK) as engine:
            core.hold()
            asking = asyncio.create_task(ask(engine, 150))
            await core.next_step()
            net.block()
            await settle(lambda: engine.core_state is CoreState.DEAD)
            core.release()
            await settle(lambda: not core._io._clients)  # who is silent has gone for the core, too
            assert not core.scheduler.sequences
            net.unblock()
            ids, last = await asking
            assert ids == counted(150) and last.metrics.num_resubmits >= 1


async def test_a_core_that_comes_back_goes_on_with_what_the_one_before_it_had(
    machines: Machines, model: Path
) -> None:
    with machines.core() as first:
        async with joined(machines, model) as engine:
            first.hold()
            asking = asyncio.create_task(ask(engine, 100))
            await first.next_step()
            await first.next_step()
            first.release()
            first.__exit__()
            with machines.core(epoch=2):
                ids, last = await asking
                assert ids == counted(100) and engine.ready.epoch == 2
                assert last.metrics.num_resubmits <= 1  # it may just have been done


async def test_several_clients_share_one_core(
    machines: Machines, core: ThreadedCore, model: Path
) -> None:
    async with joined(machines, model) as one, joined(machines, model) as other:
        answers = await asyncio.gather(ask(one, 40, "r"), ask(other, 60, "r"))
        assert [ids for ids, _ in answers] == [counted(40), counted(60)]


@pytest.mark.parametrize(
    "call",
    [
        lambda engine: engine.collective_rpc("anything"),
        lambda engine: engine.start_profile("/tmp/trace"),
        lambda engine: engine.stop_profile(),
        lambda engine: engine.pin_lora(1),
        lambda engine: engine.sleep(1),
        lambda engine: engine.pause_generation(),
        lambda engine: engine.reset_prefix_cache(),
    ],
)
async def test_what_acts_on_the_core_is_refused_from_another_machine_by_name(
    machines: Machines, core: ThreadedCore, model: Path, call: Any
) -> None:
    async with joined(machines, model) as engine:
        with pytest.raises(EngineGenerateError, match="refused from another machine: its core"):
            await call(engine)
        await engine.check_health()
        assert (await engine.metrics())["num_running"] == 0


async def test_adapters_are_refused_from_another_machine(machines: Machines, model: Path) -> None:
    with machines.core(enable_lora=True) as core:
        async with joined(machines, model) as engine:
            lora = LoRARequest("a", 1, "/somewhere")
            with pytest.raises(ValidationError, match="lora_request"):
                await engine.add_lora(lora)
            assert not core.scheduler.sequences


async def test_what_is_permitted_is_done_from_another_machine(
    machines: Machines, model: Path
) -> None:
    with machines.core(permits=("control", "lora"), enable_lora=True):
        async with joined(machines, model) as engine:
            await engine.pause_generation()
            assert await engine.is_paused()
            await engine.resume_generation()
            assert engine.ready.config.enable_lora
            with pytest.raises(EngineGenerateError, match="permits that by --permit profile"):
                await engine.start_profile()


def handshake(machines: Machines, keys: Path, **options: Any) -> Ready:
    link = FarCoreConnection(machines.address, keys, **options)
    try:
        return link.handshake(PATIENCE)
    finally:
        link.close()


def test_a_client_whose_key_is_not_trusted_is_refused(
    machines: Machines, core: ThreadedCore, tmp_path: Path
) -> None:
    with pytest.raises(CoreRefusal, match="does not trust our key"):
        handshake(machines, machines.stranger(tmp_path / "stranger"))
    assert not core._io._clients


def test_a_client_waits_for_nobody_whose_key_it_does_not_trust(
    machines: Machines, core: ThreadedCore, tmp_path: Path
) -> None:
    keys = tmp_path / "other"
    make_keys(keys)
    trust(keys, "core", machines.client_key)  # of another machine
    trust(machines.of_core, "other", make_keys(keys))
    with pytest.raises(EngineStartError, match="not the one whose key is trusted"):
        link = FarCoreConnection(machines.address, keys)
        try:
            link.handshake(0.3)
        finally:
            link.close()
    assert not core._io._clients


async def test_a_core_that_is_refused_is_asked_nothing_and_its_next_one_is_looked_at(
    machines: Machines, core: ThreadedCore, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "REFUSED_RETRY_SECONDS", 0.1)
    problems: list[str | None] = ["it has another model"]
    link = FarCoreConnection(machines.address, machines.of_client, check=lambda _: problems[0])
    states: list[tuple[CoreState, str]] = []
    engine = AsyncLLM.connect(
        link, model=str(model), on_core_state=lambda *state: states.append(state)
    )
    await settle(lambda: states)
    assert states == [(CoreState.DEAD, "it has another model")] and not engine.is_ready
    assert link.problem == f"the engine core at {machines.address}: it has another model"
    problems[0] = None
    await engine.wait_ready(PATIENCE)
    engine.shutdown()


def test_who_is_not_there_is_said_not_to_be(machines: Machines) -> None:
    link = FarCoreConnection(machines.address, machines.of_client)
    with pytest.raises(EngineStartError, match="nobody listens at tcp://127"):
        link.handshake(0.2)
    link.close()


def test_keys_that_are_gone_are_read_again_with_the_next_try(
    machines: Machines, core: ThreadedCore, tmp_path: Path
) -> None:
    secret = machines.of_client / "secret"
    secret.rename(tmp_path / "away")
    link = FarCoreConnection(machines.address, machines.of_client)
    with pytest.raises(CoreRefusal, match="holds no keys"):
        link.handshake(PATIENCE)
    (tmp_path / "away").rename(secret)
    link.is_refused = False  # as the event loop, which tries again and again
    assert link.handshake(PATIENCE).epoch == 1
    link.close()
