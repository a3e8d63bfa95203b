"""Checkpoints written as GGUF files, as llama.cpp's convert_hf_to_gguf writes them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from tests.engine.helpers.gguf.conversions import (
    ARCHITECTURES,
    add_fields,
    converted,
    rope_of,
    rotated,
)

Edit = Callable[[GGUFWriter], None]


def write_gguf(
    folder: Path,
    file: Path,
    kind: str = "F32",
    *,
    others: Mapping[str, str] = MappingProxyType({}),
    pre: str = "gpt-2",
    edit: Edit | None = None,
    split: int = 0,
    with_weights: bool = True,
    arch: gguf.MODEL_ARCH | None = None,
) -> Path:
    """Write the checkpoint in a folder with weights of one type, and vectors in float32.

    `others` are the types of weights with such a part in their names. `edit` may add to the
    metadata. With `split`, so many tensors are in each part, and the first part is returned.
    """
    config = json.loads((folder / "config.json").read_text())
    arch = arch or ARCHITECTURES[config["model_type"]]
    writer = GGUFWriter(file, gguf.MODEL_ARCH_NAMES[arch], split_max_tensors=split)
    add_config(writer, config)
    add_tokenizer(writer, folder, config["vocab_size"], pre)
    if (factors := rope_factors(config)) is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    if edit is not None:
        edit(writer)
    weights = load_file(folder / "model.safetensors") if with_weights else {}
    for name, own, weight in converted(weights, config):
        data = np.ascontiguousarray(weight.float().numpy())
        of_name = next((others[part] for part in others if part in name), kind)
        is_plain = data.ndim == 1 or name.endswith("bias")
        type_ = GGMLQuantizationType.F32 if is_plain else GGMLQuantizationType[of_name]
        writer.add_tensor(own, gguf.quants.quantize(data, type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if not split:
        return file
    return min(file.parent.glob(f"{file.stem}-00001-of-*.gguf"))


def add_config(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(rotated(config, head_dim))
    if (epsilon := config.get("rms_norm_eps")) is not None:
        writer.add_layer_norm_rms_eps(epsilon)
    for name in ("layer_norm_eps", "norm_epsilon", "norm_eps"):
        if (epsilon := config.get(name)) is not None:
            writer.add_layer_norm_eps(epsilon)
    writer.add_vocab_size(config["vocab_size"])
    rope = rope_of(config)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    add_fields(writer, config)


def add_tokenizer(writer: GGUFWriter, folder: Path, vocab_size: int, pre: str) -> None:
    """As converters do: kinds of tokens from what was added, and `[PAD…]` up to the last row."""
    definition = json.loads((folder / "tokenizer.json").read_text())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = {token_id: text for text, token_id in backend.get_vocab(True).items()}
    kinds = {
        token_id: TokenType.CONTROL if token.special else TokenType.USER_DEFINED
        for token_id, token in backend.get_added_tokens_decoder().items()
    }
    ids = range(vocab_size)
    is_byte_level = not definition["model"].get("byte_fallback")
    writer.add_tokenizer_model("gpt2" if is_byte_level else "llama")
    writer.add_tokenizer_pre(pre if is_byte_level else "default")
    writer.add_token_list([texts.get(each, f"[PAD{each}]") for each in ids])
    if is_byte_level:
        writer.add_token_merges([" ".join(pair) for pair in definition["model"]["merges"]])
    else:
        vocabulary = backend.get_vocab(True)
        kinds |= {vocabulary[f"<0x{byte:02X}>"]: TokenType.BYTE for byte in range(256)}
        kinds[vocabulary["<unk>"]] = TokenType.UNKNOWN
        writer.add_token_scores([-float(each) for each in ids])
        writer.add_unk_token_id(vocabulary["<unk>"])
    plain, none = TokenType.NORMAL, TokenType.UNUSED
    writer.add_token_types([kinds.get(each, plain if each in texts else none) for each in ids])
    ids_by_text = {text: token_id for token_id, text in texts.items()}
    if (eos := config.get("eos_token")) is not None:
        writer.add_eos_token_id(ids_by_text[eos])
    if (bos := config.get("bos_token")) is not None:
        writer.add_bos_token_id(ids_by_text[bos])
        writer.add_add_bos_token(backend.encode("").ids == [ids_by_text[bos]])
    if config.get("chat_template"):
        writer.add_chat_template(config["chat_template"])


def rope_factors(config: Mapping[str, Any]) -> "np.ndarray[Any, Any] | None":
    """By how much each frequency is divided for Llama 3: the converter's own formulas."""
    rope = rope_of(config)
    if rope["rope_type"] != "llama3":
        return None
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    steps = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    factors = []
    for frequency in 1.0 / (rope["rope_theta"] ** steps):
        length = 2 * torch.pi / frequency
        original, low = rope["original_max_position_embeddings"], rope["low_freq_factor"]
        high, factor = rope["high_freq_factor"], rope["factor"]
        if length < original / high:
            factors.append(1.0)
        elif length > original / low:
            factors.append(factor)
        else:
            smooth = (original / length - low) / (high - low)
            factors.append(float(1 / ((1 - smooth) / factor + smooth)))
    return np.array(factors, dtype=np.float32)


def rounded_checkpoint(folder: Path, to: Path, kind: str) -> Path:
    """The checkpoint whose weights are those that a file of this type stands for, in float32."""
    to.mkdir()
    for file in folder.iterdir():
        if file.suffix == ".json":
            (to / file.name).write_bytes(file.read_bytes())
    weights = load_file(folder / "model.safetensors")
    rounded = {
        name: weight.float() if weight.ndim == 1 else _rounded(weight, kind)
        for name, weight in weights.items()
    }
    save_file(rounded, to / "model.safetensors", metadata={"format": "pt"})
    return to


def _rounded(weight: Tensor, kind: str) -> Tensor:
    type_ = GGMLQuantizationType[kind]
    blocks = gguf.quants.quantize(weight.float().numpy(), type_)
    return torch.from_numpy(np.array(gguf.quants.dequantize(blocks, type_)))
