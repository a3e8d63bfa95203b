"""`LLM(model="file.gguf")` gives the texts of the checkpoint that the file was made of."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import LLM, DownloadError, EngineStartError, SamplingParams, UnsupportedModelError
from engine.folder.caches.listing import list_models
from tests.engine.helpers.gguf.cache_folders import add_to_ollama
from tests.engine.helpers.gguf.gguf_files import write_gguf
from tests.helpers.tiny_model import build_tiny_model

pytestmark = pytest.mark.slow

GREEDY = SamplingParams(temperature=0, max_tokens=16)
QUESTION: list[Any] = [{"role": "user", "content": "Hello <|im_end|>, who are you? Příliš 東京"}]
OPTIONS: dict[str, Any] = {"num_gpu_blocks_override": 100, "threads": 1}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("original"), "qwen3")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def llm(original: Path, tmp_path: Path) -> Iterator[LLM]:
    file = write_gguf(original, tmp_path / "tiny.gguf")
    with LLM(model=str(file), **OPTIONS) as llm:
        yield llm


def texts(llm: LLM) -> list[Any]:
    """Of a prompt and of a conversation, with the ids of both."""
    outputs = [llm.generate(["Once upon a time"], GREEDY)[0], llm.chat(QUESTION, GREEDY)[0]]
    return [
        (output.prompt_token_ids, output.outputs[0].token_ids, output.outputs[0].text)
        for output in outputs
    ]


def test_texts_are_those_of_the_checkpoint(llm: LLM, original: Path) -> None:
    found = texts(llm)
    with LLM(model=str(original), **OPTIONS) as other:
        assert texts(other) == found


def test_a_model_of_ollama_is_served_by_its_name(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tmp_path / "models"
    monkeypatch.setenv("OLLAMA_MODELS", str(models))
    file = write_gguf(original, tmp_path / "tiny.gguf")
    add_to_ollama(models, "registry.ollama.ai/library/tiny/1b", file)
    (listed,) = (model for model in list_models()[0] if model.name.startswith("ollama:"))
    assert listed.runs
    with LLM(model=listed.name, **OPTIONS) as llm:
        found = texts(llm)
    with LLM(model=str(original), **OPTIONS) as other:
        assert texts(other) == found


def test_context_and_tokenizer_are_the_files(llm: LLM) -> None:
    assert llm.model_config.max_model_len == 512
    assert llm.get_tokenizer().model_max_length == 512
    assert llm.get_tokenizer().eos_token == "<|endoftext|>"


def test_context_may_be_shorter_and_not_longer(original: Path, tmp_path: Path) -> None:
    file = write_gguf(original, tmp_path / "tiny.gguf")
    with LLM(model=str(file), max_model_len=64, **OPTIONS) as llm:
        assert llm.model_config.max_model_len == 64
    with pytest.raises(EngineStartError, match="max_model_len must be at most 512"):
        LLM(model=str(file), max_model_len=100_000, **OPTIONS)


def test_file_that_cannot_be_served_is_refused_before_a_core_starts(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(UnsupportedModelError, match=r"a\.gguf: is cut"):
        LLM(model=str(tmp_path / "a.gguf"))
    with pytest.raises(DownloadError, match="there is no file"):
        LLM(model=str(tmp_path / "b.gguf"))
