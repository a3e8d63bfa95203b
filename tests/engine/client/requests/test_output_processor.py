import asyncio
from typing import Any

import pytest

from engine.client.parsing.marks import AddedToken, Marks
from engine.client.requests.collector import RequestOutputCollector
from engine.client.requests.output_processor import OutputProcessor, merge_outputs
from engine.client.requests.request_state import RequestState
from engine.errors import (
    MaxQueuedTokensError,
    QueueOverflowError,
    RetryableRequestError,
    ValidationError,
)
from engine.ipc import (
    SchedulerStats,
    SequenceOutput,
    StepOutputs,
    decode_core_message,
    encode,
)
from engine.logprobs import FlatLogprobs, Logprob
from engine.outputs import CompletionOutput, RequestOutput, RequestProgress
from engine.sampling_params import RequestOutputKind, SamplingParams

DELTA, FINAL = RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY
NO_LOAD = SchedulerStats(0, 0, 0, 1, 1)


class LetterDecoder:
    """Token n is the nth letter; 99 cannot be decoded."""

    def decode(self, token_ids: Any, skip_special_tokens: bool = False) -> str:
        if 99 in token_ids:
            raise RuntimeError("99 is no letter")
        return "".join(chr(ord("a") + token_id) for token_id in token_ids)


class Utf8:
    """Each byte is a token."""

    def decode(self, token_ids: Any, skip_special_tokens: bool = False) -> str:
        return bytes(token_ids).decode(errors="replace")


class Request:
    """A request in a processor, and its reader."""

    def __init__(self, processor: OutputProcessor, request_id: Any = "r", **params: Any) -> None:
        options = {"output_kind": DELTA, **params}
        progress = options.pop("on_progress", None)
        delta = options.pop("on_delta", None)
        resume = options.pop("resume", ())
        marks = options.pop("marks", None)
        sampling = SamplingParams(**options)
        self.processor = processor
        self.collector = RequestOutputCollector(sampling.output_kind, request_id)
        self.state = RequestState(
            request_id,
            sampling,
            self.collector,
            on_progress=progress,
            on_delta=delta,
            marks=marks,
        )
        processor.add(self.state)
        self.state.set_prompt(LetterDecoder(), [23, 24], resume)

    def process(self, *ids: int, finish: str | None = None, **more: Any) -> list[str]:
        output = SequenceOutput(self.state.internal_id, list(ids), finish_reason=finish, **more)
        return self.processor.process([output])

    def read(self) -> tuple[str, list[int], str | None]:
        output = self.collector.get_nowait()
        assert output is not None
        (completion,) = output.outputs
        return completion.text, completion.token_ids, completion.finish_reason


@pytest.fixture
def processor() -> OutputProcessor:
    return OutputProcessor()


def test_deltas_hold_what_is_new(processor: OutputProcessor) -> None:
    request = Request(processor)
    request.process(0)
    assert request.read() == ("a", [0], None)
    request.process(1, 2)
    assert request.read() == ("bc", [1, 2], None)
    assert request.collector.get_nowait() is None


def test_a_callback_takes_each_delta_in_its_turn_and_the_reader_the_last_output(
    processor: OutputProcessor,
) -> None:
    taken: list[Any] = []
    request = Request(processor, on_delta=lambda *delta: taken.append(delta))
    request.process(0)
    assert taken == [("a", [0], None)]
    request.process(1, 2)
    assert taken[1:] == [("bc", [1, 2], None)]
    assert request.collector.get_nowait() is None
    request.process(3, finish="length")
    assert request.read() == ("d", [3], "length")
    assert len(taken) == 2


def test_marked_text_has_a_character_for_a_control_token(processor: OutputProcessor) -> None:
    marks = Marks([AddedToken(2, "<c>", True), AddedToken(3, "<d>", False)], ["<c>", "<d>"])
    mark, hidden = marks.characters[2], marks.characters[3]
    request = Request(processor, marks=marks)
    request.process(0, 2, 1)
    assert request.read() == (f"a{mark}b", [0, 2, 1], None)
    request.process(3, finish="stop")  # a parser may wait for the token that ends the answer
    assert request.read() == (hidden, [3], "stop")


def test_a_stop_string_that_a_control_token_writes_is_found_in_marked_text(
    processor: OutputProcessor,
) -> None:
    marks = Marks([AddedToken(2, "<c>", True)], ["<c>"])
    request = Request(processor, marks=marks, stop=["b<c>"])
    request.process(0, 1)
    assert request.read() == ("a", [0, 1], None)
    request.process(2)
    assert request.read() == ("", [2], "stop")
    assert request.state.stop_string == "b<c>"


