from array import array
from typing import Any

import pytest

from engine.client.requests.collector import RequestOutputCollector
from engine.client.requests.output_processor import OutputProcessor
from engine.client.requests.request_state import create_states
from engine.errors import ValidationError
from engine.ipc import SequenceOutput
from engine.logprobs import Logprob
from engine.outputs import RequestOutput, RequestProgress
from engine.sampling_params import RequestOutputKind, SamplingParams
from tests.engine.client.requests.test_output_processor import LetterDecoder

DELTA, FINAL = RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY


class Siblings:
    """A request for several answers in a processor, and its reader."""

    def __init__(self, processor: OutputProcessor, n: int = 2, **options: Any) -> None:
        progress = options.pop("on_progress", None)
        params = SamplingParams(**{"n": n, "output_kind": DELTA, "seed": 7} | options)
        self.processor = processor
        self.collector = RequestOutputCollector(params.output_kind, "r")
        self.states = create_states("r", params, self.collector, on_progress=progress)
        processor.add(*self.states)
        for state in self.states:
            state.set_prompt(LetterDecoder(), [23, 24])

    def process(self, index: int, *ids: int, finish: str | None = None, **more: Any) -> list[str]:
        internal_id = self.states[index].internal_id
        return self.processor.process([SequenceOutput(internal_id, list(ids), finish, **more)])

    def read(self) -> RequestOutput:
        output = self.collector.get_nowait()
        assert output is not None
        return output


def summary(output: RequestOutput) -> list[tuple[int, str, str | None]]:
    return [(c.index, c.text, c.finish_reason) for c in output.outputs]


@pytest.fixture
def processor() -> OutputProcessor:
    return OutputProcessor()


def test_each_answer_has_the_next_seed_and_an_id_of_its_own(processor: OutputProcessor) -> None:
    request = Siblings(processor, 3)
    assert [state.params.seed for state in request.states] == [7, 8, 9]
    assert [state.params.n for state in request.states] == [1, 1, 1]
    assert len({state.internal_id for state in request.states}) == 3
    assert {state.request_id for state in request.states} == {"r"}


def test_largest_seed_is_followed_by_the_smallest(processor: OutputProcessor) -> None:
    request = Siblings(processor, seed=(1 << 64) - 1)
    assert [state.params.seed for state in request.states] == [(1 << 64) - 1, 0]


def test_outputs_tell_their_answer_and_finish_with_the_last(processor: OutputProcessor) -> None:
    request = Siblings(processor)
    request.process(0, 0)
    assert summary(request.read()) == [(0, "a", None)]
    request.process(1, 1, finish="length")
    output = request.read()
    assert (summary(output), output.finished) == ([(1, "b", "length")], False)
    request.process(0, 2, finish="stop")
    output = request.read()
    assert (summary(output), output.finished) == ([(0, "", "stop")], True)


def test_slow_reader_gets_all_answers_in_one_output(processor: OutputProcessor) -> None:
    request = Siblings(processor)
    for token in range(3):
        request.process(0, token)
        request.process(1, token + 10)
    request.process(1, finish="length")
    assert summary(request.read()) == [(0, "abc", None), (1, "klm", "length")]


def test_final_only_is_one_output_with_every_answer_in_order(processor: OutputProcessor) -> None:
    request = Siblings(processor, 3, output_kind=FINAL)
    request.process(2, 2, finish="length")
    request.process(0, 0, finish="length")
    assert request.collector.get_nowait() is None
    request.process(1, 1, finish="length")
    output = request.read()
    assert summary(output) == [(0, "a", "length"), (1, "b", "length"), (2, "c", "length")]
    assert output.finished


def test_error_of_one_answer_is_reported_and_the_others_go_on(processor: OutputProcessor) -> None:
    request = Siblings(processor, output_kind=FINAL)
    assert request.process(0, 99) == [request.states[0].internal_id]
    request.process(1, 1, finish="length")
    output = request.read()
    assert summary(output) == [(0, "", "error"), (1, "b", "length")]
    assert output.error is not None


def test_cached_tokens_are_those_the_first_answer_found(processor: OutputProcessor) -> None:
    request = Siblings(processor)
    request.process(0, 0, num_cached_tokens=16)
    request.process(1, 0, num_cached_tokens=48)
    assert request.read().num_cached_tokens == 16
    request.process(1, 1, finish="length", num_cached_tokens=48)
    assert request.read().num_cached_tokens == 16


def test_metrics_are_of_all_answers_together(processor: OutputProcessor) -> None:
    request = Siblings(processor)
    request.process(0, 0, 1, scheduled_ts=5.0)
    request.process(1, 2, finish="length", scheduled_ts=6.0)
    metrics = request.read().metrics
    assert metrics is not None
    assert (metrics.num_generation_tokens, metrics.scheduled_ts) == (3, 5.0)


