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


@pytest.mark.parametrize("name", ["chat_template.json", "processor_config.json"])
def test_the_template_of_a_processor_wins_over_the_tokenizers(name: str, tmp_path: Path) -> None:
    folder = build_chatml(tmp_path)
    (folder / name).write_text(json.dumps({"chat_template": "of a processor"}))
    found = read_folder(folder)
    assert (found.chat_template, found.template_file) == ("of a processor", folder / name)
    (folder / "chat_template.jinja").write_text("newer")
    assert read_folder(folder).chat_template == "newer"


def test_a_processor_need_not_have_a_template(tmp_path: Path) -> None:
    folder = build_chatml(tmp_path)
    of_tokenizer = read_folder(folder).chat_template
    (folder / "processor_config.json").write_text(json.dumps({"image_seq_length": 4}))
    assert read_folder(folder).chat_template == of_tokenizer


def test_a_processors_template_that_is_no_text_is_refused(tmp_path: Path) -> None:
    folder = build_chatml(tmp_path)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": 5}))
    with pytest.raises(ValidationError, match=r"chat_template\.json: chat_template must be text"):
        read_folder(folder)


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
