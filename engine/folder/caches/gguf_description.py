"""What a GGUF file is, by its head without the vocabulary, and why it would be refused."""

from collections.abc import Callable

from engine.errors import UnsupportedModelError
from engine.folder.caches.found import Found, reason
from engine.folder.caches.local_model import LocalModel
from engine.folder.gguf.config import make_config
from engine.folder.gguf.head import Value
from engine.folder.gguf.metadata import Metadata
from engine.folder.gguf.parts import GgufModel, read_parts

# `general.file_type`, in the numbers of llama.cpp's `llama_ftype`.
FILE_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K"},
    **{11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S"},
    **{17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS"},
    **{23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S"},
    **{29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0"},
    **{38: "MXFP4_MOE"},
}


def describe_gguf(found: Found, size: int) -> LocalModel:
    """Never raises for what a file holds: that is the problem of the model."""
    try:
        model = read_parts(found.gguf, with_arrays=False)
        metadata = Metadata(model.file, model.metadata)
    except UnsupportedModelError as error:
        return LocalModel(found.name, "GGUF", size, problem=reason(error, *found.gguf))
    context = model.metadata.get(f"{metadata.architecture}.context_length")
    return LocalModel(
        found.name,
        f"GGUF {_quantization(model)}".strip(),
        size,
        architecture=metadata.architecture,
        context_length=context if type(context) is int and context > 0 else None,
        problem=_refusal(lambda: _check(model, metadata), found),
    )


def _check(model: GgufModel, metadata: Metadata) -> None:
    from engine.folder.gguf.vocabulary.tokenizer import check_kind  # imports `tokenizers`

    make_config(model, metadata)
    check_kind(metadata)


def _refusal(check: Callable[[], None], found: Found) -> str | None:
    try:
        check()
    except UnsupportedModelError as error:
        return reason(error, *found.gguf)
    return None


def _quantization(model: GgufModel) -> str:
    """As the file says it; else the type of most of its bytes."""
    said: Value | None = model.metadata.get("general.file_type")
    if type(said) is int and said in FILE_TYPES:
        return FILE_TYPES[said]
    sizes: dict[str, int] = {}
    for _, tensor in model.tensors.values():
        sizes[tensor.type.name] = sizes.get(tensor.type.name, 0) + tensor.num_bytes
    return max(sizes, key=lambda name: sizes[name], default="")
