"""FP8: weights of eight bits (E4M3), and scales for all of a weight, for outputs or for blocks.

`fp8` is what DeepSeek and Qwen publish, in blocks (`weight_scale_inv`, by which they are multiplied
in spite of its name), and what AutoFP8 makes (`weight_scale`); `fbgemm_fp8` is Meta's, `modelopt`
Nvidia's. Scales of activations, keys and values are left: nothing of that is rounded here.
"""

from engine.errors import UnsupportedModelError
from engine.folder.quantized.declaration import Declaration
from engine.folder.quantized.layouts import Fp8
from engine.folder.quantized.shelf import SCALES, Shelf, expect, sizes
from engine.folder.weight_headers import StoredTensor

WEIGHTS = ("F8_E4M3",)
SCALE_NAMES = ("_scale_inv", "_scale")  # after that of the weight
NOT_OF_WEIGHTS = (
    r"\.(activation_scale|(input|output)_(scale|zero_point|scale_ub)"
    r"|(q|k|v|kv)_(scale|zero_point))$"
)


def find_fp8(declared: Declaration, shelf: Shelf) -> None:
    """`quant_method` is fp8. Raises `UnsupportedModelError`."""
    declared.must_be("fmt", "e4m3", "float8_e4m3fn")
    declared.must_be("modules_to_convert")
    block = declared.get("weight_block_size")
    if block is not None:
        block = pair(declared, "weight_block_size")
    put_fp8(shelf, block)


def find_fbgemm(declared: Declaration, shelf: Shelf) -> None:
    """`quant_method` is fbgemm_fp8. Raises `UnsupportedModelError`."""
    put_fp8(shelf)


def find_modelopt(declared: Declaration, shelf: Shelf) -> None:
    """`quant_method` is modelopt, or it stands in hf_quant_config.json. Raises the same."""
    inner = declared.section("quantization") or declared
    if inner.get("quant_algo") != "FP8":
        raise inner.wrong("quant_algo", "must be 'FP8': no other is read here")
    put_fp8(shelf)


def pair(declared: Declaration, name: str) -> tuple[int, int]:
    """Outputs and inputs of a block. Raises `UnsupportedModelError`."""
    value = declared.get(name)
    if isinstance(value, list) and len(value) == 2:
        if all(type(each) is int and 0 < each <= 1 << 20 for each in value):
            return value[0], value[1]
    raise declared.wrong(name, "must be two whole numbers")


def put_fp8(shelf: Shelf, block: tuple[int, int] | None = None) -> None:
    """Put all weights of this type together."""
    shelf.leave(NOT_OF_WEIGHTS)
    for name, codes in list(shelf.tensors.items()):
        if codes.dtype not in WEIGHTS:
            continue
        names = [name + end for end in SCALE_NAMES if name + end in shelf.tensors]
        if len(names) != 1:
            problem = f"needs {name}_scale or {name}_scale_inv: {len(names)} of them are there"
            raise UnsupportedModelError(f"{codes.file}: {name} {problem}")
        scales = shelf.need(names[0], name)
        layout = Fp8(_block(names[0], scales, sizes(name, codes), block))
        shelf.need(name, name)
        shelf.put(name, codes.shape, layout, {"codes": codes, "scales": scales})


def _block(
    name: str, scales: StoredTensor, shape: tuple[int, ...], block: tuple[int, int] | None
) -> tuple[int, int]:
    """Outputs and inputs that share one of these scales."""
    num_outputs, num_inputs = shape
    shapes = {(): shape, (1,): shape, (1, 1): shape}
    shapes |= {(num_outputs,): (1, num_inputs), (num_outputs, 1): (1, num_inputs)}
    if block is not None:
        of_blocks = (-(-num_outputs // block[0]), -(-num_inputs // block[1]))
        shapes = {of_blocks: block}
    expect(name, scales, (*SCALES, "F8_E8M0"), shapes)
    rows, columns = shapes[scales.shape]
    return rows, columns
