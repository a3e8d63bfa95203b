"""How likely the model finds the tokens of a prompt: the logprobs for `prompt_logprobs`.

The logits after a token say how likely the next one was, so the first token of a prompt has none.
Rows are taken a few at a time, because log_softmax makes a copy of them; a row's bits do not depend
on the others. `PromptRoom` of the scheduler bounds how many rows a step has.
"""

from collections.abc import Sequence as Collection

import torch
from torch import Tensor

from engine.core.scheduling.sequence import ScheduledSequence, TokenLogprobs

MAX_COPIED_LOGITS = 1 << 20  # 4 MiB: what the caches of a processor still hold


def score_prompts(scheduled: Collection[ScheduledSequence], logits: Tensor) -> None:
    """Fill in `prompt_logprobs` of the parts of a step.

    logits: [num_scored, vocab] float32, those after the scored tokens of all parts, in their order.
    """
    row = 0
    for item in scheduled:
        if not item.scored:
            continue
        params, rows = item.sequence.params, logits[row : row + len(item.scored)]
        row += len(item.scored)
        assert params.prompt_logprobs is not None
        followers = item.sequence.token_ids[item.scored.start + 1 : item.scored.stop + 1]
        item.prompt_logprobs = _score(rows, followers, params.prompt_logprobs)


def _score(logits: Tensor, token_ids: list[int], num_best: int) -> list[TokenLogprobs]:
    """Of each row its token, and the best ones: -1 is all of them. logits: [n, vocab] float32."""
    vocab = logits.shape[1]
    num_best = vocab if num_best == -1 else min(num_best, vocab)
    step = max(1, MAX_COPIED_LOGITS // vocab)
    scores: list[TokenLogprobs] = []
    for start in range(0, len(token_ids), step):
        ids = token_ids[start : start + step]
        scores += _score_slice(logits[start : start + step].log_softmax(-1), ids, num_best)
    return scores


def _score_slice(logprobs: Tensor, token_ids: list[int], num_best: int) -> list[TokenLogprobs]:
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=logprobs.device)[:, None])  # [n, 1]
    ranks = (logprobs > chosen).sum(-1).add(1)
    best = logprobs.topk(num_best)
    columns = (chosen[:, 0], ranks, best.indices, best.values)
    of_rows = zip(token_ids, *(column.tolist() for column in columns), strict=True)
    return [[(token, value, rank), *_ranked(token, *top)] for token, value, rank, *top in of_rows]


def _ranked(token: int, ids: list[int], values: list[float]) -> TokenLogprobs:
    """The best ones besides this token. Those that are equally likely have the same rank."""
    ranked: TokenLogprobs = []
    rank, last = 0, None
    for place, (token_id, value) in enumerate(zip(ids, values, strict=True), start=1):
        if value != last:
            rank, last = place, value
        if token_id != token:
            ranked.append((token_id, value, rank))
    return ranked
