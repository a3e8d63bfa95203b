"""The nemesis with engines that die, hang and lie. A failure prints the seed that repeats it."""

import os
import random
from pathlib import Path

import pytest

from tests.end_to_end.storm import nemesis, planted_lies
from tests.end_to_end.storm.counting_engine import NO_SUCH_TOKEN
from tests.end_to_end.storm.engines import FAULTS

pytestmark = [pytest.mark.slow, pytest.mark.row("C23")]
MINUTES = {"pair": 6.0, "remote": 14.0}
MAX_MISSING = 2  # kinds of faults that no answer met, on a machine that has much else to do


def seed() -> int:
    return int(os.environ.get("PARLEY_NEMESIS_SEED") or random.SystemRandom().randrange(2**32))


async def test_the_history_holds_through_deaths_and_hangs_of_two_cores(oracle_model: Path) -> None:
    done = await nemesis.run(oracle_model, seed(), MINUTES["pair"], engines="pair")
    assert done.engines.happened.keys() == {"core killed", "core hangs"}
    assert done.ends["max_output_tokens"] > 0


async def test_the_history_holds_through_engines_that_die_hang_and_lie(oracle_model: Path) -> None:
    done = await nemesis.run(oracle_model, seed(), MINUTES["remote"], engines="remote")
    missing = [name for name in FAULTS if not done.engines.happened[name]]
    assert len(missing) <= MAX_MISSING, missing
    assert done.ends["max_output_tokens"] > 0


@pytest.mark.parametrize(
    ("lie", "fault", "found"),
    [
        ("forget_a_token", "answer cut", r"t\d{5} |I1 |I13 "),
        ("believe_everything", NO_SUCH_TOKEN, r"t\d{5} |I1 "),
        ("tell_no_restart", NO_SUCH_TOKEN, "I12 .* reports no restart"),
    ],
)
async def test_what_parley_gets_wrong_is_seen(
    oracle_model: Path, tmp_path: Path, lie: str, fault: str, found: str
) -> None:
    planted = planted_lies.plant(tmp_path, lie)
    with pytest.raises(AssertionError, match=found):
        await nemesis.run(
            oracle_model,
            seed(),
            minutes=3.0,
            num_sessions=12,
            engines="remote",
            planted=planted,
            only=[fault],
        )
