import asyncio
import gc

import pytest

from engine.client.requests.collector import RequestOutputCollector
from engine.errors import EngineDeadError, EngineGenerateError
from engine.logprobs import Logprob
from engine.outputs import CompletionOutput, RequestOutput
from engine.sampling_params import RequestOutputKind
from tests.helpers.patience import PATIENCE

NUM_OUTPUTS = 5_000


def _output(text: str, ids: list[int], reason: str | None = None, index: int = 0) -> RequestOutput:
    completion = CompletionOutput(
        index=index,
        text=text,
        token_ids=ids,
        logprobs=[{token_id: Logprob(-1.0, 1, text)} for token_id in ids],
        finish_reason="stop" if reason else None,
    )
    return RequestOutput("r", None, [1, 2], None, [completion], reason is not None)


def _num_outputs_alive() -> int:
    gc.collect()
    # by type(): isinstance() would ask every object alive, and some answer with a warning
    return sum(type(each) in (RequestOutput, CompletionOutput) for each in gc.get_objects())


def test_deltas_that_nobody_reads_are_one_output() -> None:
    before = _num_outputs_alive()
    collector = RequestOutputCollector(RequestOutputKind.DELTA, "r")
    for number in range(NUM_OUTPUTS):
        collector.put(_output("ab", [number]))
    assert _num_outputs_alive() - before == 2
    output = collector.get_nowait()
    assert output is not None and not output.finished
    (completion,) = output.outputs
    assert completion.text == "ab" * NUM_OUTPUTS
    assert completion.token_ids == list(range(NUM_OUTPUTS))
    assert [list(entry) for entry in completion.logprobs or []] == [[i] for i in range(NUM_OUTPUTS)]
    assert collector.get_nowait() is None


@pytest.mark.parametrize("kind", [RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY])
def test_only_the_latest_of_whole_answers_waits(kind: RequestOutputKind) -> None:
    before = _num_outputs_alive()
    collector = RequestOutputCollector(kind, "r")
    for number in range(1, NUM_OUTPUTS):
        collector.put(_output("x" * (number % 7), [number]))
    collector.put(_output("all of it", [7], "stop"))
    assert _num_outputs_alive() - before == 2
    output = collector.get_nowait()
    assert output is not None and output.finished
    assert (output.outputs[0].text, output.outputs[0].token_ids) == ("all of it", [7])


def test_answers_to_one_prompt_merge_each_with_its_own() -> None:
    collector = RequestOutputCollector(RequestOutputKind.DELTA, "r")
    for number in range(300):
        collector.put(_output("abc"[number % 3], [number], index=number % 3))
    output = collector.get_nowait()
    assert output is not None
    texts = {completion.index: completion.text for completion in output.outputs}
    assert texts == {0: "a" * 100, 1: "b" * 100, 2: "c" * 100}


def test_an_output_that_a_slow_reader_has_taken_does_not_grow_afterwards() -> None:
    collector = RequestOutputCollector(RequestOutputKind.DELTA, "r")
    collector.put(_output("a", [1]))
    taken = collector.get_nowait()
    collector.put(_output("b", [2], "stop"))
    assert taken is not None and taken.outputs[0].text == "a" and not taken.finished
    assert taken.outputs[0].token_ids == [1] and len(taken.outputs[0].logprobs or []) == 1
    last = collector.get_nowait()
    assert last is not None and last.finished and last.outputs[0].finish_reason == "stop"


async def test_waiting_for_an_output_may_be_cancelled_and_loses_none() -> None:
    collector = RequestOutputCollector(RequestOutputKind.DELTA, "r")
    waiting = asyncio.create_task(collector.get())
    await asyncio.sleep(0)  # it waits now
    collector.put(_output("a", [1]))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await collector.get()).outputs[0].text == "a"


async def test_an_exception_takes_the_place_of_what_waits_and_ends_the_stream() -> None:
    collector = RequestOutputCollector(RequestOutputKind.DELTA, "r")
    collector.put(_output("a", [1]))
    collector.put(EngineDeadError())
    collector.put(_output("b", [2]))
    with pytest.raises(EngineDeadError):
        await collector.get()
    assert [output async for output in collector] == []


async def test_iteration_ends_after_the_last_output() -> None:
    collector = RequestOutputCollector(RequestOutputKind.DELTA, "r")
    collector.put(_output("a", [1], "length"))
    assert [output.outputs[0].text async for output in collector] == ["a"]


async def test_nothing_is_ready_after_the_last_output() -> None:
    collector = RequestOutputCollector(RequestOutputKind.DELTA, "r")
    collector.put(_output("a", [1], "length"))
    assert collector.ready.is_set()
    await collector.get()
    assert not collector.ready.is_set()
    collector.close()
    assert not collector.ready.is_set()


async def test_every_iterator_of_a_stream_ends() -> None:
    collector = RequestOutputCollector(RequestOutputKind.DELTA, "r")

    async def read() -> int:
        return len([output async for output in collector])

    readers = asyncio.gather(read(), read())
    await asyncio.sleep(0)  # both wait now
    collector.put(_output("a", [1], "length"))
    async with asyncio.timeout(PATIENCE):
        assert sorted(await readers) == [0, 1]


async def test_nothing_more_can_be_got_after_the_last_output() -> None:
    collector = RequestOutputCollector(RequestOutputKind.DELTA, "r")
    collector.put(_output("a", [1], "length"))
    await collector.get()
    with pytest.raises(EngineGenerateError, match="has ended"):
        await collector.get()


async def test_closing_ends_all_who_wait() -> None:
    collector = RequestOutputCollector(RequestOutputKind.DELTA, "r")
    waiting = asyncio.create_task(collector.get())
    await asyncio.sleep(0)  # it waits now
    collector.close()
    with pytest.raises(EngineGenerateError, match="has ended"):
        async with asyncio.timeout(PATIENCE):
            await waiting
    collector.put(_output("late", [1], "abort"))
    assert [output async for output in collector] == []
