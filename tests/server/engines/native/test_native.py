from pathlib import Path
from typing import Any

import pytest

from engine import AsyncLLM, demo_model
from server.config.settings import load_settings
from server.engines.client import UnsupportedModelError
from server.engines.managed import EngineSetupError
from server.engines.native import connect, manage
from server.engines.native.preparation import core_config


def test_the_core_goes_by_priority_and_logs_as_the_server_does() -> None:
    settings = load_settings({"log_format": "text", "max_num_seqs": 7, "pace": 50.0}, {})
    config = core_config(settings, demo_model(), "ipc:///tmp/core")
    assert (config.scheduling_policy, config.log_format) == ("priority", "text")
    assert config.runner == "generate"  # a model that classifies has nothing to say in a chat
    assert (config.model, config.max_num_seqs, config.pace) == (str(demo_model()), 7, 50.0)


@pytest.mark.parametrize(
    ("model", "name"), [("demo", "parley-demo"), (str(demo_model()), demo_model().name)]
)
def test_a_managed_core_has_a_socket_of_its_own_until_it_is_stopped(model: str, name: str) -> None:
    engine = manage(load_settings({"model": model}, {}), lambda: None)
    folder = Path(engine.address.removeprefix("ipc://")).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (engine.model_name, engine.model_folder) == (name, demo_model())
    engine.stop()
    assert not folder.exists()


def test_a_folder_that_holds_no_model_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(EngineSetupError) as refusal:
        manage(load_settings({"model": str(tmp_path)}, {}), lambda: None)
    assert "\n" not in str(refusal.value) and str(tmp_path) in str(refusal.value)


def _connect(folder: Path, address: Path) -> Any:
    return connect(
        f"ipc://{address}",
        folder=str(folder),
        name="demo",
        max_num_queued_reqs=None,
        on_core_state=lambda state, reason: None,
    )


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
