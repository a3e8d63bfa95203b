import logging
from typing import Any

import pytest

from engine.logprobs import Logprob
from engine.outputs import CompletionOutput, RequestOutput


def _completion(text: str, ids: list[int], index: int = 0, **more: Any) -> CompletionOutput:
    return CompletionOutput(index=index, text=text, token_ids=ids, **more)


def _output(*completions: CompletionOutput, finished: bool = False, **more: Any) -> RequestOutput:
    return RequestOutput("r", "prompt", [1], None, list(completions), finished, **more)


def test_deltas_join() -> None:
    first = _output(_completion("a", [1], logprobs=[{1: Logprob(-1.0)}], cumulative_logprob=-1.0))
    later = _completion(
        "b",
        [2],
        logprobs=[{2: Logprob(-2.0)}],
        cumulative_logprob=-3.0,
        finish_reason="stop",
        stop_reason="x",
        routed_experts=[7],
    )
    first.add(_output(later, finished=True, num_cached_tokens=16), aggregate=True)
    (joined,) = first.outputs
    assert (joined.text, joined.token_ids, joined.cumulative_logprob) == ("ab", [1, 2], -3.0)
    assert joined.logprobs == [{1: Logprob(-1.0)}, {2: Logprob(-2.0)}]
    assert (joined.finish_reason, joined.stop_reason, joined.finished()) == ("stop", "x", True)
    assert joined.routed_experts == [7]
    assert (first.finished, first.num_cached_tokens) == (True, 16)


def test_the_prompt_s_logprobs_stay_whichever_output_has_them() -> None:
    logprobs: list[Any] = [None, {1: Logprob(-1.0)}]
    first = _output(_completion("a", [1]))
    with_them = RequestOutput("r", "prompt", [1, 1], logprobs, [], False)
    for later in (with_them, _output(_completion("b", [2]))):
        first.add(later, aggregate=True)
    assert first.prompt_logprobs == logprobs


def test_whole_answers_replace_by_index() -> None:
    first = _output(_completion("a", [1]), _completion("x", [9], index=1))
    first.add(_output(_completion("ab", [1, 2])), aggregate=False)
    assert [(c.index, c.text) for c in first.outputs] == [(0, "ab"), (1, "x")]


def test_completion_of_another_index_is_added() -> None:
    first = _output(_completion("a", [1]))
    first.add(_output(_completion("x", [9], index=1)), aggregate=True)
    assert [(c.index, c.text) for c in first.outputs] == [(0, "a"), (1, "x")]


def test_finished_is_kept() -> None:
    first = _output(finished=True)
    first.add(_output(), aggregate=True)
    assert first.finished


def test_unknown_arguments_are_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        _output(novelty=1)
    assert "novelty" in caplog.text