def test_a_callback_of_deltas_gets_nothing_after_an_abort_or_without_a_reader(
    processor: OutputProcessor,
) -> None:
    taken: list[Any] = []
    aborted = Request(processor, "aborted", on_delta=lambda *delta: taken.append(delta))
    processor.start_abort(aborted.state)
    aborted.process(0)
    left = Request(processor, "left", on_delta=lambda *delta: taken.append(delta))
    processor.discard(left.state)
    left.process(1)
    assert taken == []


def test_a_callback_of_deltas_that_raises_ends_its_own_request(processor: OutputProcessor) -> None:
    def fail(*delta: Any) -> None:
        raise KeyError("no such tab")

    request, other = Request(processor, on_delta=fail), Request(processor, "other")
    assert request.process(0) == [request.state.internal_id]
    assert request.read()[2] == "error"
    other.process(0)
    assert other.read() == ("a", [0], None)


def test_cumulative_outputs_hold_everything(processor: OutputProcessor) -> None:
    request = Request(processor, output_kind=RequestOutputKind.CUMULATIVE)
    request.process(0)
    request.process(1)
    assert request.read() == ("ab", [0, 1], None)
    request.process(2, finish="length")
    assert request.read() == ("abc", [0, 1, 2], "length")


def test_final_only_is_one_output(processor: OutputProcessor) -> None:
    request = Request(processor, output_kind=FINAL)
    request.process(0)
    assert request.collector.get_nowait() is None
    request.process(1, finish="length")
    assert request.read() == ("ab", [0, 1], "length")


def test_what_nobody_has_taken_is_one_output(processor: OutputProcessor) -> None:
    request = Request(processor)
    for token_id in range(20):
        request.process(token_id)
    request.process(20, finish="length")
    assert request.read() == ("abcdefghijklmnopqrstu", list(range(21)), "length")
    assert request.collector.get_nowait() is None


def test_stream_interval_gathers_but_first_and_last_go_at_once(processor: OutputProcessor) -> None:
    request = Request(processor, stream_interval=3)
    texts = []
    for token_id in range(6):
        request.process(token_id, finish="length" if token_id == 5 else None)
        output = request.collector.get_nowait()
        texts.append(output.outputs[0].text if output else None)
    assert texts == ["a", None, None, "bcd", None, "ef"]


def test_text_of_the_stop_token_is_left_out_but_its_id_stays(processor: OutputProcessor) -> None:
    request = Request(processor)
    request.process(0, 1, finish="stop", stop_reason=1)
    output = request.collector.get_nowait()
    assert output is not None
    completion = output.outputs[0]
    assert (completion.text, completion.token_ids, completion.stop_reason) == ("a", [0, 1], 1)


def test_text_of_the_stop_token_is_kept_on_request(processor: OutputProcessor) -> None:
    request = Request(processor, include_stop_str_in_output=True)
    request.process(0, 1, finish="stop", stop_reason=1)
    assert request.read()[0] == "ab"


def test_stop_string_ends_the_request_here_and_in_the_core(processor: OutputProcessor) -> None:
    request = Request(processor, stop="cd")
    assert request.process(0, 1, 2) == []
    assert request.read() == ("ab", [0, 1, 2], None)
    assert request.process(3, 4, 5) == [request.state.internal_id]
    output = request.collector.get_nowait()
    assert output is not None and output.finished
    completion = output.outputs[0]
    assert (completion.text, completion.token_ids) == ("", [3])
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "cd")
    assert not processor.has_unfinished_requests()


def test_stop_string_wins_over_the_length_it_came_with(processor: OutputProcessor) -> None:
    request = Request(processor, stop="b")
    assert request.process(0, 1, 2, finish="length") == []
    assert request.read() == ("a", [0, 1], "stop")


@pytest.mark.parametrize("finish", ["stop", "length", "error"])
def test_what_is_held_back_comes_with_the_end(processor: OutputProcessor, finish: str) -> None:
    request = Request(processor, stop="bxyz")
    request.process(0, 1)
    request.process(finish=finish)
    assert request.read() == ("ab", [0, 1], finish)


def test_resumed_tokens_are_not_repeated_but_what_they_held_is(processor: OutputProcessor) -> None:
    request = Request(processor, stop="cde", resume=[0, 1, 2])
    request.process(5)
    assert request.read() == ("cf", [5], None)


