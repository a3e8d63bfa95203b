"""What the folder of a model says whose weights lie elsewhere, and whether an engine agrees."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine import demo_model
from engine.client.text.tokenizer import Tokenizer
from engine.errors import UnsupportedModelError
from server.engines.remote.checkpoint import TEXTS, Checkpoint, check_agreement, read_checkpoint
from server.engines.remote.wire.problems import Misfit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The built-in model without its weights."""
    for file in demo_model().glob("*.json"):
        shutil.copy(file, tmp_path)
    return tmp_path


class Tokenizing:
    """Tells these ids; None: it has no such route."""

    def __init__(self, ids: Any) -> None:
        self.ids = ids

    async def tokenize(self, ask: Any, text: str) -> list[int] | None:
        ids: list[int] | None = self.ids(text)
        return ids


def test_a_folder_needs_no_weights(folder: Path) -> None:
    found = read_checkpoint(folder)
    assert (found.vocab_size, found.eos_token_ids) == (2560, (0, 2))
    assert found.tokenizer.decode([1674]) == "Here"


def test_without_word_of_it_an_answer_ends_with_the_tokenizers_last_token(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    assert read_checkpoint(folder).eos_token_ids == (Tokenizer(folder).eos_token_id,)


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_a_folder_without_what_answers_are_read_with_is_refused(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(UnsupportedModelError, match=str(folder)):
        read_checkpoint(folder)


async def test_an_engine_with_the_same_tokenizer_agrees(checkpoint: Checkpoint) -> None:
    asked: list[str] = []

    def ids(text: str) -> list[int]:
        asked.append(text)
        return checkpoint.tokenizer.encode(text, add_special_tokens=False)

    dialect: Any = Tokenizing(ids)
    await check_agreement(dialect, None, checkpoint)  # type: ignore[arg-type]
    assert asked == list(TEXTS)


@pytest.mark.parametrize("change", [lambda ids: ids[1:], lambda ids: [7, *ids], lambda ids: []])
async def test_an_engine_with_another_tokenizer_is_refused_in_one_line(
    checkpoint: Checkpoint, change: Any
) -> None:
    dialect: Any = Tokenizing(
        lambda text: change(checkpoint.tokenizer.encode(text, add_special_tokens=False))
    )
    with pytest.raises(Misfit, match="its tokenizer is another than that of") as refused:
        await check_agreement(dialect, None, checkpoint)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


async def test_an_engine_that_does_not_tell_is_believed(checkpoint: Checkpoint) -> None:
    dialect: Any = Tokenizing(lambda text: None)
    await check_agreement(dialect, None, checkpoint)  # type: ignore[arg-type]
