"""What `python -m bench.embeddings` reports, of a model so small that its figures say nothing."""

from pathlib import Path

import pytest

from bench.embeddings.__main__ import make_texts, measure
from engine import LLM


def test_texts_are_as_many_and_as_long_as_asked_for_and_the_same_each_time(
    checkpoint_folder: Path,
) -> None:
    texts = make_texts(checkpoint_folder, 5, 7)
    assert [len(text.split()) for text in texts] == [7] * 5
    assert texts == make_texts(checkpoint_folder, 5, 7)


@pytest.mark.slow
def test_rates_are_beside_what_an_embedding_costs_of_a_prefill(checkpoint_folder: Path) -> None:
    texts = make_texts(checkpoint_folder, 3, 20)
    with LLM(str(checkpoint_folder), threads=1, num_gpu_blocks_override=50) as llm:
        figures = {figure.what: figure for figure in measure(llm, texts, 20, 2)}
    prefill = figures["prefill, rate"].achieved
    for kind in ("LAST", "MEAN"):
        cost = figures[f"{kind}, time of prefill's"]
        assert cost.target is not None and cost.target < 1.12
        rate = figures[f"{kind}, rate"].achieved
        assert abs(cost.achieved * rate / prefill - 1) < 1e-9
