"""`CoreClient` behind `AsyncLLM.connect`: slices, and what goes on when the core does not."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

from engine.client.async_llm import AsyncLLM
from engine.client.requests import core_client as client_module
from engine.client.requests import resubmission
from engine.client.requests.collector import RequestOutputCollector
from engine.client.requests.core_client import MAX_OUTPUTS_PER_TURN
from engine.client.requests.core_connection import CoreConnection
from engine.client.requests.core_link import CoreState
from engine.errors import EngineDeadError, RetryableRequestError
from engine.ipc import (
    STOPPED,
    Abort,
    AddRequest,
    Dead,
    SequenceOutput,
    StepOutputs,
    UtilityReply,
    encode,
)
from engine.outputs import RequestOutput
from engine.sampling_params import RequestOutputKind, SamplingParams
from tests.engine.helpers.scripted_core import ScriptedCore
from tests.helpers.patience import PATIENCE

M = TypeVar("M")

DELTA = SamplingParams(max_tokens=100, output_kind=RequestOutputKind.DELTA)
PROMPT = [40, 41, 42]
A, B, C = 67, 68, 69  # letters of the byte-level vocabulary


class Cores:
    """One core after another on the same address, and an engine that is connected to them."""

    def __init__(self, address: str, model: Path) -> None:
        self.address = address
        self.core = ScriptedCore(address)
        self.engine = AsyncLLM.connect(address, model=str(model))

    async def add(self, request_id: str, params: SamplingParams = DELTA) -> RequestOutputCollector:
        return await self.engine.add_request(request_id, PROMPT, params)

    async def receive(self, kind: type[M]) -> M:
        """The core's next message, without holding up the event loop."""
        return await asyncio.to_thread(self.core.receive, kind)

    async def kill(self) -> None:
        """The core dies, and the client has noticed."""
        await asyncio.to_thread(self.core.kill)
        await settle(lambda: self.engine.core_state is CoreState.DEAD)

    async def start(self, **options: Any) -> None:
        """The next core, joined."""
        self.core = ScriptedCore(self.address, epoch=self.core.epoch + 1, **options)
        await self.engine.wait_ready(PATIENCE)

    async def replace(self) -> None:
        await self.kill()
        await self.start()


@pytest.fixture
async def cores(address: str, model: Path) -> AsyncIterator[Cores]:
    cores = Cores(address, model)
    await cores.engine.wait_ready(PATIENCE)
    yield cores
    cores.engine.shutdown()
    cores.core.close()


