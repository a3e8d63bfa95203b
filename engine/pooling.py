"""`PoolingParams` and `PoolingRequestOutput`: the types of `encode()`, which embeds a prompt.

A prompt becomes one vector of the model's last hidden states, those after the last norm. The names
are vLLM's; there `pooling_type` is a setting of the engine, here of each request.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from engine.errors import ValidationError, refuse
from engine.sampling_params import RequestOutputKind

POOLING_TYPES = ("LAST", "MEAN", "CLS")
ABSENT_TASKS = ("classify", "score", "token_embed", "token_classify", "plugin")  # vLLM's others


class PoolingParams(msgspec.Struct, kw_only=True):
    """Parameters of one embedding request. `ValidationError` names a wrong value."""

    task: str | None = None  # None is "embed"
    dimensions: int | None = None  # only the first ones, of which the length is then 1
    normalize: bool | None = None  # to length 1, which is the default
    use_activation: bool | None = None  # the same, in the name that later versions of vLLM have
    # Which hidden states: of the last token, the mean of all, or of the first token.
    pooling_type: str = "LAST"
    skip_reading_prefix_cache: bool | None = None

    def __post_init__(self) -> None:
        if self.task in ABSENT_TASKS:  # they need heads, or outputs for each token
            raise NotImplementedError(f"the pooling task {self.task!r} is not implemented")
        if self.task not in (None, "embed"):
            raise refuse("task", self.task, "must be embed")
        if self.dimensions is not None and (
            type(self.dimensions) is not int or self.dimensions < 1
        ):
            raise refuse("dimensions", self.dimensions, "must be an integer of at least 1")
        for name in ("normalize", "use_activation", "skip_reading_prefix_cache"):
            if not isinstance(getattr(self, name), bool | None):
                raise refuse(name, getattr(self, name), "must be True, False or None")
        if {self.normalize, self.use_activation} == {True, False}:
            raise refuse("use_activation", self.use_activation, "must be as normalize")
        kind = self.pooling_type
        if not isinstance(kind, str) or kind.upper() not in POOLING_TYPES:
            raise refuse("pooling_type", kind, f"must be one of {', '.join(POOLING_TYPES)}")
        self.pooling_type = kind.upper()

    @property
    def is_normalized(self) -> bool:
        return self.normalize is not False and self.use_activation is not False

    @property
    def output_kind(self) -> RequestOutputKind:
        """There is one output."""
        return RequestOutputKind.FINAL_ONLY

    @property
    def skips_prefix_cache(self) -> bool:
        """Whether every token must be computed: the cache has no hidden states."""
        return bool(self.skip_reading_prefix_cache) or self.pooling_type != "LAST"

    def clone(self) -> "PoolingParams":
        """A copy. `ValidationError` if a value was made wrong since."""
        return PoolingParams(**msgspec.structs.asdict(self))


def check_dimensions(params: PoolingParams, embedding_size: int) -> None:
    """`ValidationError` for more dimensions than the model has; 0: the core makes no embeddings."""
    if not embedding_size:
        raise ValidationError("this engine core makes no embeddings", "pooling_params", None)
    if params.dimensions is not None and params.dimensions > embedding_size:
        problem = f"must be at most {embedding_size}, the size of the model's hidden states"
        raise refuse("dimensions", params.dimensions, problem)


@dataclass(slots=True)
class PoolingOutput:
    """One embedding, as plain numbers: no torch in the client half."""

    data: list[float]  # empty after an abort or an error

    @property
    def embedding(self) -> list[float]:
        return self.data

    @property
    def hidden_size(self) -> int:
        return len(self.data)


@dataclass(slots=True)
class PoolingRequestOutput:
    """The one output of an embedding request."""

    request_id: Any
    outputs: PoolingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int
    finished: bool
    error: Any = None  # an `OutputError`, with finish reason "error"
    finish_reason: str | None = None  # stop, abort or error
    metrics: Any = None  # `RequestMetrics`


EmbeddingRequestOutput = PoolingRequestOutput
