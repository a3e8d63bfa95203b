"""`Scores`: what a layer makes of the products of its queries and keys."""

from typing import NamedTuple

from torch import Tensor


class Scores(NamedTuple):
    """Arguments of attention that stay the same from step to step."""

    scale: float
    sliding_window: int = 0  # so many tokens are seen, the query's own among them; 0 = all
    softcap: float = 0.0  # 0 = off
    sinks: Tensor | None = None  # [num_heads]
