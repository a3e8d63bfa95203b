"""Weights that are whole numbers in a GGUF file are served as these, and never made wider."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.core.models import stored_weights
from engine.core.models.checkpoint import check_folder
from engine.core.models.fused.decoder import FusedDecoder
from engine.core.models.gguf import weights as reading
from engine.core.models.stored_weights import read_or_find_weights
from engine.core.ops.packing import PackedWeight
from engine.core.ops.stacks import PackedStack
from engine.folder.gguf.derived import derive_folder
from tests.engine.core.runner.test_model_runner import few_bit_logits
from tests.engine.helpers.gguf.gguf_files import rounded_checkpoint, write_gguf
from tests.engine.helpers.greedy_oracle import Folders
from tests.engine.helpers.stepped_engine import SteppedEngine
from tests.helpers.built_kernels import needs_kernels

pytestmark = [needs_kernels, pytest.mark.usefixtures("one_thread")]

FOUR, SIX, EIGHT = "int4_parts", "int6", "int8_parts"
PROMPT = [5, 6, 7, 8, 9, 300, 301, 302, 17]


def start(file: Path, **settings: Any) -> SteppedEngine:
    return SteppedEngine(derive_folder(file), keeps_logits=True, **settings)


def fused(engine: SteppedEngine) -> FusedDecoder:
    decoder = engine.runner.loaded.fused
    assert isinstance(decoder, FusedDecoder)
    return decoder


def of_layer(packed: PackedWeight | PackedStack, layer: int, like: Tensor) -> Tensor:
    return packed.unpack(layer)[: like.shape[0], : like.shape[1]]


@pytest.mark.parametrize(
    ("kind", "format"),
    [
        *(("Q4_0", FOUR), ("Q4_1", FOUR)),
        *(("Q5_0", SIX), ("Q5_1", SIX), ("Q8_0", EIGHT)),
    ],
)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_packed_weights_are_the_numbers_of_the_file(
    checkpoint: Folders, tmp_path: Path, family: str, kind: str, format: str
) -> None:
    engine = start(write_gguf(checkpoint(family), tmp_path / "tiny.gguf", kind))
    rounded = load_file(
        rounded_checkpoint(checkpoint(family), tmp_path / "rounded", kind) / "model.safetensors"
    )
    weights = fused(engine).weights
    assert {kind for stack in weights.stacks for kind in stack.formats} == {format}
    assert weights.head.format == format
    for layer in range(fused(engine).shape.num_layers):
        attention = f"model.layers.{layer}.self_attn"
        qkv = torch.cat([rounded[f"{attention}.{name}_proj.weight"] for name in "qkv"])
        assert_same(of_layer(weights.qkv, layer, qkv), qkv)
        out = rounded[f"{attention}.o_proj.weight"]
        assert_same(of_layer(weights.attention_out, layer, out), out)
        down = rounded[f"model.layers.{layer}.mlp.down_proj.weight"]
        assert_same(of_layer(weights.down, layer, down), down)
        gate = rounded[f"model.layers.{layer}.mlp.gate_proj.weight"]
        panels = weights.gate_up.unpack(layer)[:, : gate.shape[1]].view(-1, 2, 16, gate.shape[1])
        assert_same(panels[:, 0].flatten(0, 1)[: len(gate)], gate)
    head = rounded["lm_head.weight"]
    assert_same(of_layer(weights.head, 0, head), head)
    assert weights.embeddings is not None and weights.table is not None
    ids = torch.randint(0, len(head), (40,), generator=torch.Generator().manual_seed(0))
    rows = weights.embeddings[weights.table.look_up(ids)]
    table = rounded["model.embed_tokens.weight"]
    assert torch.equal(rows, table[ids].to(rows.dtype))


def test_weights_of_many_slabs_are_packed_by_threads(
    checkpoint: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(checkpoint("llama"), tmp_path / "tiny.gguf", "Q4_0", others={"down": "F16"})
    whole = fused(start(file)).weights
    monkeypatch.setattr(reading, "SLAB_NUMBERS", 300)
    slabs = fused(start(file)).weights
    for one, other in ((whole.qkv, slabs.qkv), (whole.down, slabs.down), (whole.head, slabs.head)):
        assert torch.equal(one.unpack(0), other.unpack(0))


def test_an_output_layer_that_is_read_in_pieces_is_packed_alike(
    checkpoint: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("Q4_0", "Q5_1", "F16"):
        others = {"embed": "Q4_0", "down": kind, "lm_head": kind}
        file = write_gguf(checkpoint("llama"), tmp_path / f"{kind}.gguf", "Q8_0", others=others)
        monkeypatch.setattr(stored_weights, "PIECE_NUMBERS", 1 << 25)
        whole = fused(start(file)).weights
        monkeypatch.setattr(stored_weights, "PIECE_NUMBERS", 3 * 16 * 64)  # 48 rows of 64 numbers
        pieces = fused(start(file)).weights
        for one, other in ((whole.head, pieces.head), (whole.down, pieces.down)):
            assert torch.equal(one.unpack(0), other.unpack(0))


def test_floats_of_a_file_stay_there_until_they_are_packed(
    checkpoint: Folders, tmp_path: Path
) -> None:
    folder = derive_folder(write_gguf(checkpoint("llama"), tmp_path / "tiny.gguf", "F16"))
    found = dict(read_or_find_weights(check_folder(folder), torch.float32, keeps_numbers=True))
    for name, weight in found.items():
        assert isinstance(weight, torch.Tensor) == name.endswith("norm.weight"), name


def test_embeddings_that_are_floats_in_the_file_are_floats(
    checkpoint: Folders, tmp_path: Path
) -> None:
    file = write_gguf(checkpoint("llama"), tmp_path / "tiny.gguf", "Q4_0", others={"embed": "BF16"})
    weights = fused(start(file)).weights
    table = load_file(checkpoint("llama") / "model.safetensors")["model.embed_tokens.weight"]
    assert weights.table is None and weights.embeddings is not None
    assert torch.equal(weights.embeddings, table.to(weights.embeddings.dtype))


def formats_of(stack: PackedStack) -> list[list[str]]:
    """Of the pieces of each layer."""
    return [[stack.formats[piece.kind] for piece in layer] for layer in stack.layers]


def assert_same(found: Tensor, expected: Tensor) -> None:
    """But for products with scales, which are rounded to float32 here and there."""
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_answers_are_those_of_the_reference_with_the_same_numbers(
    checkpoint: Folders, tmp_path: Path, kind: str
) -> None:
    engine = start(write_gguf(checkpoint("llama"), tmp_path / "tiny.gguf", kind))
    engine.add("0", PROMPT, max_tokens=20)
    engine.run()
    answer = engine.tokens["0"]
    expected = few_bit_logits(engine, PROMPT + answer[:-1])[len(PROMPT) - 1 :]
    differences = (torch.stack(engine.logits["0"]) - expected).abs().amax(-1)
    assert len(answer) == 20
    # Keys, values and attention are bfloat16, which the reference rounds elsewhere.
    assert differences.max() < 0.05 * (expected.amax() - expected.amin())
    chosen = expected.gather(1, torch.tensor(answer)[:, None]).squeeze(1)
    assert (expected.amax(-1) - chosen).max() < 2 * differences.max()


def test_a_file_of_several_types_has_each_weight_in_as_many_bits_as_it_needs(
    checkpoint: Folders, tmp_path: Path
) -> None:
    others = {
        "layers.2.self_attn.v_proj": "Q4_0",  # the first that fits counts
        "v_proj": "Q8_0",
        "layers.0.mlp.down_proj": "Q5_1",
        "layers.2.mlp.down_proj": "F16",
        "lm_head": "F16",
    }
    original = checkpoint("llama")
    engine = start(write_gguf(original, tmp_path / "tiny.gguf", "Q4_0", others=others))
    weights = fused(engine).weights
    floats = str(engine.runner.loaded.dtype).removeprefix("torch.")
    assert [formats_of(stack) for stack in weights.stacks] == [
        [[FOUR, EIGHT], [FOUR, EIGHT], [FOUR]],
        [[FOUR]] * 3,
        [[FOUR]] * 3,
        [[SIX], [FOUR], [floats]],
    ]
    assert weights.head.format == floats
    rounded = {
        kind: load_file(rounded_checkpoint(original, tmp_path / kind, kind) / "model.safetensors")
        for kind in ("Q4_0", "Q8_0")
    }
    name = "model.layers.1.self_attn.{}_proj.weight"
    parts = [rounded["Q8_0" if part == "v" else "Q4_0"][name.format(part)] for part in "qkv"]
    assert_same(of_layer(weights.qkv, 1, torch.cat(parts)), torch.cat(parts))


def test_who_names_a_dtype_or_a_quantization_gets_that(checkpoint: Folders, tmp_path: Path) -> None:
    file = write_gguf(checkpoint("llama"), tmp_path / "tiny.gguf", "Q4_0")
    for settings, format in (
        ({"dtype": "float32"}, "float32"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"quantization": "int8"}, "int8"),
    ):
        assert fused(start(file, **settings)).weights.down.formats == (format,)
