"""How likely the model finds the tokens of a prompt, or others in their places: logprobs.

The logits after a token say how likely the next one was, so the first token of a prompt has none.
Rows are taken a few at a time, because log_softmax makes a copy of them; a row's bits do not depend
on the others. `PromptRoom` of the scheduler bounds how many rows a step has.
"""

from collections.abc import Sequence as Collection

import torch
from torch import Tensor

from engine.core.sampling.token_logprobs import LogprobsMode
from engine.core.scheduling.sequence import ScheduledSequence, TokenLogprobs

MAX_COPIED_LOGITS = 1 << 20  # 4 MiB: what the caches of a processor still hold


def score_prompts(
    scheduled: Collection[ScheduledSequence], logits: Tensor, mode: LogprobsMode
) -> None:
    """Fill in `prompt_logprobs` and `prompt_token_id_logprobs` of the parts of a step.

    logits: [num_scored, vocab] float32, those after the scored tokens of all parts, in their order.
    No parameter processes them, so that raw and processed ones are the same.
    """
    row = 0
    step = max(1, MAX_COPIED_LOGITS // logits.shape[1])
    for item in scheduled:
        for first in range(item.scored.start, item.scored.stop, step):
            places = range(first, min(first + step, item.scored.stop))
            rows = logits[row : row + len(places)]
            rows = rows if mode.is_logits else rows.log_softmax(-1)
            row += len(places)
            _score_best(item, places, rows)
            _score_ids(item, places, rows)


def _score_best(item: ScheduledSequence, places: range, logprobs: Tensor) -> None:
    """Of each place the token after it, and the best ones: -1 is all of them.

    logprobs: [num_places, vocab] float32.
    """
    num_best, vocab = item.sequence.params.prompt_logprobs, logprobs.shape[1]
    if num_best is None:
        return
    num_best = vocab if num_best == -1 else min(num_best, vocab)
    token_ids = item.sequence.token_ids[places.start + 1 : places.stop + 1]
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=logprobs.device)[:, None])  # [n, 1]
    ranks = (logprobs > chosen).sum(-1).add(1)
    best = logprobs.topk(num_best)
    columns = (chosen[:, 0], ranks, best.indices, best.values)
    of_rows = zip(token_ids, *(column.tolist() for column in columns), strict=True)
    item.prompt_logprobs += [
        [(token, value, rank), *_ranked(token, *top)] for token, value, rank, *top in of_rows
    ]


def _score_ids(item: ScheduledSequence, places: range, logprobs: Tensor) -> None:
    """Of each place those that its row of ids names. logprobs: [num_places, vocab] float32."""
    params = item.sequence.params
    rows = params.prompt_logprob_token_ids
    start = params.prompt_logprob_start or 0
    if rows is None or places.stop <= start:
        return
    logprobs = logprobs[max(0, start - places.start) :]
    if len(rows) > 1:
        rows = rows[max(0, places.start - start) : places.stop - start]
    ids = torch.tensor(rows, device=logprobs.device).expand(len(logprobs), -1)
    scores = logprobs.gather(1, ids.clamp(min=0)).masked_fill_(ids < 0, -torch.inf)
    item.prompt_token_id_logprobs += scores.cpu().numpy().tobytes()


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
