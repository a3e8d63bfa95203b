"""What the comparison of two doors makes of what was seen at them."""

import pytest

from bench.remote.__main__ import OWN, THROUGH, Side, figures_of, lost_of


def side(rates: list[float], firsts: list[float], parley_seconds: float) -> Side:
    return Side(
        rates=rates,
        engine_rates=[2 * rate for rate in rates],
        firsts=firsts,
        firsts_together=firsts,
        client_seconds=0.25,
        parley_seconds=parley_seconds,
        num_tokens=1000,
    )


def test_a_loss_is_that_of_both_turns_of_a_round() -> None:
    assert lost_of([100, 60, 50, 50], [80, 64, 50, 40]) == pytest.approx([10, 10])


def test_medians_of_the_rounds_are_held_against_the_targets() -> None:
    own = side([100, 100, 80, 80, 10, 10], [0.1, 0.2, 0.3], 0.0)
    through = side([98, 98, 77, 77, 5, 5], [0.105, 0.209, 0.4], 0.5)
    figures = {figure.what: figure for figure in figures_of("x", 16, {OWN: own, THROUGH: through})}
    lost, later = figures["x: lost"], figures["x: first token alone, later by"]
    assert lost.achieved == pytest.approx(3.75) and lost.verdict == "reached"
    assert later.achieved == pytest.approx(9.0) and later.verdict == "reached"
    assert figures["x: lost, in the worst round"].achieved == pytest.approx(50)
    assert figures["x: processor time of Parley for a token"].achieved == pytest.approx(0.5)