def test_resumed_tokens_may_be_the_beginning_of_a_stop_string(processor: OutputProcessor) -> None:
    request = Request(processor, stop="cde", resume=[0, 1, 2, 3])
    request.process(4)
    assert request.read() == ("", [4], "stop")


def test_without_detokenizing_there_are_ids_only(processor: OutputProcessor) -> None:
    request = Request(processor, detokenize=False)
    request.process(99)
    assert request.read() == ("", [99], None)


def test_error_of_one_request_ends_that_one(processor: OutputProcessor) -> None:
    bad, good = Request(processor, "bad"), Request(processor, "good")
    outputs = [
        SequenceOutput(bad.state.internal_id, [99]),
        SequenceOutput(good.state.internal_id, [0]),
    ]
    assert processor.process(outputs) == [bad.state.internal_id]
    assert good.read() == ("a", [0], None)
    output = bad.collector.get_nowait()
    assert output is not None and output.finished and output.error is not None
    assert "99" in output.error.message
    assert list(processor.request_states) == [good.state.internal_id]


def test_error_of_the_core_is_in_the_last_output(processor: OutputProcessor) -> None:
    request = Request(processor)
    request.process(0, finish="error", error=("out_of_memory", "too long"))
    output = request.collector.get_nowait()
    assert output is not None and output.error is not None
    assert (output.error.code, output.error.message) == ("out_of_memory", "too long")
    assert output.outputs[0].finish_reason == "error"


@pytest.mark.parametrize(
    ("code", "exception"),
    [
        ("paused", RetryableRequestError),
        ("queue_full", QueueOverflowError),
        ("token_queue_full", MaxQueuedTokensError),
    ],
)
def test_refusal_of_the_core_is_raised_in_the_stream(
    processor: OutputProcessor, code: str, exception: type[Exception]
) -> None:
    request = Request(processor)
    request.process(finish="error", error=(code, "not now"))
    with pytest.raises(exception, match="not now"):
        request.collector.get_nowait()
    assert not processor.has_unfinished_requests()


def test_callback_that_raises_ends_its_own_request(processor: OutputProcessor) -> None:
    def fail(progress: RequestProgress) -> None:
        raise KeyError("no such tab")

    request = Request(processor, on_progress=fail)
    assert request.process(0) == [request.state.internal_id]
    assert request.read()[2] == "error"


def test_progress_is_reported_when_it_changes(processor: OutputProcessor) -> None:
    reported: list[RequestProgress] = []
    request = Request(processor, on_progress=reported.append)
    request.process(queue_position=1)
    request.process(queue_position=1)
    request.process(num_computed_tokens=1, num_cached_tokens=1, scheduled_ts=5.0)
    assert reported == [
        RequestProgress(1, 2, 0, 0, False),
        RequestProgress(None, 2, 1, 1, True),
    ]


def test_logprobs_come_with_their_tokens(processor: OutputProcessor) -> None:
    request = Request(processor, logprobs=1, stop="c")
    logprobs = [[[0, -0.5, 1], [1, -1.5, 2]], [[2, -1.0, 1]], [[3, -9.0, 1]]]
    request.process(0, 2, 3, logprobs=logprobs)
    output = request.collector.get_nowait()
    assert output is not None
    completion = output.outputs[0]
    assert completion.logprobs is not None
    assert [list(entry) for entry in completion.logprobs] == [[0, 1], [2]]
    assert completion.logprobs[0][1].decoded_token == "b"
    assert completion.cumulative_logprob == -1.5


def test_logprobs_have_no_text_where_none_is_made(processor: OutputProcessor) -> None:
    request = Request(processor, logprobs=1, detokenize=False)
    request.process(0, logprobs=[[[0, -0.5, 1], [1, -1.5, 2]]])
    output = request.collector.get_nowait()
    assert output is not None and output.outputs[0].logprobs is not None
    assert [each.decoded_token for each in output.outputs[0].logprobs[0].values()] == [None, None]


def test_logprobs_tell_a_character_with_its_last_token(processor: OutputProcessor) -> None:
    request = Request(processor, resume=[0xE2], logprobs=1)
    request.state.set_prompt(Utf8(), [23], [0xE2])
    request.process(0x82, logprobs=[[[0x82, -0.5, 1]]])
    request.process(0xAC, logprobs=[[[0xAC, -0.5, 1], [0x41, -1.5, 2]]])
    output = request.collector.get_nowait()
    assert output is not None and output.outputs[0].logprobs is not None
    texts = [[e.decoded_token for e in each.values()] for each in output.outputs[0].logprobs]
    assert texts == [[""], ["€", "A"]]


