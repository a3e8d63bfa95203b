"""AWQ, as AutoAWQ publishes it: codes of four bits in the order of its `gemm` kernel."""

from engine.folder.quantized.declaration import Declaration
from engine.folder.quantized.layouts import Integers
from engine.folder.quantized.shelf import SCALES, Shelf, expect, sizes

BITS, IN_WORD = 4, 8
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output of each place in a word, from the lowest bits


def find_awq(declared: Declaration, shelf: Shelf) -> None:
    """Put the weights of all `qweight`s together. Raises `UnsupportedModelError`."""
    declared.must_be("bits", BITS)
    declared.must_be("zero_point", True)
    layout_name = declared.get("version", "format")
    if str(layout_name or "gemm").lower() != "gemm":
        name = "version" if declared.get("version") else "format"
        raise declared.wrong(name, "must be 'gemm': no other is read here")
    group_inputs = declared.group_inputs()
    for name in shelf.names(r"\.qweight$"):
        stem = name.removesuffix(".qweight")
        scales = shelf.need(f"{stem}.scales", name)
        zeros = shelf.need(f"{stem}.qzeros", name)
        codes = shelf.need(name, name)
        num_inputs, num_words = sizes(name, codes)
        num_outputs = num_words * IN_WORD
        group = group_inputs or num_inputs
        num_groups = -(-num_inputs // group)
        expect(name, codes, ("I32",), [(num_inputs, num_words)])
        expect(f"{stem}.scales", scales, SCALES, [(num_groups, num_outputs)])
        expect(f"{stem}.qzeros", zeros, ("I32",), [(num_groups, num_words)])
        layout = Integers(BITS, group, inputs_first=True, codes_dim=1, zeros_dim=1, order=ORDER)
        parts = {"codes": codes, "scales": scales, "zeros": zeros}
        shelf.put(f"{stem}.weight", (num_outputs, num_inputs), layout, parts)
