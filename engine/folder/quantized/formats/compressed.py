"""compressed-tensors, as llm-compressor publishes it: groups of layers, each with its scheme.

Which group a layer belongs to is not read from the names that it aims at, which are expressions:
its tensors must fit one of the schemes. What these say of activations is for hardware that
multiplies such numbers, and is not done here.
"""

from dataclasses import dataclass

from engine.errors import UnsupportedModelError
from engine.folder.quantized.declaration import Declaration
from engine.folder.quantized.formats.fp8 import NOT_OF_WEIGHTS, pair, put_fp8
from engine.folder.quantized.layouts import Integers
from engine.folder.quantized.shelf import SCALES, Shelf, expect, read_bytes, sizes
from engine.folder.weight_headers import StoredTensor

FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
MIXED = "mixed-precision"  # of the whole, where each group names its own
WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class Scheme:
    """What one group says of weights."""

    kind: str  # "int" or "float"
    bits: int
    strategy: str
    group_inputs: int | None  # None: all
    block: tuple[int, int] | None
    is_symmetric: bool
    has_own_order: bool  # of groups


def find_compressed(declared: Declaration, shelf: Shelf) -> None:
    """Put the weights of all schemes together. Raises `UnsupportedModelError`."""
    declared.must_be("format", *FORMATS, MIXED)
    declared.must_be("quantization_status", "compressed")
    declared.must_be("transform_config", {})
    if (sparsity := declared.section("sparsity_config")) is not None:
        sparsity.must_be("format", "dense")
    groups = declared.section("config_groups")
    if groups is None or not groups.fields:
        raise declared.wrong("config_groups", "must be groups of layers")
    schemes = [_scheme(groups.section(name) or groups) for name in groups.fields]
    shelf.leave(NOT_OF_WEIGHTS)
    whole = [scheme for scheme in schemes if scheme.kind == "int"]
    for name in shelf.names(r"\.weight_packed$"):
        _put_packed(name, whole, shelf)
    for name in [name for name, tensor in shelf.tensors.items() if tensor.dtype == "I8"]:
        if name.endswith(".weight"):
            _put_int8(name, whole, shelf)
    blocks = {scheme.block for scheme in schemes if scheme.kind == "float"}
    if len(blocks) > 1:
        raise declared.wrong("config_groups", "must have blocks of one size")
    if blocks:
        put_fp8(shelf, blocks.pop())


def _scheme(group: Declaration) -> Scheme:
    group.must_be("format", *FORMATS)
    weights = group.section("weights")
    if weights is None:
        raise group.wrong("weights", "must be an object")
    weights.must_be("type", "int", "float")
    weights.must_be("dynamic", False)
    kind, bits = weights.get("type") or "int", weights.count("num_bits")
    weights.must_be("num_bits", *((4, 8) if kind == "int" else (8,)))
    strategies = ("tensor", "channel", "group") if kind == "int" else ("tensor", "channel", "block")
    weights.must_be("strategy", *strategies)
    weights.must_be("actorder", "group", "weight", "static", False)
    strategy = weights.get("strategy")
    strategy = strategy or ("group" if weights.group_inputs() else "tensor")
    return Scheme(
        kind,
        bits,
        strategy,
        weights.count("group_size") if strategy == "group" else None,
        pair(weights, "block_structure") if strategy == "block" else None,
        weights.get("symmetric") is not False,
        weights.get("actorder") == "group",
    )


def _put_packed(name: str, schemes: list[Scheme], shelf: Shelf) -> None:
    stem = name.removesuffix(".weight_packed")
    said = shelf.need(f"{stem}.weight_shape", name)
    codes = shelf.tensors[name]
    expect(f"{stem}.weight_shape", said, ("I64", "I32"), [(2,)])
    size = said.num_bytes // 2
    content = read_bytes(said)
    shape = tuple(int.from_bytes(content[i * size : (i + 1) * size], "little") for i in range(2))
    fitting = [
        scheme
        for scheme in schemes
        if codes.shape == (shape[0], -(-shape[1] * scheme.bits // WORD_BITS))
    ]
    if not fitting:
        problem = f"has the shape {list(codes.shape)}, which no scheme gives to {list(shape)}"
        raise UnsupportedModelError(f"{codes.file}: {name} {problem}")
    _put(name, stem, shape, fitting, shelf, codes_dim=1)


def _put_int8(name: str, schemes: list[Scheme], shelf: Shelf) -> None:
    codes = shelf.tensors[name]
    sizes(name, codes)
    if not schemes:
        raise UnsupportedModelError(f"{codes.file}: {name} is of whole numbers, as no scheme says")
    _put(name, name.removesuffix(".weight"), codes.shape, schemes, shelf, codes_dim=None)


def _put(
    name: str,
    stem: str,
    shape: tuple[int, ...],
    schemes: list[Scheme],
    shelf: Shelf,
    codes_dim: int | None,
) -> None:
    scales = shelf.need(f"{stem}.weight_scale", name)
    scheme = next((each for each in schemes if scales.shape in _scale_shapes(each, shape)), None)
    if scheme is None:
        shapes = [fit for each in schemes for fit in _scale_shapes(each, shape)]
        expect(f"{stem}.weight_scale", scales, SCALES, shapes)
    assert scheme is not None
    expect(f"{stem}.weight_scale", scales, SCALES, [scales.shape])
    parts = {"codes": shelf.need(name, name), "scales": scales}
    zeros_dim = None
    if (zeros := shelf.take(f"{stem}.weight_zero_point")) is not None:
        zeros_dim = _zeros_dim(f"{stem}.weight_zero_point", zeros, scales, shape[0], scheme.bits)
        parts["zeros"] = zeros
    elif not scheme.is_symmetric:
        shelf.need(f"{stem}.weight_zero_point", name)
    if (groups := shelf.take(f"{stem}.weight_g_idx")) is not None:
        expect(f"{stem}.weight_g_idx", groups, ("I32", "I64"), [(shape[1],)])
        parts["groups"] = groups
    elif scheme.has_own_order:
        shelf.need(f"{stem}.weight_g_idx", name)
    layout = Integers(
        scheme.bits,
        scheme.group_inputs or shape[1],
        inputs_first=False,
        codes_dim=codes_dim,
        zeros_dim=zeros_dim,
    )
    shelf.put(f"{stem}.weight", shape, layout, parts)


def _scale_shapes(scheme: Scheme, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    num_outputs, num_inputs = shape
    if scheme.strategy == "tensor":
        return [(), (1,), (1, 1)]
    if scheme.group_inputs is None:
        return [(num_outputs, 1), (num_outputs,)]
    return [(num_outputs, -(-num_inputs // scheme.group_inputs))]


def _zeros_dim(
    name: str, zeros: StoredTensor, scales: StoredTensor, num_outputs: int, bits: int
) -> int | None:
    """Zero points are packed along outputs, in newer files, or lie as int8."""
    if zeros.dtype == "I8":
        expect(name, zeros, ("I8",), [scales.shape])
        return None
    num_groups = scales.shape[1] if len(scales.shape) == 2 else 1
    words = -(-num_outputs * bits // WORD_BITS)
    expect(name, zeros, ("I32",), [(words, num_groups)])
    return 0
