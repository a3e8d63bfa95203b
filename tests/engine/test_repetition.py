"""Repetition at the end of an answer, against the definition written out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ValidationError
from engine.repetition import MAX_PATTERN_SIZE, RepetitionDetectionParams
from engine.sampling_params import SamplingParams
from tests.engine.helpers.fakes import FakeModel, make_scheduler
from tests.engine.helpers.scheduler_run import Run


def is_repeated(answer: list[int], params: RepetitionDetectionParams) -> bool:
    """Whether some pattern, written so often, is how the answer ends."""
    sizes = range(max(1, params.min_pattern_size), params.max_pattern_size + 1)
    written = [answer[-size:] * params.min_count for size in sizes if size <= len(answer)]
    return any(answer[-len(each) :] == each for each in written)


@given(
    prompt=st.lists(st.integers(0, 1), max_size=4),
    answer=st.lists(st.integers(0, 1), min_size=1, max_size=14),
    later=st.lists(st.integers(0, 1), max_size=3),
    sizes=st.lists(st.integers(0, 5), min_size=2, max_size=2).map(sorted),
    min_count=st.integers(2, 4),
)
def test_it_is_found_where_the_answer_ends_in_a_pattern_written_so_often(
    prompt: list[int], answer: list[int], later: list[int], sizes: list[int], min_count: int
) -> None:
    params = RepetitionDetectionParams(sizes[1], sizes[0], min_count)
    start, end = len(prompt), len(prompt) + len(answer)
    found = params.is_found(prompt + answer + later, start, end)
    assert found == is_repeated(answer, params)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ((-1,), "max_pattern_size"),
        ((MAX_PATTERN_SIZE + 1, 0, 2), "max_pattern_size"),
        ((True, 0, 2), "max_pattern_size"),
        ((2, 3, 2), "min_pattern_size"),
        ((0, 1), "min_pattern_size"),
        ((2, 1, 1), "min_count"),
        ((2, 1, 2.0), "min_count"),
    ],
)
def test_wrong_values_are_refused(values: tuple[int, ...], name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RepetitionDetectionParams(*values)
    assert caught.value.parameter == name


def test_only_such_parameters_are_accepted() -> None:
    params = SamplingParams(repetition_detection=RepetitionDetectionParams(3, 1, 2))
    assert params.clone() == params
    params.repetition_detection = True  # type: ignore[assignment]  # as a caller may
    with pytest.raises(ValidationError) as caught:
        params.clone()
    assert caught.value.parameter == "repetition_detection"


def run_script(script: list[int], **fields: object) -> tuple[list[int], str, int | str | None]:
    """The answer of a model that says this over and over, and how it ended."""
    model = FakeModel(lambda sequence: script[sequence.num_output_tokens % len(script)])
    run = Run(make_scheduler(), model)
    run.add("r", 3, max_tokens=20, **fields)
    while run.scheduler.sequences:
        run.step()
    assert len(run.ends()) == 1
    ends = [output for output in run.outputs if output.finish_reason is not None]
    return run.tokens("r"), ends[0].finish_reason or "", ends[0].stop_reason


def test_an_answer_ends_with_the_token_that_completes_the_repetition() -> None:
    params = RepetitionDetectionParams(3, 2, 3)
    expected = ([7, 8, 9] * 3, "repetition", "repetition_detected")
    assert run_script([7, 8, 9], repetition_detection=params) == expected
    small = RepetitionDetectionParams(2, 1, 2)
    assert run_script([7, 8, 9], repetition_detection=small)[1] == "length"
    off = RepetitionDetectionParams()
    assert run_script([7], repetition_detection=off)[1] == "length"


def test_the_prompt_is_no_part_of_it_and_resumed_tokens_are() -> None:
    params = RepetitionDetectionParams(1, 1, 3)
    prompted = run_script([7], prompt=[7, 7, 7], repetition_detection=params)
    assert prompted == ([7, 7, 7], "repetition", "repetition_detected")
    resumed = run_script([7], resume_token_ids=[7, 7], repetition_detection=params)
    assert resumed == ([7], "repetition", "repetition_detected")
    ended = run_script([7], resume_token_ids=[7, 7, 7], repetition_detection=params)
    assert ended == ([], "repetition", "repetition_detected")


def test_other_ends_come_first_and_min_tokens_count() -> None:
    params = RepetitionDetectionParams(1, 1, 2)
    assert run_script([7], repetition_detection=params, min_tokens=5)[0] == [7] * 5
    stopped = run_script([7], repetition_detection=params, stop_token_ids=[7], min_tokens=1)
    assert stopped == ([7, 7], "stop", 7)
    model_s_own = run_script([5, 0], repetition_detection=RepetitionDetectionParams(2, 1, 2))
    assert model_s_own == ([5, 0], "stop", None)
