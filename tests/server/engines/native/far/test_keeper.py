"""What the supervisor makes of a core on another machine, and what workers make of it."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine import AsyncLLM, CoreState, Exactness, demo_model
from engine.client.far.connection import FarCoreConnection
from engine.config import CoreIdentity
from engine.far.keys import make_keys
from server.config.settings import load_settings
from server.engines.elsewhere import EngineElsewhere
from server.engines.kinds import chosen_entry, chosen_kind
from server.engines.managed import EngineSetupError
from server.engines.native import connect, manage, served_model
from server.engines.native.connection import ConnectOptions
from server.engines.native.far.check import identity_of
from server.engines.native.fingerprint import model_fingerprint
from tests.engine.helpers.far.machines import Machines
from tests.helpers.patience import PATIENCE


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


@pytest.fixture
def built() -> Iterator[list[EngineElsewhere]]:
    keepers: list[EngineElsewhere] = []
    yield keepers
    for keeper in keepers:
        keeper.stop()


def prepare(
    machines: Machines, built: list[EngineElsewhere], keys: Path | None = None, **settings: Any
) -> tuple[EngineElsewhere, threading.Event]:
    given = {"engines": [f"native={machines.address};keys={keys or machines.of_client}"]}
    loaded = load_settings(given | settings, {})
    woken = threading.Event()
    entry = chosen_entry(loaded)
    keeper = chosen_kind(loaded).manage(loaded, loaded.models[0], entry, woken.set)
    assert isinstance(keeper, EngineElsewhere)
    built.append(keeper)
    return keeper, woken


def identity(**fields: str) -> CoreIdentity:
    return msgspec.structs.replace(identity_of(demo_model()), **fields)


def test_a_core_is_waited_for_and_found(machines: Machines, built: list[EngineElsewhere]) -> None:
    keeper, woken = prepare(machines, built)
    keeper.start()
    assert keeper.is_starting and keeper.watch()
    with machines.core(identity=identity()):
        assert woken.wait(PATIENCE)
    assert not keeper.is_starting and keeper.start_error is None
    assert keeper.model_name == "parley-demo" and keeper.facts.context_length == 200
    assert keeper.facts.format == f"native at {machines.address}"
    assert (keeper.memory_bytes, keeper.taken_bytes, keeper.is_current) == (None, 0, True)


def test_a_core_that_nobody_waits_for_any_more_is_not_looked_for(
    machines: Machines, built: list[EngineElsewhere]
) -> None:
    keeper, woken = prepare(machines, built)
    keeper.start()
    keeper.release()
    assert woken.is_set() and keeper.is_starting


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"version": "0.0.9"}, "it is Parley 0.0.9, and this server"),
        ({"texts": "0"}, "its model is another one"),
        ({"model": "0"}, "its model has other weights"),
    ],
)
def test_a_core_with_something_else_ends_the_start_in_one_line(
    machines: Machines, built: list[EngineElsewhere], fields: dict[str, str], problem: str
) -> None:
    with machines.core(identity=identity(**fields)):
        keeper, woken = prepare(machines, built)
        keeper.start()
        assert woken.wait(PATIENCE)
    assert keeper.start_error is not None and keeper.is_refusal
    assert f"the engine core at {machines.address}: {problem}" in keeper.start_error
    assert "\n" not in keeper.start_error


def test_a_core_that_does_not_trust_us_ends_the_start_in_one_line(
    machines: Machines, built: list[EngineElsewhere], tmp_path: Path
) -> None:
    with machines.core(identity=identity()):
        keeper, woken = prepare(machines, built, machines.stranger(tmp_path / "stranger"))
        keeper.start()
        assert woken.wait(PATIENCE)
    assert keeper.start_error == f"{machines.address} does not trust our key"


def test_one_whose_key_is_another_ends_the_start_in_one_line(
    machines: Machines, built: list[EngineElsewhere]
) -> None:
    (trusted,) = (machines.of_client / "trusted").iterdir()
    trusted.write_text("1" * 64)
    with machines.core(identity=identity()):
        keeper, woken = prepare(machines, built)
        keeper.start()
        assert woken.wait(PATIENCE)
    assert keeper.start_error is not None
    assert "not the one whose key is trusted" in keeper.start_error


def test_keys_that_are_not_there_are_refused_before_anything_is_started(
    machines: Machines, built: list[EngineElsewhere], tmp_path: Path
) -> None:
    with pytest.raises(EngineSetupError, match=r"native-1: .*holds no keys"):
        prepare(machines, built, tmp_path / "none")
    make_keys(tmp_path / "lonely")
    with pytest.raises(EngineSetupError, match="trusts one core, and not 0"):
        prepare(machines, built, tmp_path / "lonely")


async def test_a_worker_joins_it_by_what_the_supervisor_passes_on(
    machines: Machines, built: list[EngineElsewhere]
) -> None:
    keeper, _ = prepare(machines, built, quantize="int8")
    options = keeper.connect_options
    assert served_model(options).fingerprint == model_fingerprint(demo_model())
    reasons: list[tuple[CoreState, str]] = []
    with machines.core(identity=identity()):
        engine = connect(options, on_core_state=lambda *state: reasons.append(state))
        assert isinstance(engine, AsyncLLM) and engine.exactness is Exactness.EXACT
        link = engine._client.link
        assert isinstance(link, FarCoreConnection)
        async with asyncio.timeout(PATIENCE):
            while not reasons:  # noqa: ASYNC110  (of a plain object)
                await asyncio.sleep(0.01)
    assert reasons[0] == (CoreState.DEAD, "its setting quantize is none, and here int8")
    engine.shutdown()


def test_one_of_this_machine_has_no_keys() -> None:
    settings = load_settings({"model": "demo"}, {})
    keeper = manage(settings, settings.models[0], settings.engine_entries[0], lambda: None)
    assert msgspec.convert(keeper.connect_options, ConnectOptions).far is None
    keeper.stop()
