"""`ClassifierHead`: from the pooled hidden state of a prompt to a number for each class.

It stands where a generating model has its output layer. Sums are in float64, so that the bits
depend neither on the chunks of the prompt nor on the batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ClassifierHead:
    """What a checkpoint for sequence classification has, and what becomes of its numbers.

    `activations` says for each task: "softmax" over the classes, "sigmoid" of each, or "none".
    """

    weight: Tensor  # [num_classes, width] float64, on the CPU
    activations: Mapping[str, str]

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self.activations)

    def apply(self, vector: Tensor, task: str, is_activated: bool) -> Tensor:
        """vector: [width] float64 → [num_classes] float64."""
        logits = self.weight @ vector
        match self.activations[task] if is_activated else "none":
            case "softmax":
                return logits.softmax(0)
            case "sigmoid":
                return torch.sigmoid(logits)
        return logits
