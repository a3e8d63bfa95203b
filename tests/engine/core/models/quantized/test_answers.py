"""A published checkpoint answers as transformers does with the weights that it stands for."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.core.models.checkpoint import check_folder
from engine.core.models.fused.decoder import FusedDecoder
from engine.core.models.fused.plain_config import read_plain_config
from engine.core.models.modules.linear import PackedLinear
from engine.core.ops.stacks import PackedStack
from tests.engine.core.runner.test_model_runner import few_bit_logits
from tests.engine.helpers import greedy_oracle
from tests.engine.helpers.greedy_oracle import (
    Folders,
    Reference,
    check_equals_transformers,
    families_in,
    make_prompts,
)
from tests.engine.helpers.published.formats import FORMATS, WEIGHTS, split, write
from tests.engine.helpers.stepped_engine import SteppedEngine
from tests.helpers.built_kernels import needs_kernels

pytestmark = pytest.mark.usefixtures("one_thread")

DENSE = [name for name in FORMATS if name != "mxfp4"]
FOUR, SIX, EIGHT = "int4_parts", "int6", "int8_parts"
PACKED = {
    "awq": FOUR,
    "awq, one group": FOUR,
    "gptq": FOUR,
    "gptq, biases of zeros": FOUR,
    "gptq, zero points": FOUR,
    "gptq_v2, zero points": FOUR,
    "gptq, 8 bits": EIGHT,
    "gptq, 8 bits, zero points": EIGHT,
    "compressed, 4 bits": FOUR,
    "compressed, 4 bits, zero points": FOUR,
    "compressed, 4 bits, channels": FOUR,
    "compressed, 8 bits": EIGHT,
    "compressed, 8 bits, zero points": EIGHT,
    "bitsandbytes, 8 bits": EIGHT,
}
# Of the largest weight: scales, and their products with zero points, are rounded to float16 once.
MAX_SHARE = 1e-3
PROMPT = [5, 6, 7, 8, 9, 300, 301, 302, 17]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return families_in(tmp_path_factory.mktemp("checkpoints"))


def check_equal(folders: tuple[Path, Path], **settings: Any) -> SteppedEngine:
    """With the twin in floats as the oracle."""
    published, floats = folders
    with (
        patch.object(greedy_oracle, "Reference", lambda _: Reference(floats)),
        patch.object(greedy_oracle, "MAX_LOGIT_DIFFERENCE", 2e-5),
    ):
        return check_equals_transformers(published, **settings)


def fused(engine: SteppedEngine) -> FusedDecoder:
    decoder = engine.runner.loaded.fused
    assert isinstance(decoder, FusedDecoder)
    return decoder


@needs_kernels
@pytest.mark.parametrize("name", DENSE)
def test_the_fused_decoder_computes_with_what_codes_stand_for(
    name: str, checkpoint: Folders, tmp_path: Path
) -> None:
    folders = write(checkpoint("llama"), tmp_path, FORMATS[name])
    assert read_plain_config(check_folder(folders[0])) is not None  # transformers is not needed
    check_equal(folders, dtype="float32", model_impl="fused")


@pytest.mark.parametrize("name", DENSE)
def test_modules_of_transformers_compute_with_what_codes_stand_for(
    name: str, checkpoint: Folders, tmp_path: Path
) -> None:
    folders = write(checkpoint("llama"), tmp_path, FORMATS[name])
    check_equal(folders, dtype="float32", model_impl="transformers")


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("gpt_oss", "mxfp4"),
        ("qwen3_moe", "fp8, blocks"),
        ("qwen3_moe", "compressed, 4 bits"),
        ("deepseek_v3", "fp8, blocks"),
        ("gemma3", "gptq, zero points"),
        ("qwen2", "awq"),
        ("phi3", "awq"),
        ("opt", "nf4"),
    ],
)
def test_other_families_compute_with_what_codes_stand_for(
    family: str, name: str, checkpoint: Folders, tmp_path: Path
) -> None:
    names = ".fc1.weight" if family == "opt" else None
    folders = write(checkpoint(family), tmp_path, FORMATS[name], names)
    check_equal(folders, dtype="float32")


def of_layer(packed: PackedStack, layer: int, like: Tensor) -> Tensor:
    return packed.unpack(layer)[: like.shape[0], : like.shape[1]]


@needs_kernels
@pytest.mark.parametrize("name", PACKED)
def test_packed_weights_are_the_numbers_of_the_file(
    name: str, checkpoint: Folders, tmp_path: Path
) -> None:
    published, floats = write(checkpoint("qwen3"), tmp_path, FORMATS[name])
    engine = SteppedEngine(published, keeps_logits=True)
    weights, meant = fused(engine).weights, load_file(floats / WEIGHTS)
    for layer in range(3):
        stem = f"model.layers.{layer}"
        qkv = torch.cat([meant[f"{stem}.self_attn.{part}_proj.weight"] for part in "qkv"])
        out, down = (meant[f"{stem}.{part}_proj.weight"] for part in ("self_attn.o", "mlp.down"))
        for packed, expected in (
            (weights.qkv, qkv),
            (weights.attention_out, out),
            (weights.down, down),
        ):
            assert packed.formats == (PACKED[name],)
            difference = (of_layer(packed, layer, expected) - expected).abs().max()
            assert difference < MAX_SHARE * expected.abs().max()
    assert weights.gate_up.formats == (PACKED[name],)
    assert weights.head.format not in (FOUR, EIGHT)  # which nobody has quantized

    engine.add("0", PROMPT, max_tokens=20)
    engine.run()
    expected = few_bit_logits(engine, PROMPT + engine.tokens["0"][:-1])[len(PROMPT) - 1 :]
    differences = (torch.stack(engine.logits["0"]) - expected).abs().amax(-1)
    assert differences.max() < 0.05 * (expected.amax() - expected.amin())


def packed_layers(engine: SteppedEngine) -> dict[str, PackedLinear]:
    """Those of few bits, by the names of their weights in a checkpoint."""
    return {
        f"{name}.weight": module
        for name, module in engine.runner.loaded.model.named_modules()
        if isinstance(module, PackedLinear) and module.format in (FOUR, SIX, EIGHT)
    }


@needs_kernels
@pytest.mark.parametrize(
    ("family", "name"),
    [("gemma3", "awq"), ("olmo2", "gptq, 8 bits"), ("qwen3_moe", "compressed, 4 bits")],
)
def test_modules_of_transformers_keep_the_numbers_of_the_file(
    family: str, name: str, checkpoint: Folders, tmp_path: Path
) -> None:
    published, floats = write(checkpoint(family), tmp_path, FORMATS[name])
    layers = packed_layers(SteppedEngine(published))
    meant = load_file(floats / WEIGHTS)
    expected = {name: weight for name, weight in meant.items() if name.endswith("_proj.weight")}
    for own_name, experts in experts_of(expected).items():
        expected |= {f"{own_name}_packed.{e}.weight": weight for e, weight in enumerate(experts)}
    assert layers.keys() == expected.keys()
    for own_name, layer in layers.items():
        weight = layer.weight + 0
        assert layer.format == PACKED[name]
        # bfloat16, which the module's weight is where the CPU multiplies it, rounds by 2 ** -9
        difference = (weight - expected[own_name]).abs().max()
        assert difference < 4e-3 * expected[own_name].abs().max()


def experts_of(weights: dict[str, Tensor]) -> dict[str, list[Tensor]]:
    """Take out what belongs to experts: their weights in order, gates and ups as one."""
    found: dict[str, dict[int, dict[str, Tensor]]] = {}
    for name in [name for name in weights if ".experts." in name]:
        stem, _, rest = name.partition(".experts.")
        number, part, _ = rest.split(".")
        found.setdefault(stem, {}).setdefault(int(number), {})[part] = weights.pop(name)
    experts: dict[str, list[Tensor]] = {}
    for stem, parts in found.items():
        in_order = [parts[number] for number in sorted(parts)]
        both = [torch.cat([each["gate_proj"], each["up_proj"]]) for each in in_order]
        experts[f"{stem}.experts.gate_up_proj"] = both
        experts[f"{stem}.experts.down_proj"] = [each["down_proj"] for each in in_order]
    return experts


@needs_kernels
def test_experts_keep_the_numbers_of_the_file(checkpoint: Folders, tmp_path: Path) -> None:
    published, floats = write(checkpoint("gpt_oss"), tmp_path, FORMATS["mxfp4"])
    layers = packed_layers(SteppedEngine(published))
    meant = load_file(floats / WEIGHTS)
    assert len(layers) == 3 * 4 * 2
    for layer in range(3):
        for own_name in ("gate_up_proj", "down_proj"):
            stem = f"model.layers.{layer}.mlp.experts.{own_name}"
            for expert in range(4):
                packed = layers[f"{stem}_packed.{expert}.weight"]
                assert packed.format == SIX
                assert torch.equal((packed.weight + 0).float(), meant[stem][expert].T)
                rows = torch.randn(5, packed.weight.shape[1])
                expected = rows @ meant[stem][expert] + meant[f"{stem}_bias"][expert]
                difference = (packed(rows) - expected).abs().max()
                assert difference < 0.02 * expected.abs().max()  # rows are rounded to 8 bits


@needs_kernels
@pytest.mark.parametrize(
    ("family", "name"),
    [
        *(("qwen2", name) for name in ("awq", "gptq, 8 bits", "gptq, desc_act", "fp8, blocks")),
        ("gpt_oss", "mxfp4"),
        ("qwen3_moe", "awq"),
        ("gemma3", "compressed, 4 bits"),
    ],
)
def test_a_row_does_not_depend_on_the_batch(
    family: str, name: str, checkpoint: Folders, tmp_path: Path
) -> None:
    published, _ = write(checkpoint(family), tmp_path, FORMATS[name])
    together = SteppedEngine(published, keeps_logits=True)
    for number, prompt in enumerate(make_prompts()):
        together.add(str(number), prompt, max_tokens=8)
    together.run()
    alone = SteppedEngine(published, keeps_logits=True, max_num_batched_tokens=5)
    for number, prompt in enumerate(make_prompts()):
        alone.add(str(number), prompt, max_tokens=8)
        alone.run()
        assert alone.tokens[str(number)] == together.tokens[str(number)]
        for one, other in zip(alone.logits[str(number)], together.logits[str(number)], strict=True):
            assert torch.equal(one, other)


@needs_kernels
@pytest.mark.parametrize(
    ("name", "settings", "format"),
    [
        ("fp8, blocks", {"quantization": "int8"}, "int8"),
        ("awq", {"quantization": "int8"}, "int8"),
        ("awq", {"dtype": "bfloat16"}, "bfloat16"),
        ("gptq, desc_act", {"dtype": "bfloat16"}, "bfloat16"),
        ("nf4", {"quantization": "int4"}, "int4"),
    ],
)
def test_who_names_a_dtype_or_a_quantization_gets_that(
    name: str, settings: dict[str, Any], format: str, checkpoint: Folders, tmp_path: Path
) -> None:
    published, _ = write(checkpoint("llama"), tmp_path, FORMATS[name])
    assert fused(SteppedEngine(published, **settings)).weights.down.formats == (format,)


def test_parts_of_a_weight_may_lie_in_several_files(checkpoint: Folders, tmp_path: Path) -> None:
    published, floats = write(checkpoint("llama"), tmp_path, FORMATS["awq"])
    split(published)
    engine = check_equal((published, floats), dtype="float32")
    assert len(engine.runner.loaded.checkpoint.weight_files) == 2
