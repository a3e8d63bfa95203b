"""What `logprobs` reports of one token of an answer, in each `logprobs_mode` of the engine.

    raw         the model's own logits, before penalties and temperature
    processed   those that the token is drawn from, after all parameters; -inf: these rule it out

Each as logits or as logprobs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.core.scheduling.sequence import TokenLogprobs
from engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class LogprobsMode:
    """An engine's `logprobs_mode`, taken apart."""

    is_processed: bool = False
    is_logits: bool = False

    @classmethod
    def of(cls, name: str) -> "LogprobsMode":
        """Of names as `raw_logprobs` and `processed_logits`."""
        kind, _, unit = name.partition("_")
        return cls(kind == "processed", unit == "logits")


def token_logprobs(
    logits: Tensor, token: int, params: SamplingParams, mode: LogprobsMode
) -> TokenLogprobs:
    """(token id, logprob, rank) of the chosen token, then of the best and the asked for.

    logits: [vocab] float32, the model's own, or where the mode is processed after all edits.
    """
    assert params.logprobs is not None
    if mode.is_processed:
        logits = processed_logits(logits, params, token)
    values_of = logits if mode.is_logits else logits.log_softmax(-1)
    vocab = len(values_of)
    num_best = vocab if params.logprobs == -1 else min(params.logprobs, vocab)
    best = values_of.topk(num_best).indices.tolist()
    wanted = list(dict.fromkeys([token, *best, *(params.logprob_token_ids or ())]))
    values = values_of[wanted]
    if num_best == vocab:
        rank_of = {token_id: rank for rank, token_id in enumerate(best, start=1)}
        ranks = [rank_of[token_id] for token_id in wanted]
    else:
        ranks = (values_of > values.unsqueeze(1)).sum(-1).add(1).tolist()
    return list(zip(wanted, values.tolist(), ranks, strict=True))


def processed_logits(logits: Tensor, params: SamplingParams, token: int) -> Tensor:
    """The edited logits over the temperature, -inf for what min-p, top-k and top-p rule out.

    logits: [vocab] float32. What is as heavy as the chosen token is never ruled out: on a border
    the op that chose may have rounded differently.
    """
    if params.is_greedy:
        return logits
    weights = logits.sub(logits.max()).div_(params.temperature).exp_()  # the best one's is 1
    floor = _least_weight(weights, params)
    if not params.trace_decode_token_ids:  # of which none was chosen
        floor = min(floor, float(weights[token]))
    return logits.div(params.temperature).masked_fill_(weights < floor, -torch.inf)


def _least_weight(weights: Tensor, params: SamplingParams) -> float:
    """The weight of the last token that may be drawn. weights: [vocab] float32, the best is 1."""
    floor, top_k = params.min_p, params.top_k
    has_top_k = 0 < top_k < len(weights)
    if not has_top_k and params.top_p == 1:
        return floor
    heaviest = weights.masked_fill(weights < floor, 0).sort(descending=True).values.double()
    if has_top_k:
        heaviest = heaviest[:top_k]
    num_kept = len(heaviest)
    if params.top_p < 1:
        cumulative = heaviest.cumsum(0)
        num_below = int((cumulative < params.top_p * cumulative[-1]).sum())
        num_kept = min(num_kept, num_below + 1)
    return max(floor, float(heaviest[num_kept - 1]))
