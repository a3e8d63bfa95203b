"""What a checkpoint for sequence classification has in the place of an output layer.

Its other weights are those of a causal language model, which is loaded as ever; that model's output
layer is then its embeddings, read by nobody. Activations are chosen as vLLM chooses them.
"""

from collections.abc import Mapping
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from engine.core.models.checkpoint import Checkpoint
from engine.core.sampling.classifier_head import ClassifierHead
from engine.errors import UnsupportedModelError

SUFFIX = "ForSequenceClassification"
WEIGHT = "score.weight"
# transformers' names for what a model was trained to tell, and what its numbers then are.
_OF_PROBLEM = {"regression": "none", "multi_label_classification": "sigmoid"}
_OF_MODULE = {"Identity": "none", "Sigmoid": "sigmoid"}  # of torch.nn


def classifies(config: Mapping[str, Any]) -> bool:
    """Whether config.json, which is checked, is of a checkpoint for sequence classification."""
    return any(name.endswith(SUFFIX) for name in config.get("architectures") or ())


def read_head(checkpoint: Checkpoint, config: Any, width: int) -> ClassifierHead:
    """The head of a checkpoint that `classifies`. Raises UnsupportedModelError.

    `config` is transformers', `width` that of the model's hidden states.
    """
    num_classes: int = config.num_labels
    if not checkpoint.tensors:  # random weights were asked for
        random = torch.Generator().manual_seed(0)
        weight = torch.randn((num_classes, width), generator=random, dtype=torch.float64)
    else:
        weight = _read_weight(checkpoint)
    if tuple(weight.shape) != (num_classes, width):
        raise UnsupportedModelError(
            f"{checkpoint.config_file}: describes {num_classes} classes of hidden states of "
            f"{width}, but {WEIGHT} has the shape {list(weight.shape)}"
        )
    activations = {"classify": _activation(config, num_classes)}
    if num_classes == 1:
        activations["score"] = _score_activation(checkpoint, "sigmoid")
    return ClassifierHead(weight, activations)


def _read_weight(checkpoint: Checkpoint) -> Tensor:
    stored = checkpoint.tensors.get(WEIGHT)
    if stored is None:
        raise UnsupportedModelError(
            f"{checkpoint.weights_file}: lacks {WEIGHT}, by which it would classify"
        )
    with safe_open(stored.file, framework="pt") as file:
        weight: Tensor = file.get_tensor(WEIGHT)
    return weight.double()


def _activation(config: Any, num_classes: int) -> str:
    problem = str(getattr(config, "problem_type", None))
    return _OF_PROBLEM.get(problem, "sigmoid" if num_classes == 1 else "softmax")


def _score_activation(checkpoint: Checkpoint, default: str) -> str:
    """As sentence-transformers wrote it down, in either of its generations."""
    config = checkpoint.config
    section = config.get("sentence_transformers")
    name = section.get("activation_fn") if isinstance(section, dict) else None
    name = name or config.get("sbert_ce_default_activation_function")
    if name is None:
        return default
    known = _OF_MODULE.get(str(name).rpartition(".")[2])
    if known is None:
        raise UnsupportedModelError(
            f"{checkpoint.config_file}: scores have the activation {name!r}, which is not known"
        )
    return known
