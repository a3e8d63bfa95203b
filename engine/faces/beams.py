"""`BeamSearchOutput`: what `LLM.beam_search` gives for each prompt, in vLLM's names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.beam_search import BeamSearchParams
from engine.client.text.tokenizer import Tokenizer
from engine.logprobs import Logprob
from engine.outputs import CompletionOutput, OutputError, RequestOutput


@dataclass(slots=True)
class BeamSearchSequence:
    """One of the best answers. Its tokens are those of the prompt, too, and what ended it."""

    tokens: list[int]
    logprobs: list[Mapping[int, Logprob]]
    lora_request: Any = None
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The answers to one prompt, the best first."""

    sequences: list[BeamSearchSequence]
    error: OutputError | None = None  # why the search ended with what it had; vLLM has no such name


def whole_sequences(
    output: RequestOutput, params: BeamSearchParams, tokenizer: Tokenizer
) -> BeamSearchOutput:
    """Of what `AsyncLLM.beam_search` has found."""

    def sequence(answer: CompletionOutput) -> BeamSearchSequence:
        tokens = [*(output.prompt_token_ids or ()), *answer.token_ids]
        if isinstance(answer.stop_reason, int) and not params.include_stop_str_in_output:
            tokens.append(answer.stop_reason)
        return BeamSearchSequence(
            tokens=tokens,
            logprobs=list(answer.logprobs or ()),
            lora_request=output.lora_request,
            cum_logprob=answer.cumulative_logprob or 0.0,
            text=tokenizer.decode(tokens, params.skip_special_tokens),
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason,
        )

    return BeamSearchOutput([sequence(answer) for answer in output.outputs], output.error)
