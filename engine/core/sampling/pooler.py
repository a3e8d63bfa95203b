"""The pooler: from the last hidden states of a prompt, in any chunks, to what is asked of it.

Hidden states are those after the model's last norm, which the output layer would read. Sums are in
float64 and go from token to token, so that the bits depend neither on the chunks nor on the batch.
"""

import torch
from torch import Tensor

from engine.core.sampling.classifier_head import ClassifierHead
from engine.core.scheduling.sequence import (
    Problem,
    SampledToken,
    ScheduledSequence,
    Sequence,
    Tokens,
)

NOT_FINITE: Problem = ("engine_error", "the model gave no finite hidden states")
MIN_LENGTH = 1e-12  # of what is normalized


def pool_prompts(
    scheduled: list[ScheduledSequence],
    hidden: Tensor | None,
    results: Tokens,
    head: ClassifierHead | None = None,
) -> None:
    """Take in what a step computed of pooled prompts, and write those that ended to `results`.

    hidden: [num_hidden, width] of any type, on any device: the rows of all `pooled_places`, in the
    order of the parts; None if there are none. Steps must be given in the order of their launch.
    Prompts to be classified are those of a model that has a `head`.
    """
    rows = None if hidden is None else hidden.cpu().double()
    begin = 0
    for index, item in enumerate(scheduled):
        if item.sequence.pooling is None:
            continue
        end = begin + len(item.pooled_places)
        if rows is not None and begin < end:
            _take(item, rows[begin:end])
        begin = end
        if item.is_last:
            results[index] = _result(item.sequence, head)


def _take(item: ScheduledSequence, rows: Tensor) -> None:
    """rows: [num_places, width] float64."""
    sequence = item.sequence
    if item.start > 0 and _is_mean(sequence):
        rows = torch.cat([sequence.pooled[None], rows])
    # A cumulative sum adds in the order of the rows; a plain one in an order of its own.
    sequence.pooled = rows.cumsum(0)[-1] if _is_mean(sequence) else rows[0].clone()


def _result(sequence: Sequence, head: ClassifierHead | None) -> SampledToken:
    """Of what was taken in of the whole prompt; or an error, if it is no number."""
    pooling, vector = sequence.pooling, sequence.pooled
    assert pooling is not None
    if _is_mean(sequence):
        vector = vector / sequence.num_prompt_tokens
    if pooling.is_classified:
        assert head is not None  # the scheduler knows the model's tasks
        vector = head.apply(vector, pooling.task_name, pooling.is_activated)
    else:
        vector = vector[: pooling.dimensions]
        if pooling.is_activated:
            vector = vector / vector.norm().clamp(min=MIN_LENGTH)
    vector = vector.float()
    if not vector.isfinite().all():
        return SampledToken(-1, error=NOT_FINITE)
    return SampledToken(-1, embedding=vector.numpy().tobytes())


def _is_mean(sequence: Sequence) -> bool:
    return sequence.pooling is not None and sequence.pooling.pooling_type == "MEAN"
