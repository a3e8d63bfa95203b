"""C18: the nemesis, for as long as a test may take. A failure prints the seed that repeats it."""

import os
import random
from pathlib import Path

import pytest

from tests.end_to_end.storm import nemesis


async def hold(model: Path, **arguments: float) -> None:
    seed = int(os.environ.get("PARLEY_NEMESIS_SEED") or random.SystemRandom().randrange(2**32))
    done = await nemesis.run(model, seed, **arguments)  # type: ignore[arg-type]
    assert sum(done.ends.values()) > 0


@pytest.mark.row("C18")
@pytest.mark.slow
async def test_the_history_holds_through_a_few_faults(oracle_model: Path) -> None:
    await hold(oracle_model, minutes=0.01, num_sessions=6, round_seconds=5.0)


@pytest.mark.row("C18")
@pytest.mark.slow
async def test_the_history_holds_through_a_minute_of_faults(oracle_model: Path) -> None:
    await hold(oracle_model, minutes=1.0)
