"""How a random number picks a token: the torch reference of the op `choose_tokens`.

The number is looked up in the cumulative weights: of all tokens in order of their ids, or, where
top-k or top-p leave only the best, from the heaviest downwards. Weights are summed in float64, so
that the order of a sum does not decide on which side of a border the number falls.

Rows cost what they ask for: greedy rows only the maximum, plain random rows one pass over the
vocabulary, top-k and top-p rows the best few candidates unless those do not hold enough weight.
"""

from collections.abc import Callable

import torch
from torch import Tensor

NUM_CANDIDATES = 128  # looked at first for top-k and top-p; rows that need more are sorted whole

# As `choose_tokens_reference` below.
ChooseTokens = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], None]


def choose_tokens_reference(
    logits: Tensor,  # [num_rows, vocab] float32
    temperatures: Tensor,  # [num_rows] float64, 0 = the best token
    min_p: Tensor,  # [num_rows] float64: tokens below this share of the best one's weight are out
    top_p: Tensor,  # [num_rows] float64: the fewest that hold this share of the weight, 1 = all
    top_k: Tensor,  # [num_rows] int64: of at most so many, the vocabulary's size = all
    uniforms: Tensor,  # [num_rows] float64 in [0, 1)
    tokens: Tensor,  # [num_rows] int64, written; -1 where the maximum is not finite
) -> None:
    """Choose a token for each row; a row's choice depends on this row alone."""
    maxima, best = logits.max(dim=-1)
    is_finite = maxima.isfinite()
    tokens.copy_(torch.where(is_finite, best, -1))
    is_random = is_finite & (temperatures > 0)
    is_cut = (top_k < logits.shape[1]) | (top_p < 1)
    for rows in (is_random & ~is_cut, is_random & is_cut):
        if not rows.any():
            continue
        numbers = (temperatures, min_p, top_p, top_k, uniforms)
        temperature, least, share, count, uniform = (n[rows].unsqueeze(1) for n in numbers)
        # The weight of the best is 1.
        weights = (logits[rows] - maxima[rows, None]).div_(temperature.float()).exp_()
        weights.masked_fill_(weights < least, 0)
        if (rows & is_cut).any():
            tokens[rows] = choose_truncated(weights, count, share, uniform)
        else:
            cumulative = weights.cumsum(-1, dtype=torch.float64)
            tokens[rows] = _invert(cumulative, cumulative[:, -1:], uniform).squeeze(1)


def choose_truncated(
    weights: Tensor,  # [n, vocab] float32, not negative
    top_k: Tensor,  # [n, 1] whole numbers, the vocabulary's size is "off"
    top_p: Tensor,  # [n, 1] float64, 1 is "off"
    uniform: Tensor,  # [n, 1] float64
    num_candidates: int = NUM_CANDIDATES,
) -> Tensor:  # [n] int64
    """Keep the `top_k` heaviest tokens, of these the fewest that hold `top_p` of the weight; draw.

    Only `num_candidates` tokens are sorted. A row that would need more is done again with all of
    them, which depends on this row alone, so that its result does not depend on the batch.
    """
    vocab = weights.shape[1]
    num_candidates = min(num_candidates, vocab)
    heaviest, ids = weights.topk(num_candidates, dim=-1)  # [n, num_candidates], descending
    places = torch.arange(num_candidates, device=weights.device)
    kept = heaviest.double().masked_fill_(places >= top_k, 0)
    cumulative = kept.cumsum(-1)
    border = top_p * torch.where(
        top_k <= num_candidates,
        cumulative[:, -1:],
        weights.sum(-1, keepdim=True, dtype=torch.float64),
    )
    num_kept = (cumulative < border).sum(-1, keepdim=True).add_(1).clamp_(max=num_candidates)
    choice = _invert(cumulative, cumulative.gather(1, num_kept - 1), uniform)
    tokens = ids.gather(1, choice).squeeze(1)
    if num_candidates < vocab:
        needs_more = (top_k > num_candidates) & ((cumulative[:, -1:] < border) | (top_k < vocab))
        rows = needs_more.squeeze(1)
        if rows.any():
            tokens[rows] = choose_truncated(
                weights[rows], top_k[rows], top_p[rows], uniform[rows], vocab
            )
    return tokens


def _invert(cumulative: Tensor, total: Tensor, uniform: Tensor) -> Tensor:
    """The first index of each row whose cumulative weight is above `uniform * total`. [n, 1]"""
    return torch.searchsorted(cumulative, uniform * total, right=True)
