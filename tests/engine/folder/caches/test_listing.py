"""The list of all caches at once: names, what each is, and what is not raised."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.errors import DownloadError
from engine.folder.caches import listing
from engine.folder.caches.listing import list_models
from engine.folder.caches.local_model import LocalModel
from engine.folder.caches.names import find_model
from tests.engine.helpers.gguf.cache_folders import add_to_hub, add_to_ollama, copied
from tests.helpers.root import ROOT


def listed() -> dict[str, LocalModel]:
    models, notes = list_models()
    assert notes == []
    return {model.name: model for model in models}


def test_an_empty_home_has_no_models(home: Path) -> None:
    assert listed() == {}
    assert list(home.iterdir()) == []  # nothing is made by looking


def test_each_cache_is_listed_by_names_with_what_a_model_is(
    home: Path, tiny: Path, tiny_gguf: Path, tiny_parts: list[Path]
) -> None:
    hub = home / ".cache" / "huggingface" / "hub"
    add_to_hub(hub, "org/tiny", *tiny.iterdir())
    add_to_hub(hub, "org/tiny-GGUF", tiny_gguf)
    add_to_hub(hub, "org/tiny-GGUF", *tiny_parts, under="F16")
    library = "registry.ollama.ai/library"
    add_to_ollama(home / ".ollama/models", f"{library}/tiny/1b", tiny_gguf, "license", "params")
    copied(home / ".cache/llama.cpp", tiny_gguf, *tiny_parts)
    copied(home / ".lmstudio/models/org/tiny", tiny_gguf)
    models = listed()
    assert list(models) == [
        "org/tiny",
        "org/tiny-GGUF:tiny-Q8_0",
        "org/tiny-GGUF:tiny-F16",
        "ollama:tiny:1b",
        "llama.cpp:tiny-F16",
        "llama.cpp:tiny-Q8_0",
        "lmstudio:org/tiny/tiny-Q8_0",
    ]
    for model in models.values():
        assert (model.architecture, model.context_length) == ("llama", 512)
        assert (model.runs, model.problem) == (True, None)
    formats = [model.format for model in models.values()]
    quantized, half = "GGUF Q8_0", "GGUF F16"
    whole = ["safetensors float32", quantized, half, quantized, half, quantized, quantized]
    assert formats == whole
    of_parts = sum(part.stat().st_size for part in tiny_parts)
    assert models["llama.cpp:tiny-F16"].size_bytes == of_parts
    assert models["ollama:tiny:1b"].size_bytes == tiny_gguf.stat().st_size
    weights = (tiny / "model.safetensors").stat().st_size
    assert models["org/tiny"].size_bytes == weights


def test_settings_of_the_programs_name_other_places(
    home: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_CACHE", "OLLAMA_MODELS", "LLAMA_CACHE"):
        monkeypatch.setenv(name, str(home / name))
    add_to_hub(home / "HF_HUB_CACHE", "org/tiny", tiny_gguf)
    add_to_ollama(home / "OLLAMA_MODELS", "hf.co/org/tiny/Q8_0", tiny_gguf)
    copied(home / "LLAMA_CACHE", tiny_gguf)
    assert list(listed()) == [
        "org/tiny:tiny-Q8_0",
        "ollama:hf.co/org/tiny:Q8_0",
        "llama.cpp:tiny-Q8_0",
    ]


@pytest.mark.parametrize(
    "content", [b"", b"GGUF", b"GGUF\3\0\0\0" + b"\xff" * 40, b"\0" * 100, b"{}"]
)
def test_a_damaged_file_is_listed_with_its_reason(home: Path, content: bytes) -> None:
    folder = copied(home / ".cache/llama.cpp")
    (folder / "bad.gguf").write_bytes(content)
    model = listed()["llama.cpp:bad"]
    assert model.runs is False
    assert model.problem
    assert str(home) not in model.problem
    assert "\n" not in model.problem


def test_a_file_that_goes_while_it_is_read_is_listed_with_its_reason(
    home: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deleted(file: Path) -> None:
        file.unlink()
        file.stat()

    copied(home / ".cache/llama.cpp", tiny_gguf)
    monkeypatch.setattr(listing, "describe_gguf", lambda found, _: deleted(found.path))
    assert listed()["llama.cpp:tiny-Q8_0"].problem == "cannot be read: No such file or directory"


def test_hostile_names_are_listed_as_such_and_served_by_none(home: Path, tiny_gguf: Path) -> None:
    folder = home / ".cache/llama.cpp"
    names = ["\x1b]0;owned\x07", "a\nb", "\u202eevil", os.fsdecode(b"\xff\xfe")]
    folder.mkdir(parents=True)
    for name in names:
        (folder / f"{name}.gguf").write_bytes(tiny_gguf.read_bytes())
    for name in ("..gguf", ".-00001-of-00002.gguf", "...gguf"):
        (folder / name).write_bytes(tiny_gguf.read_bytes())
    models = listed()
    assert set(models) == {f"llama.cpp:{name}" for name in names}
    for name, model in models.items():
        assert model.problem == "its name has characters that cannot be typed"
        with pytest.raises(DownloadError, match="cannot be typed"):
            find_model(name)


def test_fifty_models_take_far_less_than_a_second_each(home: Path, tiny_gguf: Path) -> None:
    folder = copied(home / ".cache/llama.cpp")
    for number in range(50):
        (folder / f"tiny-{number}.gguf").write_bytes(tiny_gguf.read_bytes())
    started = time.process_time()
    assert len(listed()) == 50
    assert time.process_time() - started < 10


def test_neither_torch_nor_transformers_nor_the_hub_is_imported(
    home: Path, tiny_gguf: Path
) -> None:
    copied(home / ".cache/llama.cpp", tiny_gguf)
    program = (
        "import sys\nfrom engine.folder.caches.listing import list_models\n"
        "assert list_models()[0][0].runs\n"
        "print(sorted({'torch', 'transformers', 'huggingface_hub', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
