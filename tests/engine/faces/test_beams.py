"""What a beam search has found, as vLLM's `LLM` gives it."""

from pathlib import Path

import pytest

from engine import BeamSearchParams, CompletionOutput, OutputError, RequestOutput
from engine.client.text.tokenizer import Tokenizer
from engine.faces.beams import whole_sequences


@pytest.mark.parametrize("is_shown", [False, True])
def test_a_sequence_has_the_prompt_and_the_token_that_ended_it(is_shown: bool, model: Path) -> None:
    tokenizer = Tokenizer(model)
    ended = [70, 71] if is_shown else [70]
    answers = [
        CompletionOutput(0, "", ended, -1.5, [{}, {}], finish_reason="stop", stop_reason=71),
        CompletionOutput(1, "", [72, 73], -2.0, [{}, {}], finish_reason="length"),
    ]
    error = OutputError("request_timeout", "too late")
    output = RequestOutput("r", None, [68, 69], None, answers, True, error=error)
    params = BeamSearchParams(2, 2, include_stop_str_in_output=is_shown)
    found = whole_sequences(output, params, tokenizer)
    first, second = found.sequences
    assert (first.tokens, second.tokens) == ([68, 69, 70, 71], [68, 69, 72, 73])
    assert first.text == tokenizer.decode([68, 69, 70, 71])
    assert (first.cum_logprob, first.finish_reason, first.stop_reason) == (-1.5, "stop", 71)
    assert found.error == error
