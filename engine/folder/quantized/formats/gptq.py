"""GPTQ, as AutoGPTQ and GPTQModel publish it: codes of four or eight bits, packed along inputs.

Format `gptq` stores zero points less one, as words: where a zero point is 0 the place next to it
is one less, too, which adding one to all places of a word undoes. `gptq_v2` stores them as they
are. With `desc_act` an input may belong to any group. AutoGPTQ gave a bias to every layer, of zeros
where the model has none.
"""

from engine.folder.quantized.declaration import Declaration
from engine.folder.quantized.layouts import Integers
from engine.folder.quantized.shelf import SCALES, Shelf, expect, read_bytes, sizes

WORD_BITS = 32
BITS = (4, 8)


def find_gptq(declared: Declaration, shelf: Shelf) -> None:
    """Put the weights of all `qweight`s together. Raises `UnsupportedModelError`."""
    declared.must_be("bits", *BITS)
    declared.must_be("checkpoint_format", "gptq", "gptq_v2")
    declared.must_be("format", "gptq", "gptq_v2")
    declared.must_be("is_marlin_format", False)
    declared.must_be("pack_dtype", "int32")
    declared.must_be("dynamic", {})  # rules of what each layer has of its own
    bits, group_inputs = declared.count("bits"), declared.group_inputs()
    zeros_are_less = declared.get("checkpoint_format", "format") != "gptq_v2"
    in_word = WORD_BITS // bits
    for name in shelf.names(r"\.qweight$"):
        stem = name.removesuffix(".qweight")
        scales = shelf.need(f"{stem}.scales", name)
        zeros = shelf.need(f"{stem}.qzeros", name)
        codes = shelf.need(name, name)
        num_words, num_outputs = sizes(name, codes)
        num_inputs = num_words * in_word
        group = group_inputs or num_inputs
        num_groups = -(-num_inputs // group)
        expect(name, codes, ("I32",), [(num_words, num_outputs)])
        expect(f"{stem}.scales", scales, SCALES, [(num_groups, num_outputs)])
        zero_words = -(-num_outputs // in_word)
        expect(f"{stem}.qzeros", zeros, ("I32",), [(num_groups, zero_words)])
        parts = {"codes": codes, "scales": scales, "zeros": zeros}
        groups = shelf.take(f"{stem}.g_idx")
        if groups is not None:
            expect(f"{stem}.g_idx", groups, ("I32", "I64"), [(num_inputs,)])
            parts["groups"] = groups
        elif declared.get("desc_act"):
            shelf.need(f"{stem}.g_idx", name)
        layout = Integers(
            bits,
            group,
            inputs_first=True,
            codes_dim=0,
            zeros_dim=1,
            zeros_are_less=zeros_are_less,
        )
        shelf.put(f"{stem}.weight", (num_outputs, num_inputs), layout, parts)
        bias = shelf.tensors.get(f"{stem}.bias")
        if bias is not None and bias.shape == (num_outputs,) and not any(read_bytes(bias)):
            shelf.zero_biases.add(f"{stem}.bias")
