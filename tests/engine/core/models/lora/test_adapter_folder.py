"""Which adapters are taken, and that each of the others is refused in one clear line."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.core.models.lora.adapter_folder import AdapterWeights, read_adapter
from engine.core.models.lora.peft_config import AdapterError
from tests.engine.helpers.lora.adapters import PREFIX, write_adapter

SHAPES = {"layers.0.q_proj": (6, 8), "layers.0.v_proj": (4, 8), "layers.1.q_proj": (6, 8)}
Q = f"{PREFIX}layers.0.q_proj"
MAX_RANK = 8


def config(**changes: Any) -> dict[str, Any]:
    wanted: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 4,
        "lora_alpha": 8,
        "bias": "none",
        "target_modules": ["q_proj"],
        "modules_to_save": None,
    }
    return wanted | changes


def tensors(rank: int = 4, *, suffix: str = "q_proj") -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Tensor] = {}
    for name, (num_outputs, num_inputs) in SHAPES.items():
        if name.endswith(suffix):
            down = torch.randn((rank, num_inputs), generator=generator)
            found[f"{PREFIX}{name}.lora_A.weight"] = down
            up = torch.randn((num_outputs, rank), generator=generator)
            found[f"{PREFIX}{name}.lora_B.weight"] = up
    return found


def read(folder: Path) -> AdapterWeights:
    return read_adapter(folder, SHAPES, MAX_RANK)


def product(weights: AdapterWeights, module: str) -> Tensor:
    low_rank = weights.modules[module]
    return low_rank.up @ low_rank.down


def raw_product(module: str) -> Tensor:
    stored = tensors()
    names = (f"{PREFIX}{module}.lora_{letter}.weight" for letter in "BA")
    up, down = (stored[name] for name in names)
    return up @ down


@pytest.mark.parametrize(
    ("changes", "scale"),
    [
        ({}, 2.0),
        ({"lora_alpha": 2.5}, 0.625),
        ({"use_rslora": True}, 4.0),
        ({"alpha_pattern": {"layers.0.q_proj": 16}}, 4.0),
        ({"rank_pattern": {"v_proj": 2}}, 2.0),
        ({"target_modules": "all-linear"}, 2.0),
        ({"task_type": None, "loftq_config": {}, "lora_dropout": 0.1}, 2.0),
        ({"init_lora_weights": "gaussian", "something_new": None}, 2.0),
    ],
    ids=str,
)
def test_products_are_scaled_as_the_config_says(
    changes: dict[str, Any], scale: float, tmp_path: Path
) -> None:
    write_adapter(tmp_path, config(**changes), tensors())
    found = read(tmp_path)
    assert found.modules.keys() == {"layers.0.q_proj", "layers.1.q_proj"}
    expected = scale * raw_product("layers.0.q_proj")
    assert torch.allclose(product(found, "layers.0.q_proj"), expected, atol=1e-5)


def test_modules_may_have_ranks_of_their_own(tmp_path: Path) -> None:
    stored = tensors() | tensors(2, suffix="v_proj")
    changes = {"target_modules": ["q_proj", "v_proj"], "rank_pattern": {"v_proj": 2}}
    write_adapter(tmp_path, config(**changes), stored)
    assert read(tmp_path).modules["layers.0.v_proj"].down.shape == (2, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_numbers_become_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    stored = {name: tensor.to(dtype) for name, tensor in tensors().items()}
    write_adapter(tmp_path, config(), stored)
    low_rank = read(tmp_path).modules["layers.0.q_proj"]
    assert low_rank.down.dtype == low_rank.up.dtype == torch.float32
    assert torch.equal(low_rank.down, stored[f"{Q}.lora_A.weight"].float())


def test_layers_that_were_not_trained_may_lack_weights(tmp_path: Path) -> None:
    stored = {name: tensor for name, tensor in tensors().items() if "layers.0" in name}
    write_adapter(tmp_path, config(layers_to_transform=[0]), stored)
    assert list(read(tmp_path).modules) == ["layers.0.q_proj"]


def test_the_hash_is_that_of_the_content(tmp_path: Path) -> None:
    hashes = []
    for name, changes, rank in (("a", {}, 4), ("b", {}, 4), ("c", {"lora_alpha": 9}, 4)):
        write_adapter(tmp_path / name, config(**changes), tensors(rank))
        hashes.append(read(tmp_path / name).content_hash)
    assert hashes[0] == hashes[1] != hashes[2] and len(hashes[0]) == 64


# ---- bad ones


def with_config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: write_adapter(folder, config(**changes), tensors())


def with_tensors(**changes: Tensor | None) -> Callable[[Path], None]:
    """Names without PREFIX, with `__` for dots; None takes a tensor away."""

    def write(folder: Path) -> None:
        stored: dict[str, Tensor | None] = {**tensors()}
        for name, tensor in changes.items():
            stored[PREFIX + name.replace("__", ".")] = tensor
        write_adapter(folder, config(), {k: v for k, v in stored.items() if v is not None})

    return write


def linked(name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        write_adapter(folder, config(), tensors())
        (folder / name).rename(folder / "elsewhere")
        (folder / name).symlink_to(folder / "elsewhere")

    return write


def replaced(name: str, content: bytes | None) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        write_adapter(folder, config(), tensors())
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)

    return write


def piped(folder: Path) -> None:
    replaced("adapter_model.safetensors", None)(folder)
    os.mkfifo(folder / "adapter_model.safetensors")


def cut(folder: Path) -> None:
    write_adapter(folder, config(), tensors())
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])


def huge(folder: Path) -> None:
    write_adapter(folder, config(), tensors())
    os.truncate(folder / "adapter_model.safetensors", 1 << 40)


def pickled(folder: Path) -> None:
    replaced("adapter_model.safetensors", None)(folder)
    torch.save(tensors(), folder / "adapter_model.bin")


def unprefixed(folder: Path) -> None:
    write_adapter(folder, config(), tensors())
    file = folder / "adapter_model.safetensors"
    save_file({k.removeprefix(PREFIX): v for k, v in load_file(file).items()}, file)


A, B = (torch.zeros(shape) for shape in ((4, 8), (6, 4)))
BAD = {
    "no config": (replaced("adapter_config.json", None), "cannot be read: No such file"),
    "no weights": (replaced("adapter_model.safetensors", None), "cannot be read: No such file"),
    "config is a link": (linked("adapter_config.json"), "adapter_config.json: is a link"),
    "weights are a link": (linked("adapter_model.safetensors"), "safetensors: is a link"),
    "weights are a pipe": (piped, "is no regular file"),
    "pickled weights": (pickled, "cannot be read: No such file"),
    "cut weights": (cut, "is no whole safetensors file"),
    "huge weights": (huge, "such a file has at most"),
    "no safetensors": (replaced("adapter_model.safetensors", b"hello"), "is no whole safetensors"),
    "no JSON": (replaced("adapter_config.json", b"{"), "is not valid JSON"),
    "JSON of another kind": (replaced("adapter_config.json", b"[]"), "must hold an object"),
    "deep JSON": (replaced("adapter_config.json", b'{"a":' * 100_000), "is nested too deep"),
    "another method": (with_config(peft_type="IA3"), "peft_type must be 'LORA', got 'IA3'"),
    "a classifier": (with_config(task_type="SEQ_CLS"), "task_type='SEQ_CLS' is not implemented"),
    "DoRA": (with_config(use_dora=True), "use_dora=True is not implemented"),
    "biases": (with_config(bias="all"), "bias='all' is not implemented"),
    "whole modules": (with_config(modules_to_save=["lm_head"]), r"modules_to_save=\['lm_head'\]"),
    "changed base": (with_config(init_lora_weights="pissa"), "init_lora_weights='pissa' is not"),
    "unknown setting": (with_config(of_next_year=[1]), r"of_next_year=\[1\] is not implemented"),
    "no rank": (with_config(r=0), "r must be a rank of at least 1, got 0"),
    "rank above the limit": (with_config(r=9), "r is 9, above max_lora_rank, 8"),
    "rank of a pattern": (with_config(rank_pattern={"q_proj": 99}), "rank_pattern is 99, above"),
    "real pattern": (with_config(alpha_pattern={"(a+)+": 1}), "with the pattern .* is not impl"),
    "infinite alpha": (with_config(lora_alpha=float("inf")), "lora_alpha must be a number"),
    "enormous alpha": (with_config(lora_alpha=10**400), "lora_alpha must be a number"),
    "no targets": (with_config(target_modules=[]), "target_modules must be names of modules"),
    "NaN": (with_tensors(layers__0__q_proj__lora_A__weight=A * torch.nan), "lora_A has a number"),
    "infinity": (with_tensors(layers__0__q_proj__lora_B__weight=B / 0), "lora_B has a number that"),
    "integers": (with_tensors(layers__0__q_proj__lora_A__weight=A.int()), "dtype torch.int32"),
    "other shape": (
        with_tensors(layers__0__q_proj__lora_A__weight=A[:, :7].contiguous()),
        r"lora_A has the shape \(4, 7\), not \(4, 8\)",
    ),
    "other rank": (
        with_tensors(
            layers__0__q_proj__lora_A__weight=A[:3].contiguous(),
            layers__0__q_proj__lora_B__weight=B[:, :3].contiguous(),
        ),
        r"lora_A has the shape \(3, 8\), not \(4, 8\)",
    ),
    "half a module": (with_tensors(layers__0__q_proj__lora_B__weight=None), "one matrix of two"),
    "a module lacks": (
        with_tensors(
            layers__1__q_proj__lora_A__weight=None, layers__1__q_proj__lora_B__weight=None
        ),
        "lacks layers.1.q_proj, which target_modules names",
    ),
    "unknown module": (
        with_tensors(layers__9__q_proj__lora_A__weight=A, layers__9__q_proj__lora_B__weight=B),
        "the model has no layer layers.9.q_proj that can be adapted",
    ),
    "module beside the targets": (
        with_tensors(
            layers__0__v_proj__lora_A__weight=A, layers__0__v_proj__lora_B__weight=torch.zeros(4, 4)
        ),
        "has layers.0.v_proj, which target_modules does not name",
    ),
    "embeddings": (
        with_tensors(embed_tokens__lora_embedding_A=A),
        "embed_tokens.lora_embedding_A is not implemented",
    ),
    "magnitudes": (
        with_tensors(layers__0__q_proj__lora_magnitude_vector=torch.ones(6)),
        "lora_magnitude_vector is not implemented",
    ),
    "other names": (unprefixed, "layers.0.q_proj.lora_A.weight does not begin with base_model"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_adapter_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    write, problem = BAD[name]
    write(tmp_path)
    with pytest.raises(AdapterError, match=problem) as caught:
        read(tmp_path)
    message = str(caught.value)
    assert message.startswith(str(tmp_path)) and message.isprintable() and len(message) <= 401


def test_what_overflows_with_its_scale_is_refused(tmp_path: Path) -> None:
    stored = tensors() | {f"{Q}.lora_B.weight": torch.full((6, 4), 1e38)}
    write_adapter(tmp_path, config(lora_alpha=1e6), stored)
    with pytest.raises(AdapterError, match="lora_B has a number that is NaN or infinite"):
        read(tmp_path)


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    """Only what the folder's author controls may not point elsewhere."""
    write_adapter(tmp_path / "adapter", config(), tensors())
    (tmp_path / "latest").symlink_to(tmp_path / "adapter")
    assert json.loads((tmp_path / "latest/adapter_config.json").read_text())["r"] == 4
    assert read(tmp_path / "latest").modules
