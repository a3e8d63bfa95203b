"""A folder that is read without transformers is read as transformers reads it, and no other is."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from engine.core.models.checkpoint import check_folder
from engine.core.models.fused.plain_config import CLASSES, PlainConfig, read_plain_config
from engine.errors import UnsupportedModelError
from tests.engine.helpers.broken_folders import FINE, MORE, SEEN, BrokenFolder
from tests.helpers.tiny_model import build_tiny_model

FAMILIES = sorted(CLASSES)
ROPE = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}
LLAMA3 = ROPE | {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
OF_ALL: dict[str, dict[str, Any]] = {
    "as it is saved": {},
    "older names": {
        "rope_parameters": None,
        "rope_theta": 1_000_000,
        "rope_scaling": None,
        "dtype": None,
        "torch_dtype": "bfloat16",
    },
    "older names of a longer text": {
        "rope_parameters": None,
        "rope_theta": 5e5,
        "rope_scaling": {"type": "linear", "factor": 4.0},
    },
    "llama3": {"rope_parameters": LLAMA3},
    "several ends": {"eos_token_id": [1, 2], "pad_token_id": 383},
    "no end": {"eos_token_id": None},
}
OF_QWENS: dict[str, dict[str, Any]] = {
    "windows": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "unused windows": {"use_sliding_window": False, "sliding_window": 8},
    "named layers": {
        "use_sliding_window": True,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}
FOLDERS = {family: OF_ALL | (OF_QWENS if "qwen" in family else {}) for family in FAMILIES}
CASES = [(family, name) for family, cases in FOLDERS.items() for name in cases]
NOT_PLAIN: dict[str, dict[str, Any]] = {
    "an unknown field": {"residual_multiplier": 2.0},
    "another class": {"architectures": ["LlamaForSequenceClassification"]},
    "another activation": {"hidden_act": "gelu"},
    "biases": {"attention_bias": True},
    "another rope": {"rope_parameters": LLAMA3 | {"rope_type": "yarn"}},
    "a rope without all of its numbers": {"rope_parameters": ROPE},
    "half a rotation": {"partial_rotary_factor": 0.5},
    "a number as text": {"num_hidden_layers": "3"},
    "a flag for a number": {"hidden_size": True},
    "a flag as number": {"tie_word_embeddings": 0},
    "layers that are not stored": {"num_hidden_layers": 4},
    "fewer layers than are stored": {"num_hidden_layers": 2},
    "another width": {"intermediate_size": 128},
    "a window": {"sliding_window": 8},
    "another family": {"model_type": "smollm3"},
    "a pad beyond the vocabulary": {"pad_token_id": 384},
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    known: dict[str, Path] = {}

    def of(family: str) -> Path:
        if family not in known:
            known[family] = build_tiny_model(tmp_path_factory.mktemp(family), family)
        return known[family]

    return of


def copy(folder: Path, to: Path, **fields: Any) -> Path:
    """With other fields in config.json; None takes `rope_parameters` and `dtype` out."""
    shutil.copytree(folder, to)
    file = to / "config.json"
    config = json.loads(file.read_text()) | fields
    for name in ("rope_parameters", "dtype"):
        if config[name] is None:
            del config[name]
    file.write_text(json.dumps(config))
    return to


@pytest.mark.parametrize(("family", "case"), CASES)
def test_every_field_is_read_as_transformers_reads_it(
    family: str, case: str, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copy(saved(family), tmp_path / "model", **FOLDERS[family][case])
    plain = read_plain_config(check_folder(folder))
    assert plain is not None
    config = AutoConfig.from_pretrained(folder)
    for name in PlainConfig.__dataclass_fields__:
        if name == "generation_eos_token_id":
            expected = GenerationConfig.from_pretrained(folder).eos_token_id
        elif name == "layer_types" and "qwen" not in family:
            expected = None  # which nobody reads of these
        elif name == "rope_parameters":
            expected = {
                key: value for key, value in config.rope_parameters.items() if key != "type"
            }
        elif name == "head_dim":
            expected = getattr(config, name, None) or 16
        elif name == "sliding_window":
            expected = getattr(config, name, None)
        else:
            expected = getattr(config, name)
        value = getattr(plain, name)
        assert (str(expected).removeprefix("torch.") if name == "dtype" else expected) == value, (
            name
        )
    model = AutoModelForCausalLM.from_config(config)
    shapes = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    assert plain.weight_shapes() == shapes


@pytest.mark.parametrize("case", NOT_PLAIN)
def test_what_is_not_known_in_every_detail_is_left_to_transformers(
    case: str, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copy(saved("llama"), tmp_path / "model")
    assert read_plain_config(check_folder(folder)) is not None
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | NOT_PLAIN[case]))
    try:
        checkpoint = check_folder(folder)
    except UnsupportedModelError:
        return  # nor does transformers come to see it
    assert read_plain_config(checkpoint) is None


def test_an_unknown_field_of_the_generation_config_is_left_to_transformers(
    saved: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copy(saved("llama"), tmp_path / "model")
    (folder / "generation_config.json").write_text('{"eos_token_id": 2, "num_beams": 4}')
    assert read_plain_config(check_folder(folder)) is None


@pytest.mark.parametrize("broken", [*SEEN, *MORE], ids=lambda broken: broken.name)
def test_a_broken_folder_is_never_plain_unless_its_numbers_are_wrong(
    broken: BrokenFolder, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    """Wrong numbers are found when the model is tried, and faults of tokenizers by the worker."""
    folder = copy(saved("llama"), tmp_path / "model")
    broken.apply(folder)
    try:
        plain = read_plain_config(check_folder(folder))
    except UnsupportedModelError:
        return
    if plain is not None:
        AutoModelForCausalLM.from_pretrained(folder)  # takes it as well


@pytest.mark.parametrize("name", FINE)
def test_a_fine_folder_that_is_plain_has_the_fields_of_transformers(
    name: str, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copy(saved("llama"), tmp_path / "model")
    FINE[name](folder)
    plain = read_plain_config(check_folder(folder))
    if plain is not None:
        config = AutoConfig.from_pretrained(folder)
        assert plain.eos_token_id == config.eos_token_id
        assert plain.max_position_embeddings == config.max_position_embeddings
