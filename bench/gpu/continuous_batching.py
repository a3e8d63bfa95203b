"""The same chats by transformers' own continuous batching."""

import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from bench.gpu.cases import TOKEN, Sizes
from bench.gpu.device import Device
from bench.peers.models import Checkpoint, Shape, config_of


def transformers_batch(model: Checkpoint, shape: Shape, sizes: Sizes, on: Device) -> float:
    """Tokens/s of the same chats by `generate_batch`."""
    with on.device:
        peer: Any = AutoModelForCausalLM.from_config(
            config_of(shape), dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()
    length, answer = sizes.chat
    settings = GenerationConfig(max_new_tokens=answer, do_sample=False, eos_token_id=-1)
    seconds = []
    for attempt in range(2):  # the first one compiles and makes room; no prompt comes twice
        first = TOKEN + attempt * sizes.chats
        chats = [[first + number] * length for number in range(sizes.chats)]
        on.wait()
        started = time.perf_counter()
        answers = peer.generate_batch(
            inputs=chats, generation_config=settings, persistent_manager=True
        )
        on.wait()
        seconds.append(time.perf_counter() - started)
    peer.destroy_cached_continuous_batching_manager()
    num_tokens = sum(len(each.generated_tokens) for each in answers.values())
    assert num_tokens == sizes.chats * answer, f"{num_tokens} tokens came of {model.name}"
    return num_tokens / seconds[-1]
