"""The peer: `transformers.generate` on the same checkpoint, in the same run."""

import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.harness.chats import PROMPT


class TransformersPeer:
    """Loads the folder once; `generate` is what a user would write, with a KV cache."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._ids = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": PROMPT}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )["input_ids"]

    @torch.inference_mode()
    def tokens_per_second(self, num_chats: int, max_tokens: int) -> float:
        """`num_chats` copies of the prompt in one batch, sampled, exactly `max_tokens` each."""
        ids = self._ids.expand(num_chats, -1)
        torch.manual_seed(0)
        started = time.perf_counter()
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=0.7,
            top_p=0.95,
            max_new_tokens=max_tokens,
            min_new_tokens=max_tokens,
            pad_token_id=0,
        )
        return num_chats * max_tokens / (time.perf_counter() - started)

    @torch.inference_mode()
    def first_token_seconds(self) -> float:
        started = time.perf_counter()
        self._model.generate(
            self._ids, attention_mask=torch.ones_like(self._ids), max_new_tokens=1, pad_token_id=0
        )
        return time.perf_counter() - started
