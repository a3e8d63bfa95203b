"""Shapes without weights are read as they are meant."""

from pathlib import Path

from bench.gpu.cases import GPU_SHAPES
from bench.peers.models import make_without_weights


def test_the_shapes_are_those_of_the_models_they_stand_for(tmp_path: Path) -> None:
    model = make_without_weights(GPU_SHAPES["8B"], tmp_path / "8B")
    assert model.name == "8B" and 7.4e9 < model.num_weights < 7.7e9  # without its embeddings
    assert model.kv_values == 2 * 36 * 8 * 128
