"""Each fuzz target finds nothing in a while, 20 minutes in `make test-slow`."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable

import pytest

from tests.fuzz.__main__ import TARGETS

SECONDS = 2.0
LONG_SECONDS = 20 * 60.0


def run_of(target: str) -> Callable[[float, int], str]:
    run: Callable[[float, int], str] = importlib.import_module(f"tests.fuzz.fuzz_{target}").run
    return run


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_found_in_a_short_run(target: str) -> None:
    print(run_of(target)(SECONDS, 1))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_found_in_twenty_minutes(target: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    print(run_of(target)(LONG_SECONDS, seed))
