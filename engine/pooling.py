"""`PoolingParams` and `PoolingRequestOutput`: the types of `encode()`, which is not implemented."""

from dataclasses import dataclass
from typing import Any

import msgspec


class PoolingParams(msgspec.Struct, kw_only=True):
    """Parameters of one embedding request."""

    task: str | None = None
    dimensions: int | None = None
    normalize: bool | None = None


@dataclass(slots=True)
class PoolingOutput:
    """One embedding, as plain numbers: no torch in the client half."""

    embedding: list[float]


@dataclass(slots=True)
class PoolingRequestOutput:
    """The one output of an embedding request."""

    request_id: Any
    outputs: PoolingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int
    finished: bool
    error: Any = None


EmbeddingRequestOutput = PoolingRequestOutput