def test_logprobs_may_be_flat(processor: OutputProcessor) -> None:
    request = Request(processor, logprobs=1, flat_logprobs=True)
    request.process(0, 2, logprobs=[[[0, -0.5, 1], [1, -1.5, 2]], [[2, -1.0, 1]]])
    output = request.collector.get_nowait()
    assert output is not None
    logprobs = output.outputs[0].logprobs
    assert isinstance(logprobs, FlatLogprobs)
    assert (logprobs.token_ids, logprobs.decoded_tokens) == ([0, 1, 2], ["a", "b", "c"])
    assert list(logprobs[1]) == [2]


def test_metrics_are_filled(processor: OutputProcessor) -> None:
    request = Request(processor)
    queued = request.state.metrics.queued_ts
    request.process(
        0,
        scheduled_ts=queued + 1,
        first_token_ts=queued + 2,
        num_preemptions=1,
        num_cached_tokens=3,
    )
    output = request.collector.get_nowait()
    assert output is not None and output.metrics is not None
    assert output.metrics.first_token_latency == pytest.approx(2)
    assert (output.metrics.num_preemptions, output.metrics.num_generation_tokens) == (1, 1)
    assert output.num_cached_tokens == 3


def test_aborting_request_takes_no_token(processor: OutputProcessor) -> None:
    request = Request(processor, stop="bz")
    request.process(0, 1)
    processor.start_abort(request.state)
    request.process(2)
    request.process(3, finish="length")
    assert request.read() == ("ab", [0, 1], "abort")


def test_id_is_taken_until_the_end_or_the_abort(processor: OutputProcessor) -> None:
    first = Request(processor, "r1")
    with pytest.raises(ValidationError) as caught:
        Request(processor, "r1")
    assert caught.value.parameter == "request_id"
    processor.start_abort(first.state)
    second = Request(processor, "r1")
    first.process(0, finish="abort")
    assert processor.find("r1") == [second.state]


def test_ids_are_compared_whole(processor: OutputProcessor) -> None:
    Request(processor, "r10")
    assert processor.find("r1") == []
    assert processor.find("") == []
    assert processor.find("r10-") == []


def test_outputs_of_unknown_requests_are_dropped(processor: OutputProcessor) -> None:
    assert processor.process([SequenceOutput("nobody", [1], finish_reason="length")]) == []


def test_reader_that_let_go_is_no_trouble(processor: OutputProcessor) -> None:
    request = Request(processor)
    del request.collector
    request.process(0)
    request.process(1, finish="length")
    assert not processor.has_unfinished_requests()


def test_merging_outputs_is_as_processing_both() -> None:
    earlier = SequenceOutput("r", [1], logprobs=[["x"]], num_computed_tokens=1)
    later = SequenceOutput("r", [2], "length", logprobs=[["y"]], num_computed_tokens=2)
    merged = merge_outputs(earlier, later)
    assert (merged.new_token_ids, merged.finish_reason) == ([1, 2], "length")
    assert (merged.logprobs, merged.num_computed_tokens) == ([["x"], ["y"]], 2)


# ---- the collector by itself


def _output(text: str, finished: bool = False) -> RequestOutput:
    return RequestOutput("r", None, [], None, [CompletionOutput(0, text, [1])], finished)


async def test_get_waits_for_an_output() -> None:
    collector = RequestOutputCollector(DELTA, "r")
    asyncio.get_running_loop().call_soon(collector.put, _output("a"))
    assert (await collector.get()).outputs[0].text == "a"


