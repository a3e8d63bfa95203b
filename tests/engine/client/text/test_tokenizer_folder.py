import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend

from engine.client.text.tokenizer_folder import read_folder
from engine.errors import ValidationError
from tests.engine.helpers.small_tokenizers import build_chatml


def test_template_file_wins_over_the_configuration(tmp_path: Path) -> None:
    folder = build_chatml(tmp_path)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    assert read_folder(folder).chat_template == "{{ messages[0].content }}!"


def test_folder_without_tokenizer_is_a_validation_error(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"tokenizer\.json: is missing"):
        read_folder(tmp_path)


def test_vocabulary_and_merges_are_enough_for_gpt2(tmp_path: Path) -> None:
    folder = build_chatml(tmp_path / "new", None)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    old = tmp_path / "old"
    old.mkdir()
    (old / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    (old / "merges.txt").write_text(f"#version: 0.2\n{merges}")
    found = read_folder(old)
    text = "Hello, tell me a story <|endoftext|>"
    assert (
        found.backend.encode(text).ids
        == Backend.from_file(str(folder / "tokenizer.json")).encode(text).ids
    )
    assert found.special_tokens == {"eos_token": "<|endoftext|>"}
