from pathlib import Path

import pytest

from engine import AsyncLLM
from server.engines.native import UnsupportedModelError, connect, core_config, demo_model


def test_the_core_is_told_to_go_by_priority_and_to_log_as_the_server_does(tmp_path: Path) -> None:
    config = core_config(
        demo_model(), f"ipc://{tmp_path}/core", log_format="text", max_num_seqs=7, pace=50.0
    )
    assert (config.scheduling_policy, config.log_format) == ("priority", "text")
    assert (config.model, config.max_num_seqs, config.pace) == (str(demo_model()), 7, 50.0)


async def test_a_worker_joins_a_core_that_is_not_there_yet(tmp_path: Path) -> None:
    engine = connect(
        f"ipc://{tmp_path}/core",
        folder=str(demo_model()),
        name="demo",
        max_num_queued_reqs=None,
        on_core_state=lambda state, reason: None,
    )
    try:
        assert isinstance(engine, AsyncLLM)
        assert not engine.is_ready
    finally:
        engine.shutdown()


async def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError):
        connect(
            f"ipc://{tmp_path}/core",
            folder=str(tmp_path),
            name="none",
            max_num_queued_reqs=None,
            on_core_state=lambda state, reason: None,
        )