def test_progress_of_the_prompt_is_reported_once(processor: OutputProcessor) -> None:
    reported: list[RequestProgress] = []
    request = Siblings(processor, on_progress=reported.append)
    request.process(0, queue_position=0)
    request.process(1, queue_position=1)
    assert [progress.queue_position for progress in reported] == [0]


@pytest.mark.parametrize("end", ["length", "abort"])
def test_maps_are_empty_after_the_last_answer(processor: OutputProcessor, end: str) -> None:
    request = Siblings(processor)
    assert len(processor.parent_requests) == 1 and len(processor.request_states) == 2
    request.process(0, 0, finish=end)
    assert processor.find("r") == [request.states[1]]
    with pytest.raises(ValidationError):
        Siblings(processor)
    request.process(1, 0, finish=end)
    assert not processor.parent_requests and not processor.request_states
    assert processor.find("r") == []
    Siblings(processor)


def test_id_is_free_while_aborted_answers_wait_for_the_core(processor: OutputProcessor) -> None:
    first = Siblings(processor)
    for state in processor.find("r"):
        processor.start_abort(state)
    second = Siblings(processor)
    for index in (0, 1):
        first.process(index, 5, finish="length")
    assert summary(first.read()) == [(0, "", "abort"), (1, "", "abort")]
    assert processor.find("r") == second.states


def test_reader_that_let_go_is_no_trouble(processor: OutputProcessor) -> None:
    request = Siblings(processor)
    del request.collector
    request.process(0, 0, finish="length")
    request.process(1, 0, finish="length")
    assert not processor.has_unfinished_requests() and not processor.parent_requests


def test_the_prompt_s_logprobs_are_computed_once(processor: OutputProcessor) -> None:
    request = Siblings(processor, 3, prompt_logprobs=1)
    asked = [state.params.prompt_logprobs for state in request.states]
    assert asked == [1, None, None]
    skip = [state.params.skip_reading_prefix_cache for state in request.states]
    assert skip == [True, False, False]  # the others share what the first one has computed


@pytest.mark.parametrize("kind", [DELTA, FINAL, RequestOutputKind.CUMULATIVE])
def test_the_prompt_s_logprobs_come_with_outputs_of_the_request(
    processor: OutputProcessor, kind: RequestOutputKind
) -> None:
    request = Siblings(processor, output_kind=kind, prompt_logprobs=0)
    expected = [None, {24: Logprob(-0.5, 2, "y")}]
    request.process(0, prompt_logprobs=[[[24, -0.5, 2]]])
    found = []
    for index, finish in ((0, None), (1, None), (0, "length"), (1, "length")):
        request.process(index, 2, finish=finish)
        output = request.collector.get_nowait()
        found += [] if output is None else [output.prompt_logprobs]
    if kind is DELTA:
        assert found == [expected, None, None, None]
    else:
        assert found == [expected] * (1 if kind is FINAL else 4)


@pytest.mark.parametrize("kind", [DELTA, RequestOutputKind.CUMULATIVE])
@pytest.mark.parametrize("end", [None, "abort"])
def test_an_answer_that_is_ahead_of_the_prompt_s_logprobs_waits_for_them(
    processor: OutputProcessor, kind: RequestOutputKind, end: str | None
) -> None:
    """As in the next core, which gets the first answer last: it may have killed the one before."""
    request = Siblings(processor, output_kind=kind, prompt_logprobs=0)
    request.process(1, 1)
    request.process(1, 2, finish="length")
    assert request.collector.get_nowait() is None
    if end is None:
        request.process(0, prompt_logprobs=[[[24, -0.5, 2]]])
        assert request.collector.get_nowait() is None
    request.process(0, 0, finish=end, num_cached_tokens=16)
    output = request.read()
    assert sorted(summary(output)) == [(0, "a", end), (1, "bc", "length")]
    assert output.prompt_logprobs == (None if end else [None, {24: Logprob(-0.5, 2, "y")}])
    assert (output.finished, output.num_cached_tokens) == (end is not None, 16)
    if end is None:
        request.process(0, 3, finish="length")
        assert request.read().finished


@pytest.mark.parametrize("kind", [DELTA, FINAL, RequestOutputKind.CUMULATIVE])
def test_logprobs_of_given_ids_are_computed_once_and_come_as_those_of_the_prompt(
    processor: OutputProcessor, kind: RequestOutputKind
) -> None:
    request = Siblings(processor, output_kind=kind, prompt_logprob_token_ids=[5, 6])
    assert [state.params.scores_prompt for state in request.states] == [True, False]
    request.process(0, prompt_token_id_logprobs=array("f", [-1.0, -2.0]).tobytes())
    found = []
    for index, finish in ((0, None), (1, None), (0, "length"), (1, "length")):
        request.process(index, 2, finish=finish)
        output = request.collector.get_nowait()
        found += [] if output is None else [output.prompt_token_id_logprobs]
    num_with = 1 if kind is not RequestOutputKind.CUMULATIVE else 4
    assert [each.tolist() for each in found if each is not None] == [[[-1.0, -2.0]]] * num_with
    assert found[0] is not None
