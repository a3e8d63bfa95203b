"""What is foreseen of a model of the hub before its weights are downloaded."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engine.helpers.gguf.gguf_files import write_gguf
from tests.engine.helpers.hub.fake_hub import hub, in_fresh_process
from tests.helpers.tiny_model import build_tiny_model

GB = 10**9
HUGE_BYTES = 40 * GB  # in bfloat16


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def small(tiny: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in tiny.iterdir()}


@pytest.fixture(scope="module")
def huge(small: dict[str, bytes]) -> dict[str, bytes]:
    """Only the header of its weights is there: whoever asks for more gets a broken model."""
    size = int.from_bytes(small["model.safetensors"][:8], "little")
    header = json.loads(small["model.safetensors"][8 : 8 + size])
    end = max(it["data_offsets"][1] for name, it in header.items() if name != "__metadata__")
    name = "model.layers.1.mlp.another_proj.weight"
    offsets = [end, end + HUGE_BYTES]
    header[name] = {"dtype": "BF16", "shape": [2, HUGE_BYTES // 4], "data_offsets": offsets}
    text = json.dumps(header).encode()
    return small | {"model.safetensors": len(text).to_bytes(8, "little") + text}


SIZES = {"model.safetensors": HUGE_BYTES}


def prepare(
    model: str, endpoint: str, home: Path, *, memory: int, disk: int = 1000 * GB, **settings: Any
) -> str:
    """What the supervisor is told, with so much memory and disk."""
    program = (
        "import sys\n"
        "from server.config.engines import SOLE\n"
        "from server.config.settings import load_settings\n"
        "from server.engines.managed import EngineSetupError\n"
        "from server.engines.native import download_forecast, manage\n"
        f"download_forecast.free_disk = lambda folder: {disk}\n"
        f"settings = load_settings({settings | {'model': model}}, {{}})\n"
        f"most_free = lambda: {memory}\n"
        "try:\n"
        "    engine = manage(settings, settings.models[0], SOLE, lambda: None, None, most_free)\n"
        "    engine.stop()\n"
        "    print('ready')\n"
        "except EngineSetupError as error: print(f'error: {error}')"
    )
    return in_fresh_process(program, endpoint, home, model)


def downloaded(home: Path) -> list[str]:
    return sorted(file.name for file in (home / "hub").rglob("*") if file.suffix in WEIGHTS)


WEIGHTS = (".safetensors", ".gguf")


@pytest.mark.parametrize(
    ("memory", "hint"),
    [(25 * GB, ": try --quantize int8"), (15 * GB, ": try --quantize int4")],
)
def test_a_model_that_will_not_fit_into_memory_is_not_downloaded(
    huge: dict[str, bytes], tmp_path: Path, memory: int, hint: str
) -> None:
    with hub(SIZES, huge=huge) as endpoint:
        said = prepare("org/huge", endpoint, tmp_path, memory=memory)
    free = f"{memory // GB}.0 GB are free"
    assert said == f"error: org/huge needs 40.3 GB of memory, {free}{hint}"
    assert downloaded(tmp_path) == []


def test_what_is_asked_for_is_foreseen(huge: dict[str, bytes], tmp_path: Path) -> None:
    with hub(SIZES, huge=huge) as endpoint:
        said = prepare("org/huge", endpoint, tmp_path, memory=5 * GB, quantize="int8")
    assert said == "error: org/huge needs 20.7 GB of memory, 5.0 GB are free"


@pytest.mark.parametrize(
    ("disk", "hint"), [(20 * GB, ": try a GGUF repository of it, in 4 bits"), (10 * GB, "")]
)
def test_a_model_that_the_disk_has_no_room_for_is_not_downloaded(
    huge: dict[str, bytes], tmp_path: Path, disk: int, hint: str
) -> None:
    with hub(SIZES, huge=huge) as endpoint:
        said = prepare("org/huge", endpoint, tmp_path, memory=100 * GB, disk=disk)
    free = f"{disk // GB}.0 GB are free"
    assert said == f"error: org/huge needs 40.0 GB of disk, {free}{hint}"
    assert downloaded(tmp_path) == []


@pytest.mark.parametrize("name", ["tiny-real", "untold"])
def test_what_fits_is_downloaded_and_so_is_what_nobody_can_tell_of(
    small: dict[str, bytes], tmp_path: Path, name: str
) -> None:
    memory = GB if name == "tiny-real" else 0
    with hub(tiny_real=small, untold=small) as endpoint:
        said = prepare(f"org/{name}", endpoint, tmp_path, memory=memory)
    assert said == "ready"
    assert downloaded(tmp_path) == ["model.safetensors"]
    later = small | {"generation_config.json": b"{} "}  # the weights are those that are here
    with hub(None, 40 * "1", tiny_real=later, untold=later) as endpoint:
        assert prepare(f"org/{name}", endpoint, tmp_path, memory=0, disk=0) == "ready"


def test_a_model_whose_headers_say_nothing_is_downloaded(
    small: dict[str, bytes], tmp_path: Path
) -> None:
    with hub(headless=small | {"model.safetensors": b"no header"}) as endpoint:
        said = prepare("org/headless", endpoint, tmp_path, memory=0)
    assert "model.safetensors" in said and "memory" not in said


@pytest.mark.parametrize("what", ["memory", "disk"])
def test_of_gguf_files_a_smaller_one_is_named(tiny: Path, tmp_path: Path, what: str) -> None:
    files = {}
    for kind in ("F16", "Q4_0", "Q8_0"):
        write_gguf(tiny, file := tmp_path / f"tiny-{kind}.gguf", kind)
        files[file.name] = file.read_bytes()
    sizes = {"tiny-F16.gguf": 16 * GB, "tiny-Q8_0.gguf": 9 * GB, "tiny-Q4_0.gguf": 5 * GB}
    home, room = tmp_path / "home", {"memory": 10 * GB} | {what: 6 * GB}
    with hub(sizes, tiny_GGUF=files) as endpoint:
        said = prepare("org/tiny-GGUF:Q8_0", endpoint, home, **room)
    needs = "9.3" if what == "memory" else "9.0"
    hint = "try org/tiny-GGUF:tiny-Q4_0"
    assert said == f"error: org/tiny-GGUF needs {needs} GB of {what}, 6.0 GB are free: {hint}"
    assert downloaded(home) == []
