"""Whether a new request can be served at all: the checks that need no state but the limits."""

from collections.abc import Iterable, Iterator

from engine.config import EngineConfig
from engine.core.scheduling.sequence import Problem, Sequence
from engine.pooling import task_problem


def find_problem(
    sequence: Sequence, config: EngineConfig, vocab_size: int, tasks: Iterable[str]
) -> Problem | None:
    """Why this request can never be served, if so. `config` is resolved.

    `tasks` are what the model can be asked for.
    """
    max_model_len, num_prompt_tokens = config.max_model_len, sequence.num_prompt_tokens
    assert max_model_len is not None
    if num_prompt_tokens == 0:
        return ("invalid_request", "the prompt is empty")
    is_pooled = sequence.pooling is not None
    if num_prompt_tokens + (not is_pooled) > max_model_len:
        return (
            "context_length_exceeded",
            f"the prompt has {num_prompt_tokens} tokens, the context holds {max_model_len}"
            + ("" if is_pooled else " with at least one of the answer"),
        )
    if is_pooled and sequence.num_output_tokens:
        return ("invalid_request", "a prompt that is pooled has no answer to go on with")
    if (problem := task_problem(sequence.pooling, tasks)) is not None:
        return ("unsupported_parameter", problem)
    if sequence.params.thinking_token_budget is not None and not sequence.params.thought_tokens:
        return ("invalid_request", "thinking_token_budget needs thought_tokens")
    if not all(0 <= token < vocab_size for token in _indexing_ids(sequence)):
        return ("invalid_request", f"a token id is not below {vocab_size}")
    rows = sequence.params.prompt_logprob_token_ids or []
    num_scored = num_prompt_tokens - 1 - (sequence.params.prompt_logprob_start or 0)
    if rows and (num_scored < 0 or len(rows) not in (1, num_scored)):
        return ("invalid_request", f"there are not {num_scored} rows of prompt_logprob_token_ids")
    return None


def find_congestion(
    sequence: Sequence, config: EngineConfig, *, num_ahead: int, num_waiting_tokens: int
) -> Problem | None:
    """Why this request cannot be queued behind so many others, if so.

    `num_ahead` requests still wait when the free seats are taken; negative: one is left for this.
    """
    if num_ahead < 0:
        return None
    limit = config.max_num_queued_reqs
    if limit is not None and num_ahead >= limit:
        return ("queue_full", f"{num_ahead} requests are waiting already")
    limit = config.max_num_queued_tokens
    if limit is not None and num_waiting_tokens + sequence.num_tokens > limit:
        return ("token_queue_full", f"{num_waiting_tokens} tokens are waiting already")
    return None


def _indexing_ids(sequence: Sequence) -> Iterator[int]:
    """The extremes of all ids that will index something as long as the vocabulary."""
    params = sequence.params
    yield from (min(sequence.token_ids), max(sequence.token_ids))
    for ids in (
        params.stop_token_ids,
        params.logit_bias,
        params.allowed_token_ids,
        params.logprob_token_ids,
        params.trace_decode_token_ids,
    ):
        yield from ids or ()
    for word in params.bad_words_token_ids or ():
        yield word[-1]
    for kind in params.thought_tokens.kinds if params.thought_tokens else ():
        yield from (*kind.begin, *kind.ends)
    for row in params.prompt_logprob_token_ids or ():
        yield max(0, *row)  # those below 0 stand for none