async def test_get_can_be_cancelled_without_losing_an_output() -> None:
    collector = RequestOutputCollector(DELTA, "r")
    task = asyncio.create_task(collector.get())
    await asyncio.sleep(0)
    collector.put(_output("a"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await collector.get()).outputs[0].text == "a"


async def test_iteration_ends_with_the_last_output() -> None:
    collector = RequestOutputCollector(DELTA, "r")
    collector.put(_output("a", finished=True))
    assert [output.outputs[0].text async for output in collector] == ["a"]


async def test_exception_takes_the_place_of_an_output() -> None:
    collector = RequestOutputCollector(DELTA, "r")
    collector.put(_output("a"))
    collector.put(ValueError("dead"))
    with pytest.raises(ValueError, match="dead"):
        await collector.get()
    assert [output async for output in collector] == []


def test_closing_twice_calls_back_once() -> None:
    calls: list[int] = []
    collector = RequestOutputCollector(DELTA, "r")
    collector.call_on_close(lambda: calls.append(1))
    collector.close()
    collector.close()
    assert calls == [1]


# ---- logprobs of the prompt, which is "x", "y"

OF_PROMPT = [[[24, -0.5, 2], [1, -0.25, 1]]]


@pytest.mark.parametrize("kind", [DELTA, FINAL, RequestOutputKind.CUMULATIVE])
def test_logprobs_of_the_prompt_come_with_the_first_output(
    processor: OutputProcessor, kind: RequestOutputKind
) -> None:
    request = Request(processor, prompt_logprobs=1, output_kind=kind)
    request.process(prompt_logprobs=OF_PROMPT)
    assert request.collector.output is None
    expected = [None, {24: Logprob(-0.5, 2, "y"), 1: Logprob(-0.25, 1, "b")}]
    found = []
    for token, finish in ((0, None), (1, None), (2, "length")):
        request.process(token, finish=finish)
        output = request.collector.get_nowait()
        found += [] if output is None else [output.prompt_logprobs]
    if kind is DELTA:
        assert found == [expected, None, None]
    else:
        assert found == [expected] * (1 if kind is FINAL else 3)
        assert all(each is found[0] for each in found)


def test_logprobs_of_the_prompt_come_in_parts_and_encoded(processor: OutputProcessor) -> None:
    request = Request(processor, prompt_logprobs=0)
    request.state.set_prompt(Utf8(), [0xE2, 0x82, 0xAC])
    for entries in ([[0x82, -0.5, 2]], [[0xAC, -1.0, 1], [0x41, -1.5, 2]]):
        part = SequenceOutput(request.state.internal_id, prompt_logprobs=[entries])
        message = decode_core_message(encode(StepOutputs(1, 1, [part], NO_LOAD)))
        assert isinstance(message, StepOutputs)
        processor.process(message.outputs)
    request.process(0x41)
    output = request.collector.get_nowait()
    assert output is not None and output.prompt_logprobs is not None
    nothing, *positions = output.prompt_logprobs
    assert nothing is None
    assert positions == [
        {0x82: Logprob(-0.5, 2, "")},
        {0xAC: Logprob(-1.0, 1, "€"), 0x41: Logprob(-1.5, 2, "A")},
    ]


def test_logprobs_of_the_prompt_may_be_flat_and_without_text(processor: OutputProcessor) -> None:
    request = Request(processor, prompt_logprobs=1, flat_logprobs=True, detokenize=False)
    request.process(0, prompt_logprobs=OF_PROMPT)
    output = request.collector.get_nowait()
    assert output is not None
    logprobs = output.prompt_logprobs
    assert isinstance(logprobs, FlatLogprobs)
    assert list(logprobs) == [{}, {24: Logprob(-0.5, 2), 1: Logprob(-0.25, 1)}]


def test_a_prompt_of_one_token_has_no_logprobs_but_a_place_for_them(
    processor: OutputProcessor,
) -> None:
    request = Request(processor, prompt_logprobs=1)
    request.state.set_prompt(LetterDecoder(), [3])
    request.process(0)
    output = request.collector.get_nowait()
    assert output is not None and output.prompt_logprobs == [None]


def test_logprobs_of_half_a_prompt_are_not_sent(processor: OutputProcessor) -> None:
    request = Request(processor, prompt_logprobs=1)
    request.state.set_prompt(LetterDecoder(), [23, 24, 1])
    request.process(prompt_logprobs=OF_PROMPT)
    processor.start_abort(request.state)
    request.process(prompt_logprobs=OF_PROMPT, finish="abort")
    output = request.collector.get_nowait()
    assert output is not None and output.prompt_logprobs is None


def test_outputs_that_wait_together_keep_the_prompt_s_logprobs() -> None:
    first = SequenceOutput("r", prompt_logprobs=[["x"]])
    second = SequenceOutput("r", prompt_logprobs=[["y"]])
    merged = merge_outputs(merge_outputs(first, second), SequenceOutput("r", [1]))
    assert merged.prompt_logprobs == [["x"], ["y"]]
    assert merge_outputs(SequenceOutput("r"), SequenceOutput("r")).prompt_logprobs is None


def test_an_answer_that_repeats_itself_says_so_and_keeps_its_text(
    processor: OutputProcessor,
) -> None:
    request = Request(processor)
    request.process(0, 1, 0, 1, finish="repetition", stop_reason="repetition_detected")
    output = request.collector.get_nowait()
    assert output is not None
    (completion,) = output.outputs
    assert (completion.text, completion.token_ids) == ("abab", [0, 1, 0, 1])
    assert completion.finish_reason == "repetition"
    assert completion.stop_reason == "repetition_detected"
