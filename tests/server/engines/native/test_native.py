import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest

from engine import AsyncLLM, demo_model
from engine.client.parsing.formats import FORMATS
from server.config.engines import SOLE
from server.config.settings import AnswerFormat, load_settings
from server.engines.client import EngineClient, UnsupportedModelError
from server.engines.managed import EngineSetupError
from server.engines.native import connect, manage, served_model
from server.engines.native.connection import ConnectOptions
from server.engines.native.core_keeper import CoreKeeper
from server.engines.native.fingerprint import model_fingerprint
from server.engines.native.preparation import connect_options, core_config


def test_the_core_goes_by_priority_and_logs_as_the_server_does() -> None:
    settings = load_settings({"log_format": "text", "max_num_seqs": 7, "pace": 50.0}, {})
    config = core_config(settings, settings.models[0], demo_model(), "ipc:///tmp/core")
    assert (config.scheduling_policy, config.log_format) == ("priority", "text")
    assert config.runner == "generate"  # a model that classifies has nothing to say in a chat
    assert (config.model, config.max_num_seqs, config.pace) == (str(demo_model()), 7, 50.0)


@pytest.mark.parametrize("name", [None, "glm"])
def test_workers_read_answers_as_the_operator_says(name: str | None) -> None:
    assert set(get_args(AnswerFormat)) == set(FORMATS)
    settings = load_settings({} if name is None else {"answer_format": name}, {})
    options = connect_options(settings, settings.models[0], demo_model(), "ipc:///tmp/core")
    engine = connect(options, on_core_state=lambda state, reason: None)
    try:
        assert engine.answer_grammar.format.name == (name or "plain")
    finally:
        engine.shutdown()


@pytest.mark.parametrize(
    ("model", "name"), [("demo", "parley-demo"), (str(demo_model()), demo_model().name)]
)
def test_a_managed_core_has_a_socket_of_its_own_until_it_is_stopped(model: str, name: str) -> None:
    settings = load_settings({"model": model}, {})
    engine = manage(settings, settings.models[0], SOLE, lambda: None)
    options = msgspec.convert(engine.connect_options, ConnectOptions)
    folder = Path(options.address.removeprefix("ipc://")).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert engine.model_name == options.name == name
    assert options.folder == str(demo_model())
    engine.stop()
    assert not folder.exists()


class EndingKeeper(CoreKeeper):
    """Another thread ends its core between any two looks at it."""

    @property
    def _core(self) -> Any:
        core, self.__dict__["core"] = self.__dict__.get("core"), None
        return core

    @_core.setter
    def _core(self, core: Any) -> None:
        self.__dict__["core"] = core


def test_what_a_core_has_taken_may_be_asked_while_another_thread_ends_it() -> None:
    settings = load_settings({"model": "demo"}, {})
    engine = manage(settings, settings.models[0], SOLE, lambda: None)
    assert isinstance(engine, CoreKeeper)
    engine.__class__ = EndingKeeper
    core: Any = SimpleNamespace(pid=os.getpid(), report={"standby_bytes": 1})
    engine._core = core
    assert engine.taken_bytes > 0
    engine._core = core
    assert engine.memory_bytes == 1
    engine.stop()


@pytest.mark.parametrize("way", ["other weights", "no template", "gone"])
def test_a_managed_core_knows_whether_its_files_are_still_the_same(
    way: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(demo_model(), tmp_path / "m")
    settings = load_settings({"model": str(folder)}, {})
    engine = manage(settings, settings.models[0], SOLE, lambda: None)
    assert engine.is_current
    match way:
        case "other weights":
            os.utime(folder / "model.safetensors", (1, 1))
        case "no template":
            (folder / "tokenizer_config.json").unlink()
        case "gone":
            shutil.rmtree(folder)
    assert not engine.is_current
    engine.stop()


def test_a_folder_that_holds_no_model_is_refused_in_one_line(tmp_path: Path) -> None:
    settings = load_settings({"model": str(tmp_path)}, {})
    with pytest.raises(EngineSetupError) as refusal:
        manage(settings, settings.models[0], SOLE, lambda: None)
    assert "\n" not in str(refusal.value) and str(tmp_path) in str(refusal.value)


def _options(folder: Path, address: str = "") -> dict[str, Any]:
    return {"address": address, "folder": str(folder), "name": "demo"}


def _connect(folder: Path, address: Path) -> EngineClient:
    options = _options(folder, f"ipc://{address}")
    return connect(options, on_core_state=lambda state, reason: None)


async def test_a_worker_joins_a_core_that_is_not_there_yet(tmp_path: Path) -> None:
    engine = _connect(demo_model(), tmp_path / "core")
    try:
        assert isinstance(engine, AsyncLLM)
        assert not engine.is_ready
    finally:
        engine.shutdown()


async def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError):
        _connect(tmp_path, tmp_path / "core")


def test_a_checkpoint_without_defaults_for_sampling_has_none(tmp_path: Path) -> None:
    model = served_model(_options(tmp_path))
    assert (model.name, model.sampling_defaults) == ("demo", {})
    assert model.fingerprint == model_fingerprint(tmp_path)


def test_the_checkpoints_defaults_for_sampling_are_read(tmp_path: Path) -> None:
    config = {"temperature": 0.6, "top_k": 20, "do_sample": True, "eos_token_id": 5, "min_p": None}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert served_model(_options(tmp_path)).sampling_defaults == {"temperature": 0.6, "top_k": 20}
