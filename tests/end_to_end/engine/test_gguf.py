"""`parley serve --model file.gguf`, from the file to the words on a socket."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from engine.client.text.tokenizer import Tokenizer
from tests.end_to_end.site.harness import Client, Server, refusal_of_start
from tests.engine.helpers.gguf.cache_folders import add_to_ollama
from tests.engine.helpers.gguf.gguf_files import write_gguf
from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT
from tests.helpers.tiny_model import build_tiny_model

NUM_TOKENS = 12


@pytest.fixture
def original(tmp_path: Path) -> Path:
    return build_tiny_model(tmp_path / "original", "llama")


def answer_of(folder: Path, text: str) -> str:
    """As transformers computes it."""
    tokenizer = Tokenizer(folder)
    try:
        ids = tokenizer.chat_token_ids([{"role": "user", "content": text}])
    finally:
        tokenizer.close()
    import torch

    model = AutoModelForCausalLM.from_pretrained(folder)
    made = model.generate(torch.tensor([ids]), max_new_tokens=NUM_TOKENS, do_sample=False)
    return tokenizer.decode(made[0, len(ids) :].tolist(), skip_special_tokens=True)


def names_that_run(places: dict[str, str]) -> list[str]:
    """As a program reads them from `parley models`."""
    listed = subprocess.run(
        [sys.executable, "-m", "server", "models", "--json"],
        cwd=ROOT,
        env={**os.environ, **places},
        capture_output=True,
        check=True,
        timeout=PATIENCE,
    )
    return [model["name"] for model in json.loads(listed.stdout) if model["runs"]]


async def check_served(server: Server, original: Path, name: str) -> None:
    """It answers as the checkpoint does, and says that name."""
    async with Client(server) as client:
        session = await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": NUM_TOKENS}
        response = await client.ask(session, "Hello, how are you?", settings=settings)
        answer = await client.done(response)
    assert answer.final == answer_of(original, "Hello, how are you?")
    assert server.get_json("/v1/models")["data"][0]["id"] == name


async def test_file_is_served_with_its_template_and_by_its_name(
    original: Path, tmp_path: Path, new_server: Callable[..., Server]
) -> None:
    file = write_gguf(original, tmp_path / "tiny-F32.gguf", "F32", split=20)
    server = new_server(PARLEY_MODEL=str(file), XDG_CACHE_HOME=str(tmp_path / "cache"))
    await check_served(server, original, "tiny-F32")


@pytest.mark.slow
async def test_a_model_is_served_by_the_name_that_the_list_shows(
    original: Path, tmp_path: Path, new_server: Callable[..., Server]
) -> None:
    places = {"OLLAMA_MODELS": str(tmp_path / "ollama"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    file = write_gguf(original, tmp_path / "tiny.gguf")
    add_to_ollama(tmp_path / "ollama", "registry.ollama.ai/library/tiny/1b", file)
    assert "ollama:tiny:1b" in names_that_run(places)
    server = new_server(PARLEY_MODEL="ollama:tiny:1b", **places)
    await check_served(server, original, "ollama:tiny:1b")


def test_file_that_is_cut_is_refused_with_2_and_one_line(original: Path, tmp_path: Path) -> None:
    file = write_gguf(original, tmp_path / "tiny.gguf")
    file.write_bytes(file.read_bytes()[:-10_000])
    line = refusal_of_start(tmp_path, "--model", str(file))
    assert line.startswith(f"parley: {file}: is cut: "), line
