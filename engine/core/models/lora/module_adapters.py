"""Adapters of a model that transformers' modules compute: what they add to its linear layers.

Each layer that may be adapted has a hook, which adds to the rows of a step that have an adapter
what it says, and leaves the others as they are. A row's sum has one order, however many rows there
are (engine/core/models/modules/linear.py), so that no answer depends on who else has the adapter.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from engine.core.attention.paged import StepContext
from engine.core.models.lora.adapter_folder import AdapterWeights, LowRank
from engine.core.models.modules.linear import PackedLinear, pack_linear
from engine.core.tensors.batch import AdapterRows, round_up

Delta = Callable[[Tensor], Tensor]  # [num_rows, inputs] → [num_rows, outputs], float32


@dataclass(frozen=True, slots=True)
class ModuleAdapter:
    """An adapter on the model's device."""

    deltas: dict[str, Delta]  # by the layer's name


class ModuleAdapters:
    """The layers of one model that may be adapted, with their hooks.

    Which those are, a trial shows: those that see each token's row once. While the context has no
    batch, calls are counted.
    """

    def __init__(self, model: nn.Module, context: StepContext, num_trial_rows: int) -> None:
        self.shapes: dict[str, tuple[int, int]] = {}  # outputs, inputs; known after the trial
        self._context = context
        self._num_trial_rows = num_trial_rows
        self._num_calls: dict[str, int] = {}
        self._device = next(model.parameters()).device
        self._layers = _linear_layers(model)
        self._hooks = {
            name: layer.register_forward_hook(partial(self._hook, name))
            for name, layer in self._layers.items()
        }

    def end_trial(self) -> None:
        """Keep those that were called once, on all rows; the model itself is not kept."""
        for name, layer in self._layers.items():
            if self._num_calls.get(name) == 1:
                self.shapes[name] = _shape(layer)
            else:
                self._hooks.pop(name).remove()
        self._layers = {}

    def prepare(self, weights: AdapterWeights) -> ModuleAdapter:
        """The adapter as the hooks compute it."""
        ops, device = self._context.ops, self._device
        deltas: dict[str, Delta] = {}
        for name, low_rank in weights.modules.items():
            if ops.name == "cpu":
                deltas[name] = nn.Sequential(
                    pack_linear(low_rank.down, None, ops), pack_linear(low_rank.up, None, ops)
                )
            else:
                down, up = low_rank.down.to(device), low_rank.up.to(device)
                deltas[name] = partial(self._compute_padded, LowRank(down, up))
        return ModuleAdapter(deltas)

    def _hook(
        self, name: str, layer: nn.Module, args: tuple[Any, ...], output: Any
    ) -> Tensor | None:
        batch = self._context.batch
        if batch is None:
            self._count(name, args, output)
            return None
        if not batch.adapters:
            return None
        added: Tensor = output.contiguous()
        for part in batch.adapters:
            if (delta := part.adapter.deltas.get(name)) is not None:
                _add(delta, part, args[0], added)
        return added

    def _count(self, name: str, args: tuple[Any, ...], output: Any) -> None:
        sees_all = len(args) == 1 and args[0].shape[:-1].numel() == self._num_trial_rows
        self._num_calls[name] = self._num_calls.get(name, 0) + (1 if sees_all else 2)

    def _compute_padded(self, low_rank: LowRank, rows: Tensor) -> Tensor:
        """By torch, with as many rows as give the same bits (engine/core/runner/invariance.py)."""
        num_rows = len(rows)
        padding = round_up(num_rows, self._context.row_multiple) - num_rows
        padded = functional.pad(rows, (0, 0, 0, padding))
        down = functional.linear(padded, low_rank.down)
        return functional.linear(down, low_rank.up)[:num_rows]


def _add(delta: Delta, part: AdapterRows, rows: Tensor, out: Tensor) -> None:
    """Add to the rows of one adapter. rows: [..., inputs], out: [..., outputs], written."""
    places = part.on(out.device)
    flat = out.view(-1, out.shape[-1])
    more = delta(rows.reshape(-1, rows.shape[-1])[places].float())
    flat[places] = (flat[places].float() + more).to(out.dtype)


def _linear_layers(model: nn.Module) -> dict[str, Any]:
    """By name, without the output layer, which sees the rows of few tokens only."""
    # It is a method of transformers' models, which `nn.Module` does not declare.
    output: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D | PackedLinear) and module is not output
    }


def _shape(layer: Any) -> tuple[int, int]:
    first, second = layer.weight.shape
    return (second, first) if isinstance(layer, Conv1D) else (first, second)
