"""A model's folder that is broken is refused in one line that names its file and field."""

import resource
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from engine.client.text.tokenizer import Tokenizer
from engine.client.text.tokenizer_folder import try_chat_template
from engine.config import EngineConfig
from engine.core import __main__ as core
from engine.core.models.loader import load_model
from engine.core.ops.library import REFERENCE
from engine.core.runner.model_runner import ModelRunner
from engine.errors import EngineStartError, UnsupportedModelError, ValidationError
from tests.engine.helpers.broken_folders import FINE, MORE, SEEN, BrokenFolder
from tests.helpers.tiny_model import build_tiny_model

MAX_GROWN_KIB = 200 << 10  # of this process's most memory, beyond what loading a good folder takes
MAX_CPU_SECONDS = 20.0


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = build_tiny_model(tmp_path_factory.mktemp("good"))
    load(folder)  # so that torch and transformers are there before memory is looked at
    return folder


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a core does to its process is undone."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "1")
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a second one only waits, for so little
    yield
    torch.set_num_threads(num_threads)


def config_of(folder: Path) -> EngineConfig:
    return EngineConfig(
        model=str(folder),
        address="",
        served_model_name="",
        num_blocks=8,
        attn_backend="torch",
        batch_invariant=False,  # its probe takes long, and tells nothing here
        threads=1,
    )


def load(folder: Path) -> ModelRunner:
    config = config_of(folder)
    try_chat_template(folder)
    Tokenizer(folder)
    return ModelRunner(load_model(config, REFERENCE), config)


def refusal(folder: Path) -> str:
    """As a supervisor, a worker and a core read it."""
    with pytest.raises(UnsupportedModelError) as caught:
        try_chat_template(folder)
        Tokenizer(folder)
        core.load_core(config_of(folder))
    return str(caught.value)


@pytest.mark.parametrize("broken", [*SEEN, *MORE], ids=lambda broken: broken.name)
def test_a_broken_folder_is_refused_in_one_line_that_names_file_and_field(
    broken: BrokenFolder, folder: Path
) -> None:
    broken.apply(folder)
    most, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    line = refusal(folder)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most
    print(line)
    assert line.isprintable() and "Traceback" not in line
    assert [word for word in (str(folder), *broken.words) if word not in line] == [], line
    assert grown < MAX_GROWN_KIB
    assert time.process_time() - started < MAX_CPU_SECONDS


@pytest.mark.parametrize("name", FINE)
def test_a_folder_that_is_fine_loads(name: str, folder: Path) -> None:
    FINE[name](folder)
    assert load(folder).loaded.vocab_size == 384


def test_a_refusal_is_a_start_error_and_a_wrong_value(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.json: is missing") as caught:
        Tokenizer(tmp_path)
    assert isinstance(caught.value, EngineStartError)
    assert isinstance(caught.value, ValidationError)
    assert (caught.value.parameter, caught.value.log) == ("model", "")


def test_a_setting_that_cannot_be_is_no_fault_of_the_folder(folder: Path) -> None:
    config = msgspec.structs.replace(config_of(folder), max_model_len=1 << 20)
    with pytest.raises(ValidationError, match=r"^max_model_len must be at most") as caught:
        core.load_core(config)
    assert not isinstance(caught.value, UnsupportedModelError)
