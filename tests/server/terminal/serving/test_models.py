"""`parley models` as a user types it: a table, JSON, and words of strangers."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.cli import app
from server.terminal.serving.models import MAX_NOTES
from tests.engine.helpers.gguf.cache_folders import (
    add_to_hub,
    add_to_ollama,
    copied,
    home,
    tiny,
    tiny_gguf,
    write_manifest,
)

__all__ = ["home", "tiny", "tiny_gguf"]


def run(*arguments: str) -> tuple[str, str]:
    result = CliRunner().invoke(app, ["models", *arguments])
    assert result.exit_code == 0, result.exception
    return result.stdout, result.stderr


def test_without_models_it_says_how_to_get_one(home: Path) -> None:
    for folder in (".ollama/models", ".lmstudio/models"):
        (home / folder).mkdir(parents=True)
    said = "no models are here; `parley serve --model owner/name` downloads one\n"
    assert run() == (said, "")
    assert run("--json") == ("[]\n", "")


def test_a_row_shows_what_a_model_is_and_whether_it_runs(
    home: Path, tiny: Path, tiny_gguf: Path
) -> None:
    snapshot = add_to_hub(home / ".cache/huggingface/hub", "org/tiny", *tiny.iterdir())
    ollama = home / ".ollama/models"
    add_to_ollama(ollama, "registry.ollama.ai/library/tiny/1b", tiny_gguf)
    write_manifest(ollama, "registry.ollama.ai/library/empty/latest", [])
    config = (snapshot / "config.json").resolve()
    changed = json.loads(config.read_text()) | {"quantization_config": {"quant_method": "awq"}}
    config.write_text(json.dumps(changed))
    table, notes = run()
    heading, *rows = (line.split() for line in table.splitlines())
    assert heading == ["name", "format", "architecture", "context", "size", "runs"]
    megabytes = f"{tiny_gguf.stat().st_size / 1e6:.1f}"
    said = "config.json: says that its weights are quantized by 'awq', but none of them is"
    refused = f"no: {said}".split()
    assert rows[0] == ["org/tiny", "safetensors", "awq", "llama", "512", "0.6", "MB", *refused]
    problem = "no: its manifest names 0 GGUF files, not one".split()
    assert rows[1] == ["ollama:empty:latest", "0.0", "MB", *problem]
    assert rows[2] == ["ollama:tiny:1b", "GGUF", "Q8_0", "llama", "512", megabytes, "MB", "yes"]
    assert notes == ""


def test_programs_get_the_same_as_json(home: Path, tiny_gguf: Path) -> None:
    copied(home / ".lmstudio/models/org/tiny", tiny_gguf)
    (model,) = json.loads(run("--json")[0])
    assert model == {
        "name": "lmstudio:org/tiny/tiny-Q8_0",
        "format": "GGUF Q8_0",
        "architecture": "llama",
        "context_length": 512,
        "size_bytes": tiny_gguf.stat().st_size,
        "runs": True,
        "problem": None,
    }


HOSTILE = ["\x1b]0;owned\x07", "\x9b31m", "a\nparley: all is well", "\u202eevil", "[red]x"]


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_words_of_strangers_are_shown_harmlessly(
    home: Path, tiny_gguf: Path, arguments: tuple[str, ...]
) -> None:
    folder = copied(home / ".cache/llama.cpp")
    bad = os.fsdecode(b"\xff\xfe")
    for name in (*HOSTILE, bad):
        (folder / f"{name}.gguf").write_bytes(tiny_gguf.read_bytes())
        (folder / f"{name}-out.gguf").symlink_to(tiny_gguf)
    add_to_ollama(home / ".ollama/models", f"registry.ollama.ai/{HOSTILE[0]}/x/y", tiny_gguf)
    output, notes = run(*arguments)
    for line in (output + notes).splitlines():
        assert line.isprintable()
        assert line.isascii() or "·" in line
    assert notes.count("\n") == len(HOSTILE) + 1
    assert all(line.startswith("parley: /") for line in notes.splitlines())
    if not arguments:
        assert output.count("\n") == 1 + len(HOSTILE) + 2
        assert "llama.cpp:[red]x " in output


def test_a_crowd_of_links_is_counted(home: Path, tiny_gguf: Path) -> None:
    folder = copied(home / ".cache/llama.cpp")
    for number in range(MAX_NOTES + 5):
        (folder / f"{number}.gguf").symlink_to(tiny_gguf)
    lines = run()[1].splitlines()
    assert len(lines) == MAX_NOTES + 1
    assert lines[-1] == "parley: 5 others are left out"
