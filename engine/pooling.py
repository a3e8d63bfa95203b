"""`PoolingParams` and `PoolingRequestOutput`: the types of `encode()`, which embeds or classifies.

A prompt becomes one vector of the model's last hidden states, those after the last norm, and in a
model that classifies a number for each class. The names are vLLM's; there `pooling_type` is a
setting of the engine, here of each request.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.errors import ValidationError, refuse
from engine.sampling_params import RequestOutputKind

POOLING_TYPES = ("LAST", "MEAN", "CLS")
CLASSIFYING_TASKS = ("classify", "score")
GENERATING_TASKS = ("generate", "embed")  # of a model that writes answers
ABSENT_TASKS = ("token_embed", "token_classify", "plugin")  # vLLM's others


class PoolingParams(msgspec.Struct, kw_only=True):
    """Parameters of one request to `encode`. `ValidationError` names a wrong value."""

    task: str | None = None  # embed, classify, score; None is "embed"
    dimensions: int | None = None  # of an embedding: only the first ones, whose length is then 1
    normalize: bool | None = None  # an embedding to length 1, which is the default
    # The same, in the name that later versions of vLLM have. Of classes: probabilities, which is
    # the default, or the numbers that they are made of.
    use_activation: bool | None = None
    # Which hidden states: of the last token, the mean of all, or of the first token.
    pooling_type: str = "LAST"
    skip_reading_prefix_cache: bool | None = None

    def __post_init__(self) -> None:
        if self.task in ABSENT_TASKS:  # they have outputs for each token
            raise NotImplementedError(f"the pooling task {self.task!r} is not implemented")
        if self.task not in (None, "embed", *CLASSIFYING_TASKS):
            raise refuse("task", self.task, "must be embed, classify or score")
        if self.dimensions is not None and (
            type(self.dimensions) is not int or self.dimensions < 1
        ):
            raise refuse("dimensions", self.dimensions, "must be an integer of at least 1")
        for name in ("normalize", "use_activation", "skip_reading_prefix_cache"):
            if not isinstance(getattr(self, name), bool | None):
                raise refuse(name, getattr(self, name), "must be True, False or None")
        if {self.normalize, self.use_activation} == {True, False}:
            raise refuse("use_activation", self.use_activation, "must be as normalize")
        for name in ("dimensions", "normalize"):
            if self.is_classified and getattr(self, name) is not None:
                raise refuse(name, getattr(self, name), f"must be None with task {self.task!r}")
        kind = self.pooling_type
        if not isinstance(kind, str) or kind.upper() not in POOLING_TYPES:
            raise refuse("pooling_type", kind, f"must be one of {', '.join(POOLING_TYPES)}")
        self.pooling_type = kind.upper()

    @property
    def task_name(self) -> str:
        return self.task or "embed"

    @property
    def is_classified(self) -> bool:
        """Whether classes are asked for, and no embedding."""
        return self.task in CLASSIFYING_TASKS

    @property
    def is_activated(self) -> bool:
        """Whether an embedding has length 1; whether the numbers of classes are probabilities."""
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


def task_problem(params: PoolingParams | None, tasks: Iterable[str]) -> str | None:
    """What is wrong with asking for this of a model that has only `tasks`; None: nothing.

    Without parameters an answer is asked for.
    """
    task = "generate" if params is None else params.task_name
    if task in tasks:
        return None
    return f"this model has no task {task!r}: it has {', '.join(tasks)}"


@dataclass(slots=True)
class PoolingOutput:
    """An embedding, or a number for each class: plain, as the client half has no torch."""

    data: list[float]  # empty after an abort or an error

    @property
    def embedding(self) -> list[float]:
        return self.data

    @property
    def hidden_size(self) -> int:
        return len(self.data)

    @property
    def probs(self) -> list[float]:
        """Of the classes, in the order of the checkpoint's labels."""
        return self.data

    @property
    def num_classes(self) -> int:
        return len(self.data)

    @property
    def score(self) -> float:
        """The only number. `ValueError` if there are others, or none."""
        (score,) = self.data
        return score


@dataclass(slots=True)
class PoolingRequestOutput:
    """The one output of a request to `encode`."""

    request_id: Any
    outputs: PoolingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int
    finished: bool
    error: Any = None  # an `OutputError`, with finish reason "error"
    finish_reason: str | None = None  # stop, abort or error
    metrics: Any = None  # `RequestMetrics`


# vLLM has a class for each task, whose outputs have one of the names of `PoolingOutput`.
EmbeddingRequestOutput = PoolingRequestOutput
ClassificationRequestOutput = PoolingRequestOutput
ScoringRequestOutput = PoolingRequestOutput
