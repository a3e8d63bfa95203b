"""Muon: momentum whose update is made orthogonal, for the matrices inside the layers.

On a budget of an hour it reaches in about half the steps what AdamW alone reaches. Embeddings and
norms stay with AdamW. Matrices of one shape are handled together, as one batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

NEWTON_SCHULZ_STEPS = 4


def orthogonalize(matrices: Tensor) -> Tensor:
    """Bring the singular values of each matrix near 1; `matrices` is [count, rows, columns]."""
    x: Tensor = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * (gram @ gram)) @ x
    return x.transpose(1, 2) if tall else x


class Muon:
    """Keeps one momentum per matrix; `learning_rate` may change between steps."""

    def __init__(self, parameters: Iterable[Tensor], learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.momentum = 0.95
        self.weight_decay = 0.02
        self.groups: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for parameter in parameters:
            self.groups[parameter.shape].append(parameter)
        self.buffers = {
            shape: torch.zeros(len(group), *shape) for shape, group in self.groups.items()
        }

    @torch.no_grad()
    def step(self) -> None:
        for shape, group in self.groups.items():
            gradient = torch.stack([_gradient(parameter) for parameter in group])
            buffer = self.buffers[shape]
            buffer.lerp_(gradient, 1 - self.momentum)
            update = orthogonalize(gradient.lerp(buffer, self.momentum))
            scale = self.learning_rate * max(1.0, shape[0] / shape[1]) ** 0.5
            for parameter, change in zip(group, update, strict=True):
                parameter.mul_(1 - self.learning_rate * self.weight_decay)
                parameter.add_(change, alpha=-scale)

    def state(self) -> dict[str, Tensor]:
        return {str(tuple(shape)): buffer for shape, buffer in self.buffers.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        for shape, buffer in self.buffers.items():
            buffer.copy_(state[str(tuple(shape))])


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
