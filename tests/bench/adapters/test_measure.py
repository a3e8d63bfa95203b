"""What `python -m bench.adapters` reports, of a model so small that its figures say nothing."""

from pathlib import Path

import pytest

from bench.adapters.__main__ import make_adapters, measure
from engine import LLM
from tests.helpers.tiny_model import build_tiny_model


@pytest.mark.slow
def test_each_way_of_asking_has_a_rate_and_what_it_costs_of_answers_without(tmp_path: Path) -> None:
    model = build_tiny_model(tmp_path / "model")
    adapters = make_adapters(model, tmp_path)
    options = {"enable_lora": True, "max_loras": 4, "num_gpu_blocks_override": 50}
    with LLM(str(model), threads=1, **options) as llm:
        figures = {figure.what: figure for figure in measure(llm, adapters, 5, 3, 2)}
    assert [what for what in figures if "rate" in what] == [
        "1 chat, no adapters, rate",
        "1 chat, 1 adapter, rate",
        "5 chats, no adapters, rate",
        "5 chats, 1 adapter, rate",
        "5 chats, 4 adapters, rate",
    ]
    rates = {what.removesuffix(", rate"): figure.achieved for what, figure in figures.items()}
    cost = figures["5 chats, 4 adapters, time of that without"]
    assert cost.target is not None and abs(cost.target - 1 / 0.85) < 1e-9
    ratio = rates["5 chats, no adapters"] / rates["5 chats, 4 adapters"]
    assert abs(cost.achieved / ratio - 1) < 1e-9
