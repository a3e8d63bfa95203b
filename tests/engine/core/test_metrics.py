"""The core's figures, as the server asks for them."""

from engine.core.metrics import CoreMetrics
from tests.engine.helpers.fakes import make_scheduler


def test_the_result_of_the_row_probe_is_among_the_figures() -> None:
    metrics = CoreMetrics("name", "cpu", row_multiple=4, is_batch_invariant=True)
    figures = metrics.snapshot(make_scheduler())
    assert (figures["batch_invariant"], figures["row_multiple"]) == (1, 4)
    assert CoreMetrics("name", "cpu").snapshot(make_scheduler())["batch_invariant"] == 0


def test_it_is_among_the_figures_that_a_model_is_the_text_half_of_one() -> None:
    for is_half in (True, False):
        metrics = CoreMetrics("name", "cpu", is_text_only=is_half)
        assert metrics.snapshot(make_scheduler())["text_only"] == is_half
