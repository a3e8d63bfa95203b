from pathlib import Path
from typing import Any

import pytest

from engine.config import FarDoor
from engine.far.keys import make_keys
from server.config.settings import load_settings
from server.engines.managed import EngineSetupError
from server.engines.native.core_keeper import CoreKeeper
from server.engines.native.far.check import identity_of
from server.engines.native.far.host import manage

LISTEN = "tcp://0.0.0.0:7700"


def prepare(keys: Path | None, listen: str = LISTEN, *permits: str, **settings: Any) -> CoreKeeper:
    keeper = manage(load_settings(settings, {}), listen, keys, permits, lambda: None)
    assert isinstance(keeper, CoreKeeper)
    return keeper


@pytest.mark.parametrize("listen", [LISTEN, "tcp://10.0.0.7:1", "tcp://[::]:7700"])
def test_a_core_gets_a_door_and_says_what_it_is(listen: str, tmp_path: Path) -> None:
    make_keys(tmp_path)
    keeper = prepare(tmp_path, listen, "lora", quantize="int8")
    config = keeper._config
    assert config.far == FarDoor(address=listen, keys=str(tmp_path), permits=["lora"])
    assert config.identity == identity_of(Path(config.model))
    assert config.address.startswith("ipc://") and config.quantization == "int8"
    keeper.stop()


@pytest.mark.parametrize(
    ("listen", "problem"),
    [
        ("tcp://gpu1:7700", "is no address to listen at"),
        ("tcp://0.0.0.0", "is no address to listen at"),
        ("ipc:///tmp/x", "is no address to listen at"),
        ("0.0.0.0:7700", "is no address to listen at"),
        ("tcp://*:7700", "is no address to listen at"),
    ],
)
def test_what_is_no_address_of_a_machine_is_refused(
    listen: str, problem: str, tmp_path: Path
) -> None:
    make_keys(tmp_path)
    with pytest.raises(EngineSetupError, match=problem):
        prepare(tmp_path, listen)


def test_nothing_is_served_without_keys(tmp_path: Path) -> None:
    with pytest.raises(EngineSetupError, match=r"needs --keys FOLDER.*nothing is served unencr"):
        prepare(None)
    with pytest.raises(EngineSetupError, match="holds no keys"):
        prepare(tmp_path)


def test_permits_are_named_and_a_core_has_one_model(tmp_path: Path) -> None:
    make_keys(tmp_path)
    with pytest.raises(EngineSetupError, match="no permit all, but lora, control, profile, coll"):
        prepare(tmp_path, LISTEN, "all")
    with pytest.raises(EngineSetupError, match="a core has one model"):
        prepare(tmp_path, model=["demo", "a=demo"])
