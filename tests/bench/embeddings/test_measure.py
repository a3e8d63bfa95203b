"""What `python -m bench.embeddings` reports, of a model so small that its figures say nothing."""

from pathlib import Path

from bench.embeddings.__main__ import make_texts, measure
from engine import LLM
from tests.helpers.tiny_model import build_tiny_model


def test_texts_are_as_many_and_as_long_as_asked_for_and_the_same_each_time() -> None:
    texts = make_texts(384, 5, 7)
    assert [len(text) for text in texts] == [7] * 5 and texts == make_texts(384, 5, 7)
    assert all(128 <= token_id < 256 for text in texts for token_id in text)


def test_rates_are_beside_what_an_embedding_costs_of_a_prefill(tmp_path: Path) -> None:
    with LLM(str(build_tiny_model(tmp_path)), threads=1, num_gpu_blocks_override=50) as llm:
        figures = {figure.what: figure for figure in measure(llm, 3, 20, 2)}
    prefill = figures["prefill, rate"].achieved
    for kind in ("LAST", "MEAN"):
        cost = figures[f"{kind}, time of prefill's"]
        assert cost.target is not None and cost.target < 1.12
        rate = figures[f"{kind}, rate"].achieved
        assert abs(cost.achieved * rate / prefill - 1) < 1e-9
