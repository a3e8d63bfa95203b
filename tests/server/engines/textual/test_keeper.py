"""`TextKeeper`: whether an engine is there at the start, and what is told of it."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from server.config.engines import parse_engines
from server.config.models import ModelSource
from server.config.settings import load_settings
from server.engines import textual
from server.engines.managed import EngineSetupError
from server.engines.textual import keeper as module
from server.engines.textual.connection import ConnectOptions
from server.engines.textual.facts import Facts
from server.engines.textual.keeper import TextKeeper
from tests.helpers.patience import PATIENCE
from tests.server.engines.textual.stand_in import StandIn, refused


def managed(url: str, source: str = "m", wake: Any = lambda: None, rest: str = "") -> TextKeeper:
    (entry,) = parse_engines([f"openai={url}{rest}"])
    return textual.manage(load_settings({}, {}), ModelSource(source), entry, wake)


async def started(stand_in: StandIn, rest: str = "") -> TextKeeper:
    """When it knows what has become of the start."""
    woken = threading.Event()
    keeper = managed(stand_in.base.removesuffix("/v1"), wake=woken.set, rest=rest)
    keeper.start()
    assert await asyncio.to_thread(woken.wait, PATIENCE)
    return keeper


async def test_an_engine_that_is_there_has_started() -> None:
    async with StandIn(context=4096) as stand_in:
        keeper = await started(stand_in)
        assert (keeper.is_starting, keeper.start_error) == (False, None)
        assert keeper.facts.context_length == 4096
        assert keeper.watch() and keeper.due is None
        await asyncio.to_thread(keeper.stop)


async def test_an_engine_that_comes_late_is_waited_for() -> None:
    stand_in, woken = StandIn(), threading.Event()
    async with stand_in:
        pass
    keeper = managed(stand_in.base, wake=woken.set)
    keeper.start()
    assert keeper.is_starting
    async with stand_in:
        assert await asyncio.to_thread(woken.wait, PATIENCE)
        assert keeper.start_error is None and not keeper.is_starting
    await asyncio.to_thread(keeper.stop)


async def test_looking_for_an_engine_outlives_what_nobody_has_thought_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults = [KeyError("x")]

    async def look(options: ConnectOptions) -> Facts:
        if faults:
            raise faults.pop()
        return await look_as_ever(options)

    look_as_ever = module.look
    monkeypatch.setattr(module, "look", look)
    async with StandIn() as stand_in:
        keeper = await started(stand_in)
        assert (keeper.is_starting, keeper.start_error, faults) == (False, None, [])
        await asyncio.to_thread(keeper.stop)


async def test_an_engine_that_refuses_is_refused_in_one_line_without_its_address() -> None:
    async with StandIn() as stand_in:
        stand_in.models = refused(401)
        keeper = await started(stand_in)
        assert keeper.start_error == "openai-1: it refuses our key: status 401: no"
        await asyncio.to_thread(keeper.stop)


async def test_a_model_that_it_does_not_have_is_refused() -> None:
    async with StandIn() as stand_in:
        keeper = await started(stand_in, ";model=other")
        assert keeper.start_error is not None and "no model other" in keeper.start_error
        await asyncio.to_thread(keeper.stop)


@pytest.mark.parametrize(
    ("source", "rest", "problem"),
    [
        ("demo", "", "--model"),
        ("m", ";key=/missing/key", "/missing/key"),
        ("m", ";ca=/missing/ca", "/missing/ca"),
    ],
)
def test_what_cannot_be_right_is_refused_before_the_start(
    source: str, rest: str, problem: str
) -> None:
    with pytest.raises(EngineSetupError, match=problem):
        managed("https://127.0.0.1:1", source, rest=rest)


def test_an_answer_goes_on_under_the_same_model_wherever_that_is(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret")

    def fingerprint(url: str, rest: str = "") -> str:
        return textual.served_model(managed(url, rest=rest).connect_options).fingerprint

    here = fingerprint("http://one:1")
    assert here == fingerprint("https://two:2", f";key={key}")
    assert here != fingerprint("http://one:1", ";model=other")
