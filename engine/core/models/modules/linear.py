"""Linear layers with packed weights, on a CPU: `torch.ops.parley.linear`.

Their sums have one order, whatever the number of rows, so that these layers need no padding
(engine/core/runner/invariance.py); and with few rows they are about twice as fast as torch's own.
In float32 they replace torch's, and with a `quantization` those of every other type, too.
Otherwise torch's own is kept in bfloat16: what was measured gave the same bits for any number of
rows.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from transformers.pytorch_utils import Conv1D

from engine.core.models.stored_weights import JoinedNumbers, StoredNumbers, numbers_of
from engine.core.ops.library import Linear, Ops
from engine.core.ops.numbers import widest_of
from engine.core.ops.packing import INTERLEAVED, PackedWeight, unpack

logger = logging.getLogger(__name__)


_FACTS = frozenset(("shape", "dtype", "device", "ndim", "is_meta", "is_cuda", "requires_grad"))
_QUESTIONS = frozenset(("size", "dim", "numel", "element_size", "is_floating_point", "__len__"))


class WeightOfPanels(Tensor):
    """The weight of a packed layer, for code that asks the layer for it: [num_outputs, num_inputs].

    It has shape, type and device without memory of its own. Some models bypass the layer and
    compute with its weight themselves, as routers do: they get what `numbers` returns.
    """

    numbers: Callable[[], Tensor]

    @staticmethod
    def __new__(
        cls, shape: Sequence[int], dtype: torch.dtype, numbers: Callable[[], Tensor]
    ) -> Any:
        make: Any = Tensor._make_wrapper_subclass
        weight = make(cls, tuple(shape), dtype=dtype, device="cpu")
        weight.numbers = numbers
        return weight

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """What is called with it: a function, or the `__get__` and `__set__` of an attribute."""
        of = getattr(getattr(function, "__self__", None), "__name__", function.__name__)
        if of in _FACTS | _QUESTIONS:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs or {})
        args, kwargs = _with_numbers(args, kwargs or {})
        return function(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares it without its function
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """The same for what comes from C++."""
        args, kwargs = _with_numbers(args, kwargs or {})
        return function(*args, **kwargs)


def _with_numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return tree_map_only(WeightOfPanels, lambda weight: weight.numbers(), (args, kwargs))


class PackedLinear(nn.Module):
    """In the place of an `nn.Linear`, or of GPT-2's `Conv1D`, whose weight lies the other way.

    `weight` has the layer's shape and numbers, of type `dtype`, and no memory unless it is read.
    """

    def __init__(
        self,
        packed: PackedWeight,
        layer: int,
        shape: tuple[int, ...],
        bias: Tensor | None,
        ops: Ops,
        dtype: torch.dtype,
    ) -> None:
        """`packed` holds its weight as that of one of its layers. `shape` is without padding."""
        super().__init__()
        self.format = packed.format
        scales = None if packed.scales is None else packed.scales[layer]
        self.register_buffer("panels", packed.panels[layer], persistent=False)
        self.register_buffer("scales", scales, persistent=False)
        self.register_buffer("bias", None if bias is None else bias.float(), persistent=False)
        self._unpacked: Tensor | None = None
        self.weight = WeightOfPanels(shape, dtype, self._unpack)
        self._compute: Linear = ops.linear

    def forward(self, rows: Tensor) -> Tensor:
        """[..., num_inputs] → [..., num_outputs], computed in float32."""
        num_outputs, num_inputs = self.weight.shape
        flat = rows.reshape(-1, num_inputs).float()
        out = flat.new_empty((len(flat), num_outputs))
        buffers = self._buffers
        panels = self.get_buffer("panels")
        self._compute(flat, panels, buffers["scales"], buffers["bias"], out)
        return out.view(*rows.shape[:-1], num_outputs).to(rows.dtype)

    def drop(self) -> None:
        """Leave only shapes."""
        self._unpacked = None
        for name, buffer in self._buffers.items():
            self._buffers[name] = None if buffer is None else buffer.to("meta")

    def _unpack(self) -> Tensor:
        if self._unpacked is None:
            numbers = unpack(self.get_buffer("panels"), self._buffers["scales"])
            num_outputs, num_inputs = self.weight.shape
            self._unpacked = numbers[:num_outputs, :num_inputs].to(self.weight.dtype)
            logger.debug(
                "the model reads the weight of a packed layer, %s", tuple(self.weight.shape)
            )
        return self._unpacked


def pack_numbers(weights: Sequence[StoredNumbers | JoinedNumbers]) -> PackedWeight:
    """Weights of one shape, read from their files. Raises `UnsupportedModelError`."""
    num_outputs, num_inputs = weights[0].shape
    kind = widest_of(weight.kind for weight in weights)
    packed = PackedWeight.of_numbers(len(weights), num_outputs, num_inputs, kind)
    for layer, weight in enumerate(weights):
        packed.fill_numbers(layer, weight.read())
    return packed


def pack_linear(
    weight: Tensor,
    bias: Tensor | None,
    ops: Ops,
    format: str = "float32",
    dtype: torch.dtype | None = None,
) -> PackedLinear:
    """The layer of these floats; `dtype` is theirs if it is not another one."""
    packed = PackedWeight.allocate(1, weight.shape[0], weight.shape[1], format)
    packed.fill(0, weight)
    return PackedLinear(packed, 0, tuple(weight.shape), bias, ops, dtype or weight.dtype)


def _is_packable(layer: Any, format: str) -> bool:
    if numbers_of(layer) is not None:
        return True
    if format == "float32" and layer.weight.dtype != torch.float32:
        return False
    num_inputs: int = layer.weight.shape[0 if type(layer) is Conv1D else 1]
    return num_inputs % INTERLEAVED[format] == 0


def _pack(layer: Any, ops: Ops, format: str, dtype: torch.dtype | None) -> PackedLinear:
    bias = None if layer.bias is None else layer.bias.detach()
    if (stored := numbers_of(layer)) is not None:
        return PackedLinear(pack_numbers([stored]), 0, stored.shape, bias, ops, layer.weight.dtype)
    weight = layer.weight.detach()
    return pack_linear(weight.T if type(layer) is Conv1D else weight, bias, ops, format, dtype)


def pack_layers(
    model: nn.Module, ops: Ops, format: str = "float32", dtype: torch.dtype | None = None
) -> None:
    """Replace the linear layers of a model on a CPU: the float32 ones, or with other formats all.

    Those whose weights are numbers in their file are packed as these, whatever the format. Layers
    of other kinds stay, and those whose inputs don't come in whole fours, or eights for "int4".
    `dtype` is the one that all of the model is converted to afterwards, if it is.
    """
    packed: dict[nn.Module, PackedLinear] = {}  # a module may have several parents
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # named_children() leaves out repeats
            if child is None or type(child) not in (nn.Linear, Conv1D):
                continue
            if child not in packed and not _is_packable(child, format):
                continue
            if child not in packed:
                packed[child] = _pack(child, ops, format, dtype)
            setattr(parent, name, packed[child])
    if format in ("int8", "int4"):
        num_packed = sum(layer.weight.numel() for layer in packed.values())
        logger.info("%.1fM weights in %s bits", num_packed / 1e6, format.removeprefix("int"))
