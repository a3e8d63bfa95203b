"""`LLM` on a checkpoint for pictures: its text, by its processor's chat template."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMultimodalLM

from engine import LLM, SamplingParams
from tests.engine.helpers.family_models import build_family
from tests.engine.helpers.small_tokenizers import LLAVA

QUESTION: list[Any] = [{"role": "user", "content": "What is on it?"}]
PICTURE: list[Any] = [{"role": "user", "content": [{"type": "image"}]}]


@pytest.mark.slow
def test_a_conversation_is_answered_as_by_transformers_whole_model(tmp_path: Path) -> None:
    folder = build_family(tmp_path / "llava", "llava")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": LLAVA}))
    greedy = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    with LLM(model=str(folder), num_gpu_blocks_override=100, threads=1) as llm:
        (answer,) = llm.chat(QUESTION, greedy)
        prompt = llm.get_tokenizer().encode("USER: What is on it? ASSISTANT:")
        with pytest.raises(NotImplementedError, match="pictures and sounds"):
            llm.chat(PICTURE, greedy)
    assert answer.prompt_token_ids == prompt
    whole: Any = AutoModelForMultimodalLM.from_pretrained(folder)
    expected = whole.generate(
        torch.tensor([prompt]), max_new_tokens=16, do_sample=False, eos_token_id=None
    )
    assert answer.outputs[0].token_ids == expected[0, len(prompt) :].tolist()
