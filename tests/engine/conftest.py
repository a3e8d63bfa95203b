"""After every test here, whatever it built must be able to end without leaving a trace."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from engine.scheduler import Scheduler

# How long an example takes says how busy the machine is; a failing one is printed to be repeated.
settings.register_profile("engine", deadline=None, print_blob=True)
settings.load_profile("engine")


@pytest.fixture(autouse=True)
def r8_nothing_is_left_of_any_scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """R8: when all has ended, free and cached blocks are all there are, without a reference."""
    built: list[Scheduler] = []
    build = Scheduler.__init__

    def build_and_remember(scheduler: Scheduler, *args: Any, **kwargs: Any) -> None:
        build(scheduler, *args, **kwargs)
        built.append(scheduler)

    monkeypatch.setattr(Scheduler, "__init__", build_and_remember)
    yield
    for scheduler in built:
        scheduler.check_integrity()
        for sequence in list(scheduler.sequences.values()):
            scheduler.finish(sequence, "abort")
        while scheduler.blocks.is_step_in_flight:  # a test that ends within a step
            scheduler.give_up()
        scheduler.check_idle()
