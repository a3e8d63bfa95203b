"""The demo checkpoint: what must hold for it to be shipped and to run anywhere."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from engine import demo_model
from engine.client.text.tokenizer import Tokenizer

MAX_BYTES = 16_000_000
TEXTS = [
    "Tidewick, a village by the sea.",
    "Příliš žluťoučký kůň",
    "你好 😀 👩‍👧",
    "  spaces\n\n\tand tabs ",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    return demo_model()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder)


def test_the_folder_is_small_enough_to_be_package_data(folder: Path) -> None:
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MAX_BYTES


def test_the_context_holds_a_long_story(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["max_position_embeddings"] >= 4096


def test_the_weights_fit_the_vocabulary(folder: Path, tokenizer: Tokenizer) -> None:
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        rows, _ = weights.get_slice("model.embed_tokens.weight").get_shape()
    assert rows == len(tokenizer)


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_comes_back_from_its_ids(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_template_opens_the_answer(tokenizer: Tokenizer) -> None:
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_the_end_of_a_turn_ends_an_answer(folder: Path, tokenizer: Tokenizer) -> None:
    generation = json.loads((folder / "generation_config.json").read_text())
    assert tokenizer.eos_token_id in generation["eos_token_id"]
