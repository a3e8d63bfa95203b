"""`ClassifierHead`: a number for each class."""

import pytest
import torch

from engine.core.sampling.classifier_head import ClassifierHead

WEIGHT = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
VECTOR = torch.tensor([0.5, -1.0], dtype=torch.float64)
LOGITS = torch.tensor([0.5, -2.0, -0.5], dtype=torch.float64)


@pytest.mark.parametrize(
    ("activation", "expected"),
    [("softmax", LOGITS.softmax(0)), ("sigmoid", torch.sigmoid(LOGITS)), ("none", LOGITS)],
)
def test_the_task_says_what_becomes_of_the_numbers(activation: str, expected: torch.Tensor) -> None:
    head = ClassifierHead(WEIGHT, {"classify": activation})
    assert head.tasks == ("classify",)
    assert torch.allclose(head.apply(VECTOR, "classify", True), expected)
    assert head.apply(VECTOR, "classify", False).equal(LOGITS)