async def settle(condition: Any) -> None:
    """Give the event loop turns until something holds; fails after five seconds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  (conditions of plain objects)
            await asyncio.sleep(0.001)


async def rest(stream: RequestOutputCollector) -> tuple[str, RequestOutput]:
    """What still comes of a stream: its text, and its last output."""
    async with asyncio.timeout(PATIENCE):
        outputs = [output async for output in stream]
    assert [output.finished for output in outputs].count(True) == 1
    return "".join(output.outputs[0].text for output in outputs), outputs[-1]


def reason(output: RequestOutput) -> str | None:
    return output.outputs[0].finish_reason


# ---- the next core goes on
async def test_stream_goes_on_in_the_next_core(cores: Cores) -> None:
    stream = await cores.add("r")
    first = await cores.receive(AddRequest)
    cores.core.emit(first.request_id, A)
    assert (await stream.get()).outputs[0].text == "a"
    await cores.replace()
    second = await cores.receive(AddRequest)
    assert (second.prompt_token_ids, second.resume_token_ids) == (PROMPT, [A])
    assert (second.params, second.arrival_time) == (first.params, first.arrival_time)
    assert second.params.seed is not None
    assert (first.is_admitted, second.is_admitted) == (False, True)  # it waited once already
    cores.core.emit(second.request_id, B, finish="length")
    text, last = await rest(stream)
    assert (text, last.outputs[0].token_ids) == ("b", [B])
    assert last.metrics is not None
    assert (last.metrics.num_resubmits, last.metrics.num_generation_tokens) == (1, 2)
    assert cores.engine.get_num_unfinished_requests() == 0


async def test_what_the_dead_core_had_still_said_counts(cores: Cores) -> None:
    stream = await cores.add("r")
    request = await cores.receive(AddRequest)
    client = cores.engine._client
    client.on_core_outputs([SequenceOutput(request.request_id, [A, B])])
    assert isinstance(client.link, CoreConnection)
    client.link._lose("the engine core exited")  # before its outputs had their turn
    await cores.replace()
    again = await cores.receive(AddRequest)
    cores.core.emit(again.request_id, C, finish="length")
    text, _ = await rest(stream)
    assert (again.resume_token_ids, text) == ([A, B], "abc")


async def test_own_resume_tokens_come_before_those_of_this_run(cores: Cores) -> None:
    stream = await cores.engine.add_request("r", PROMPT, DELTA, resume_token_ids=[A])
    cores.core.emit((await cores.receive(AddRequest)).request_id, B)
    await stream.get()
    await cores.replace()
    assert (await cores.receive(AddRequest)).resume_token_ids == [A, B]


async def test_text_that_was_held_back_still_becomes_a_stop_string(cores: Cores) -> None:
    params = SamplingParams(max_tokens=9, stop="bc", output_kind=RequestOutputKind.DELTA)
    stream = await cores.add("r", params)
    cores.core.emit((await cores.receive(AddRequest)).request_id, A, B)
    assert (await stream.get()).outputs[0].text == "a"
    await cores.replace()
    again = await cores.receive(AddRequest)
    cores.core.emit(again.request_id, C)
    text, last = await rest(stream)
    assert (text, reason(last), last.outputs[0].stop_reason) == ("", "stop", "bc")
    assert await cores.receive(Abort) == Abort([again.request_id], reason="stop")


async def test_answers_to_one_prompt_go_on_together(cores: Cores) -> None:
    params = SamplingParams(n=2, max_tokens=9, seed=5, output_kind=RequestOutputKind.FINAL_ONLY)
    stream = await cores.add("r", params)
    first = [await cores.receive(AddRequest) for _ in range(2)]
    cores.core.emit(first[0].request_id, A)
    cores.core.emit(first[1].request_id, B, finish="length")
    await settle(lambda: cores.engine.get_num_unfinished_requests() == 1)
    await cores.replace()
    again = await cores.receive(AddRequest)
    assert (again.params.seed, again.resume_token_ids) == (5, [A])
    cores.core.emit(again.request_id, C, finish="length")
    output = await stream.get()
    assert [completion.text for completion in output.outputs] == ["ac", "b"]
    assert cores.engine.output_processor.parent_requests == {}


async def test_id_stays_taken_and_may_be_aborted_in_the_next_core(cores: Cores) -> None:
    stream = await cores.add("r")
    await cores.receive(AddRequest)
    await cores.replace()
    again = await cores.receive(AddRequest)
    await cores.engine.abort("r")
    assert await cores.receive(Abort) == Abort([again.request_id])
    cores.core.emit(again.request_id, finish="abort")
    _, last = await rest(stream)
    assert last.metrics is not None and last.metrics.core_confirmed


async def test_readers_that_leave_in_the_gap_are_forgotten(cores: Cores) -> None:
    stream = await cores.add("r")
    await cores.receive(AddRequest)
    await cores.kill()
    stream.close()
    await cores.start()
    await cores.engine.check_health()
    assert list(cores.core.received()) == []


async def test_logprobs_of_a_prompt_that_a_core_has_half_read_begin_anew(cores: Cores) -> None:
    params = SamplingParams(prompt_logprobs=0, output_kind=RequestOutputKind.DELTA)
    stream = await cores.add("r", params)
    request = await cores.receive(AddRequest)
    cores.core.emit(request.request_id, prompt_logprobs=[[[41, -1.0, 1]]])
    await cores.replace()
    request = await cores.receive(AddRequest)
    assert request.params.prompt_logprobs == 0
    cores.core.emit(request.request_id, prompt_logprobs=[[[41, -1.0, 1]], [[42, -2.0, 1]]])
    cores.core.emit(request.request_id, A, finish="length")
    _, last = await rest(stream)
    assert last.prompt_logprobs is not None
    _, *positions = last.prompt_logprobs
    found = [{i: e.logprob for i, e in each.items()} for each in positions if each is not None]
    assert found == [{41: -1.0}, {42: -2.0}]


async def test_logprobs_of_a_prompt_that_are_here_are_asked_of_no_other_core(
    cores: Cores,
) -> None:
    params = SamplingParams(prompt_logprobs=0, output_kind=RequestOutputKind.DELTA)
    streams = [await cores.add(name, params) for name in ("shown", "not shown")]
    for tokens in ([A], []):
        request = await cores.receive(AddRequest)
        of_prompt = [[[41, -1.0, 1]], [[42, -2.0, 1]]]
        cores.core.emit(request.request_id, *tokens, prompt_logprobs=of_prompt)
    assert (await streams[0].get()).prompt_logprobs is not None
    await cores.engine.check_health()  # after which the other's have come, too
    await cores.replace()
    for tokens in ([A], []):
        request = await cores.receive(AddRequest)
        assert (request.resume_token_ids, request.params.prompt_logprobs) == (tokens, None)
        cores.core.emit(request.request_id, B, finish="length")
    ends = [(await rest(stream))[1] for stream in streams]
    assert ends[0].prompt_logprobs is None  # sent before
    assert ends[1].prompt_logprobs is not None and len(ends[1].prompt_logprobs) == 3


# ---- no core for a while


async def test_new_requests_are_refused_in_the_gap(cores: Cores) -> None:
    _stream = await cores.add("r")
    await cores.kill()
    with pytest.raises(RetryableRequestError):
        await cores.add("new")
    assert cores.engine.get_num_unfinished_requests() == 1
    assert not cores.engine.errored


async def test_abort_in_the_gap_ends_at_once_and_is_not_sent_again(cores: Cores) -> None:
    stream = await cores.add("r")
    cores.core.emit((await cores.receive(AddRequest)).request_id, A)
    await settle(lambda: stream.output is not None)
    await cores.kill()
    await cores.engine.abort("r")
    text, last = await rest(stream)
    assert (text, reason(last)) == ("a", "abort")
    assert last.metrics is not None and not last.metrics.core_confirmed
    await cores.start()
    await cores.engine.check_health()
    assert list(cores.core.received()) == []


async def test_abort_that_the_core_did_not_live_to_confirm_ends_with_it(cores: Cores) -> None:
    stream = await cores.add("r")
    await cores.engine.abort("r")
    await cores.kill()
    _, last = await rest(stream)
    assert reason(last) == "abort"
    assert last.metrics is not None and not last.metrics.core_confirmed


async def test_gap_that_is_too_long_is_an_error(
    cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_GAP_SECONDS", 0.02)
    stream = await cores.add("r")
    cores.core.emit((await cores.receive(AddRequest)).request_id, A)
    await settle(lambda: stream.output is not None)
    await cores.kill()
    text, last = await rest(stream)
    assert (text, reason(last)) == ("a", "error")
    assert last.error is not None and last.error.code == "engine_error"


async def test_a_gap_that_was_meant_may_be_longer_and_ends_as_well(
    cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_GAP_SECONDS", 0.0)
    stream = await cores.add("r")
    cores.core.emit((await cores.receive(AddRequest)).request_id, A)
    assert (await stream.get()).outputs[0].text == "a"
    cores.core.send(Dead(STOPPED))
    await settle(lambda: cores.engine.core_state is CoreState.DEAD)
    await cores.replace()
    again = await cores.receive(AddRequest)
    assert again.resume_token_ids == [A]
    cores.core.emit(again.request_id, B)
    assert (await stream.get()).outputs[0].text == "b"
    cores.engine._client._restart_seconds = 0.02
    cores.core.send(Dead(STOPPED))
    text, last = await rest(stream)
    assert (text, reason(last)) == ("", "error")
    assert last.error is not None and "no engine core for 0.02 s" in last.error.message


async def test_shutdown_in_the_gap_ends_the_streams(cores: Cores) -> None:
    stream = await cores.add("r")
    await cores.kill()
    cores.engine.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        await stream.get()


async def test_shutdown_ends_the_wait_for_a_core(cores: Cores) -> None:
    await cores.kill()
    waiting = asyncio.create_task(cores.engine.wait_ready())
    await asyncio.sleep(0)
    cores.engine.shutdown()
    with pytest.raises(EngineDeadError):
        await waiting


# ---- cores that die again


@pytest.mark.row("E3")
async def test_request_that_two_cores_died_of_fails_and_the_others_go_on(cores: Cores) -> None:
    harmless = [await cores.add(f"harmless{n}") for n in range(3)]
    for _ in harmless:
        cores.core.emit((await cores.receive(AddRequest)).request_id, A)
    for stream in harmless:
        await stream.get()
    deadly = await cores.add("deadly")
    await cores.receive(AddRequest)
    await cores.replace()
    first = [await cores.receive(AddRequest) for _ in harmless]
    assert not any(request.request_id.startswith("deadly") for request in first)
    for request in first:  # with the last of them the suspect is sent: it cannot take them along
        await cores.engine.check_health()
        assert list(cores.core.received()) == []
        cores.core.emit(request.request_id, B)
    assert (await cores.receive(AddRequest)).request_id.startswith("deadly")
    await cores.replace()
    _, last = await rest(deadly)
    assert reason(last) == "error"
    assert last.error is not None and last.error.code == "engine_error"
    for _ in harmless:
        cores.core.emit((await cores.receive(AddRequest)).request_id, C, finish="length")
    assert [(await rest(stream))[0] for stream in harmless] == ["bc"] * 3


async def test_suspects_are_sent_one_at_a_time(cores: Cores) -> None:
    streams = [await cores.add(f"r{n}") for n in range(3)]
    for _ in streams:
        await cores.receive(AddRequest)
    await cores.replace()
    for n in range(3):
        request = await cores.receive(AddRequest)
        assert request.request_id.startswith(f"r{n}-")
        await cores.engine.check_health()
        assert list(cores.core.received()) == []  # it is alone until it has a token
        cores.core.emit(request.request_id, A)


async def test_suspects_follow_one_of_which_nothing_comes(
    cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(resubmission, "TRIAL_SECONDS", 0.05)
    streams = [await cores.add(f"r{n}") for n in range(4)]
    for _ in streams:
        await cores.receive(AddRequest)
    await cores.replace()
    again = [(await cores.receive(AddRequest)).request_id for _ in streams]
    assert [name.split("-")[0] for name in again] == ["r0", "r1", "r2", "r3"]


async def test_new_token_clears_a_request(cores: Cores) -> None:
    stream = await cores.add("r")
    for number in range(5):
        request = await cores.receive(AddRequest)
        assert request.resume_token_ids == [A] * number
        cores.core.emit(request.request_id, A)
        assert (await stream.get()).outputs[0].text == "a"
        await cores.replace()
    cores.core.emit((await cores.receive(AddRequest)).request_id, B, finish="length")
    _, last = await rest(stream)
    assert last.metrics is not None and last.metrics.num_resubmits == 5


async def test_cores_that_die_while_a_request_waits_its_turn_do_not_count(cores: Cores) -> None:
    streams = [await cores.add(f"r{n}") for n in range(2)]
    for _ in range(4):
        requests = [await cores.receive(AddRequest) for _ in streams]
        cores.core.emit_all([SequenceOutput(r.request_id, queue_position=3) for r in requests])
        await cores.engine.check_health()
        await cores.replace()
    assert cores.engine.get_num_unfinished_requests() == 2


async def test_cores_that_are_ended_on_purpose_make_no_request_a_suspect(cores: Cores) -> None:
    streams = [await cores.add(f"r{n}") for n in range(2)]
    for _ in range(3):  # before any token
        for _ in streams:
            await cores.receive(AddRequest)
        cores.core.send(Dead(STOPPED))
        await settle(lambda: cores.engine.core_state is CoreState.DEAD)
        await cores.replace()
    for _ in streams:
        cores.core.emit((await cores.receive(AddRequest)).request_id, A, finish="length")
    assert [(await rest(stream))[0] for stream in streams] == ["a"] * 2


async def test_request_that_no_longer_fits_fails_alone(cores: Cores) -> None:
    long = await cores.add("long")
    short = await cores.add("short")
    cores.core.emit((await cores.receive(AddRequest)).request_id, A, B, C)
    cores.core.emit((await cores.receive(AddRequest)).request_id, A)
    for stream in (long, short):
        await stream.get()
    await cores.kill()
    await cores.start(max_model_len=6)
    _, last = await rest(long)
    assert reason(last) == "error"
    cores.core.emit((await cores.receive(AddRequest)).request_id, B, finish="length")
    assert (await rest(short))[0] == "b"


# ---- a core that talks nonsense


async def test_core_that_talks_nonsense_counts_as_dead_and_may_come_back(cores: Cores) -> None:
    stream = await cores.add("r")
    first = await cores.receive(AddRequest)
    cores.core.emit(first.request_id, A)
    await stream.get()
    cores.core.send(b"\x93nonsense")
    assert await cores.receive(Abort) == Abort([first.request_id])  # it still computes that
    again = await cores.receive(AddRequest)
    assert again.resume_token_ids == [A]
    cores.core.emit(first.request_id, C, finish="length")  # and still speaks of it
    cores.core.emit(again.request_id, B, finish="length")
    assert (await rest(stream))[0] == "b"


async def test_core_that_has_given_us_up_is_joined_again(cores: Cores) -> None:
    stream = await cores.add("r")
    first = await cores.receive(AddRequest)
    cores.core.send(Dead("the engine core does not know this client"))
    assert await cores.receive(Abort) == Abort([first.request_id])
    again = await cores.receive(AddRequest)
    assert again.request_id != first.request_id
    cores.core.emit(again.request_id, A, finish="length")
    assert (await rest(stream))[0] == "a"


# ---- one request, and the event loop
async def test_exception_in_one_requests_processing_fails_that_request_alone(cores: Cores) -> None:
    streams = [await cores.add(f"r{n}") for n in range(3)]
    ids = [(await cores.receive(AddRequest)).request_id for _ in streams]
    cores.core.emit(ids[1], A, logprobs=[[]])  # what cannot be read
    for request_id in (ids[0], ids[2]):
        cores.core.emit(request_id, B, finish="length")
    _, last = await rest(streams[1])
    assert reason(last) == "error"
    assert last.error is not None and last.error.code == "output_failed"
    assert await cores.receive(Abort) == Abort([ids[1]], reason="stop")
    assert [(await rest(streams[n]))[0] for n in (0, 2)] == ["b", "b"]


async def test_loop_gets_a_turn_between_slices_of_outputs(
    cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices: list[int] = []
    client = cores.engine._client

    def process(outputs: list[SequenceOutput], stats: None = None) -> list[str]:
        slices.append(len(outputs))
        asyncio.get_running_loop().call_soon(slices.append, 0)  # somebody else's turn
        return []

    monkeypatch.setattr(client.requests, "process", process)
    client.on_core_outputs([SequenceOutput(f"r{n}", [A]) for n in range(2000)])
    await settle(lambda: sum(slices) == 2000)
    assert max(slices) <= MAX_OUTPUTS_PER_TURN
    assert all(0 in pair for pair in pairwise(slices))


async def test_what_the_core_said_before_an_answer_is_with_the_readers_by_then(
    cores: Cores,
) -> None:
    engine, connection = cores.engine, cores.engine._client.link
    assert isinstance(connection, CoreConnection)
    streams = [await cores.add(f"r{n}") for n in range(2 * MAX_OUTPUTS_PER_TURN)]
    readers = [asyncio.create_task(rest(stream)) for stream in streams]
    draining = asyncio.create_task(engine.wait_for_requests_to_drain())
    await asyncio.sleep(0)  # all wait now
    ids = [state.internal_id for state in engine.output_processor.request_states.values()]
    outputs = [SequenceOutput(each, [A], finish_reason="length") for each in ids]
    connection._dispatch(encode(StepOutputs(cores.core.epoch, 0, outputs, cores.core.stats)))
    connection._dispatch(encode(UtilityReply(connection._num_calls)))
    await draining
    assert all(reader.done() for reader in readers)


async def test_tokens_are_joined_before_they_are_decoded(
    cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[list[int]] = []
    client = cores.engine._client

    def process(outputs: list[SequenceOutput], stats: None = None) -> list[str]:
        decoded.extend(output.new_token_ids for output in outputs)
        return []

    monkeypatch.setattr(client.requests, "process", process)
    for token_id in (A, B, C):  # three steps in one turn
        client.on_core_outputs([SequenceOutput("r", [token_id])])
    await settle(lambda: decoded)
    assert decoded == [[A, B, C]]
