"""How alike two texts are, by their embeddings; and which text is compared with which."""

import math
from collections.abc import Sequence
from typing import Any

from engine.errors import ValidationError
from engine.pooling import PoolingOutput, PoolingRequestOutput


def pairs(first: Any, second: Any) -> list[tuple[str, str]]:
    """Each text of `first` with its one of `second`; a single one with all. `ValidationError`."""
    queries = [first] if isinstance(first, str) else list(first)
    texts = [second] if isinstance(second, str) else list(second)
    if not queries or not texts or (len(queries) not in (1, len(texts))):
        problem = f"there must be one text, or as many as the {len(texts)} that are compared with"
        raise ValidationError(f"{problem}, and are {len(queries)}", "data_1", None)
    for text in [*queries, *texts]:
        if not isinstance(text, str):
            raise ValidationError("texts are compared, and nothing else", "data_1", None)
    return list(zip(queries * (len(texts) // len(queries)), texts, strict=True))


def similarity(one: PoolingRequestOutput, other: PoolingRequestOutput) -> PoolingRequestOutput:
    """The cosine of the angle between two embeddings; or why there is none."""
    failed = next((each for each in (one, other) if each.finish_reason != "stop"), None)
    data = [] if failed else [_cosine(one.outputs.data, other.outputs.data)]
    return PoolingRequestOutput(
        request_id=f"{one.request_id}_{other.request_id}",
        outputs=PoolingOutput(data),
        prompt_token_ids=[*one.prompt_token_ids, *other.prompt_token_ids],
        num_cached_tokens=one.num_cached_tokens + other.num_cached_tokens,
        finished=True,
        error=None if failed is None else failed.error,
        finish_reason="stop" if failed is None else failed.finish_reason,
    )


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """0 where one of them has no direction."""
    lengths = math.hypot(*one) * math.hypot(*other)
    return math.fsum(a * b for a, b in zip(one, other, strict=True)) / lengths if lengths else 0.0
