"""bitsandbytes: NF4 and FP4, whose codes stand for the values of a table, and 8 bits with a scale
for each output. What a weight of four bits is like, a tensor of JSON beside it says.
"""

import json
import math
from typing import Any

from engine.errors import UnsupportedModelError
from engine.folder.quantized.declaration import Declaration
from engine.folder.quantized.layouts import Integers, Table
from engine.folder.quantized.shelf import Shelf, expect, read_bytes, sizes
from engine.folder.weight_headers import StoredTensor

MAX_SIZE = 1 << 27
LARGEST = 127  # code, which stands for the largest number of an output
_STATE = r"\.quant_state\.bitsandbytes__(nf4|fp4)$"


def find_bitsandbytes(declared: Declaration, shelf: Shelf) -> None:
    """Put the weights together that have a state or `SCB`. Raises `UnsupportedModelError`."""
    declared.must_be("bnb_4bit_quant_storage", "uint8", "torch.uint8")
    for state in shelf.names(_STATE):
        _put_table(state, shelf)
    for name in shelf.names(r"\.SCB$"):
        _put_int8(name, shelf)


def _put_int8(name: str, shelf: Shelf) -> None:
    stem = name.removesuffix(".SCB")
    codes = shelf.need(f"{stem}.weight", name)
    scales = shelf.need(name, name)
    num_outputs, num_inputs = sizes(f"{stem}.weight", codes)
    expect(f"{stem}.weight", codes, ("I8",), [codes.shape])
    expect(name, scales, ("F32",), [(num_outputs,)])
    order = shelf.take(f"{stem}.weight_format")
    if order is not None and any(read_bytes(order)):
        problem = f"{stem}.weight_format says that rows lie in another order"
        raise UnsupportedModelError(f"{order.file}: {problem}")
    layout = Integers(
        8,
        num_inputs,
        inputs_first=False,
        codes_dim=None,
        zeros_dim=None,
        scale_divisor=LARGEST,
    )
    shelf.put(f"{stem}.weight", codes.shape, layout, {"codes": codes, "scales": scales})


def _put_table(name: str, shelf: Shelf) -> None:
    own_name = name.rsplit(".quant_state.", 1)[0]
    codes = shelf.need(own_name, name)
    scales, table = (shelf.need(f"{own_name}.{end}", name) for end in ("absmax", "quant_map"))
    state = _State(name, shelf.need(name, name))
    shape = state.shape()
    num_weights = math.prod(shape)
    expect(own_name, codes, ("U8",), [(-(-num_weights // 2), 1)])
    expect(f"{own_name}.quant_map", table, ("F32",), [(16,)])
    block = state.count("blocksize", 2)
    num_blocks = -(-num_weights // block)
    parts = {"codes": codes, "scales": scales, "table": table}
    if (nested := shelf.take(f"{own_name}.nested_absmax")) is None:
        expect(f"{own_name}.absmax", scales, ("F32",), [(num_blocks,)])
        shelf.put(own_name, shape, Table(block), parts)
        return
    inner_table = shelf.need(f"{own_name}.nested_quant_map", own_name)
    inner_block = state.count("nested_blocksize")
    expect(f"{own_name}.absmax", scales, ("U8",), [(num_blocks,)])
    expect(f"{own_name}.nested_absmax", nested, ("F32",), [(-(-num_blocks // inner_block),)])
    expect(f"{own_name}.nested_quant_map", inner_table, ("F32",), [(256,)])
    parts |= {"scale_scales": nested, "scale_table": inner_table}
    shelf.put(own_name, shape, Table(block, inner_block, state.number("nested_offset")), parts)


class _State:
    """The JSON that a tensor holds. All methods raise `UnsupportedModelError`."""

    def __init__(self, name: str, tensor: StoredTensor) -> None:
        self._name, self._tensor = name, tensor
        try:
            found = json.loads(read_bytes(tensor)) if tensor.num_bytes < 1 << 16 else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._wrong("must hold an object of JSON")
        self._fields: dict[str, Any] = found

    def shape(self) -> tuple[int, ...]:
        shape = self._fields.get("shape")
        if not isinstance(shape, list) or not 1 <= len(shape) <= 3:
            raise self._wrong(f"has the shape {shape!r}")
        if not all(type(size) is int and 0 < size <= MAX_SIZE for size in shape):
            raise self._wrong(f"has the shape {shape!r}")
        return tuple(shape)

    def count(self, name: str, multiple: int = 1) -> int:
        value = self._fields.get(name)
        if type(value) is not int or not 0 < value <= MAX_SIZE or value % multiple:
            raise self._wrong(f"has {name} {value!r}, and must have a multiple of {multiple}")
        return value

    def number(self, name: str) -> float:
        value = self._fields.get(name)
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(f"has {name} {value!r}, and must have a number")
        return value

    def _wrong(self, problem: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self._tensor.file}: {self._name} {problem}")
