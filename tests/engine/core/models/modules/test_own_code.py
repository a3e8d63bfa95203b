"""Folders that bring code: it is neither run nor imported, and mostly not needed."""

import json
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from engine.client.text.tokenizer import Tokenizer
from engine.config import EngineConfig
from engine.core.models.loader import LoadedModel, load_model
from engine.core.ops import library as ops
from engine.errors import UnsupportedModelError
from tests.engine.helpers import greedy_oracle
from tests.engine.helpers.family_models import build_family
from tests.engine.helpers.greedy_oracle import Reference, check_equals_transformers
from tests.engine.helpers.published.formats import FORMATS, write
from tests.helpers.tiny_model import build_tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

PLACES = (  # whatever a library may look for code in
    *("modeling_evil.py", "configuration_evil.py", "tokenization_evil.py", "processing_evil.py"),
    *("generate.py", "custom_generate/generate.py", "__init__.py", "evil/__init__.py"),
)
CLASSES = {
    "AutoConfig": "configuration_evil.Evil",
    "AutoModel": "modeling_evil.Evil",
    "AutoModelForCausalLM": "modeling_evil.Evil",
    "AutoModelForMultimodalLM": "modeling_evil.Evil",
    "AutoModelForImageTextToText": "modeling_evil.Evil",
    "AutoTokenizer": ["tokenization_evil.Evil", "tokenization_evil.Evil"],
    "AutoProcessor": "processing_evil.Evil",
    "AutoImageProcessor": "processing_evil.Evil",
    "AutoFeatureExtractor": "processing_evil.Evil",
}
CONFIGS = (
    *("config.json", "generation_config.json", "tokenizer_config.json", "processor_config.json"),
    *("preprocessor_config.json", "video_preprocessor_config.json"),
)


def plant(folder: Path, **fields: Any) -> Path:
    """Let every file name code; returns the file that it would write."""
    ran = folder.parent / "ran"
    code = f"import pathlib\npathlib.Path({str(ran)!r}).write_text(__name__)\nclass Evil: pass\n"
    for place in PLACES:
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).write_text(code)
    for name in CONFIGS:
        file = folder / name
        config = json.loads(file.read_text()) if file.exists() else {}
        if name == "config.json":
            config |= fields
            for part in config.values():
                if isinstance(part, dict) and "model_type" in part:
                    part["auto_map"] = CLASSES
        named = {"auto_map": CLASSES, "custom_generate": "generate", "trust_remote_code": True}
        if name != "config.json":
            named |= {"tokenizer_class": "Evil", "processor_class": "Evil"}
        file.write_text(json.dumps(config | named))
    return ran


def load(folder: Path, **settings: Any) -> LoadedModel:
    config = EngineConfig(model=str(folder), address="", served_model_name="", **settings)
    return load_model(config, ops.choose("auto"))


def check_nothing_ran(ran: Path) -> None:
    assert not ran.exists()
    assert not [name for name in sys.modules if name.endswith("_evil")]


def test_planted_code_would_leave_a_file(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    ran = plant(tmp_path / "model")
    runpy.run_path(str(tmp_path / "model" / PLACES[0]))
    assert ran.exists()


@pytest.mark.row("P21")
@pytest.mark.parametrize("family", ["llama", "phi3", "deepseek_v3"])
def test_a_known_type_is_transformers_own_and_no_code_of_its_folder_runs(
    family: str, tmp_path: Path
) -> None:
    clean = build_tiny_model(tmp_path / "clean", family, initializer_range=0.15)
    folder = Path(shutil.copytree(clean, tmp_path / "model"))
    ran = plant(folder)
    with patch.object(greedy_oracle, "Reference", lambda _: Reference(clean)):
        check_equals_transformers(folder, dtype="float32")
    assert Tokenizer(folder).encode("a")
    load(folder, load_format="dummy")
    check_nothing_ran(ran)


@pytest.mark.row("P21")
def test_a_half_whose_every_part_names_code_runs_none_of_it(tmp_path: Path) -> None:
    clean = build_family(tmp_path / "whole", "kimi_k25")
    folder, floats = write(clean, tmp_path, FORMATS["compressed, 4 bits"], None, "vision_tower")
    ran = plant(folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["model_type"] = "kimi_k2"  # as on the hub
    (folder / "config.json").write_text(json.dumps(config))
    with (
        patch.object(greedy_oracle, "Reference", lambda _: Reference(floats)),
        patch.object(greedy_oracle, "MAX_LOGIT_DIFFERENCE", 5e-5),
    ):
        check_equals_transformers(folder, dtype="float32")
    check_nothing_ran(ran)


@pytest.mark.row("P21")
@pytest.mark.parametrize(
    "fields", [{"model_type": "evil"}, {"model_type": ""}, {"model_type": ["llama"]}]
)
def test_a_type_that_only_its_own_code_knows_is_refused(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    folder = build_tiny_model(tmp_path / "model", "llama")
    ran = plant(folder, **fields)
    with pytest.raises(UnsupportedModelError) as error:
        load(folder)
    assert "\n" not in str(error.value)
    if isinstance(fields["model_type"], str):
        assert "needs code of its own (auto_map), which never runs" in str(error.value)
    check_nothing_ran(ran)


@pytest.mark.row("P21")
def test_a_known_type_that_generates_nothing_is_refused_without_its_code(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / "model", "llama")
    ran = plant(folder, model_type="vit")
    with pytest.raises(UnsupportedModelError, match="no causal language model for vit"):
        load(folder)
    check_nothing_ran(ran)


@pytest.mark.parametrize("value", [None, [], "code", 5, {"AutoConfig": None}])
def test_an_auto_map_of_another_form_is_refused_in_one_line(value: Any, tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / "model", "llama")
    config = json.loads((folder / "config.json").read_text()) | {"auto_map": value}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=r"config\.json: auto_map must be an object"):
        load(folder)
