"""The demo model's shape, and how it is written to a folder that any loader reads."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import MistralConfig, MistralForCausalLM

CONTEXT = 8192
# The window is the model's memory: one chapter and a half. Relative positions inside it are all it
# ever sees, so text beyond the training length looks like text within it.
WINDOW = 384


def new_model(vocab_size: int, seed: int) -> MistralForCausalLM:
    """A small Mistral with fresh weights."""
    torch.manual_seed(seed)
    config = MistralConfig(
        vocab_size=vocab_size,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        sliding_window=WINDOW,
        rope_theta=100000.0,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    return MistralForCausalLM(config)


def export_model(model: MistralForCausalLM, folder: Path) -> None:
    """Write weights in bfloat16 with their configuration and the server's default sampling."""
    copy = MistralForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16)
    copy.config.dtype = torch.bfloat16
    copy.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # written as 0600, and others must read it too
    generation = {
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.95,
        "eos_token_id": [2, 0],
        "pad_token_id": 0,
    }
    path = folder / "generation_config.json"
    path.write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
