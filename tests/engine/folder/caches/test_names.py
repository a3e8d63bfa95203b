"""A name of the list, up to the folder that is loaded: it is looked for, and never made a path."""

from pathlib import Path

import pytest

from engine.client.download import model_name, resolve_model
from engine.errors import DownloadError, UnsupportedModelError
from engine.folder.caches.names import all_models, find_model
from engine.folder.gguf.link import read_stamps
from tests.engine.helpers.gguf.cache_folders import add_to_ollama, copied
from tests.engine.helpers.gguf.gguf_files import write_gguf

TINY = "registry.ollama.ai/library/tiny"


def test_each_name_is_resolved_to_its_file(
    home: Path, tiny_gguf: Path, tiny_parts: list[Path]
) -> None:
    manifest = add_to_ollama(home / ".ollama/models", f"{TINY}/latest", tiny_gguf)
    in_llama_cpp = copied(home / ".cache/llama.cpp", *tiny_parts)
    in_lm_studio = copied(home / ".cache/lm-studio/models/org/tiny", tiny_gguf)
    (blob,) = (manifest.parents[4] / "blobs").iterdir()
    files = {
        "ollama:tiny:latest": [blob],
        "llama.cpp:tiny-F16": [in_llama_cpp / part.name for part in tiny_parts],
        "lmstudio:org/tiny/tiny-Q8_0": [in_lm_studio / tiny_gguf.name],
    }
    assert [found.name for found in all_models([])] == list(files)
    for name, own in files.items():
        assert list(read_stamps(resolve_model(name)).files) == own
        assert model_name(name) == name
    assert resolve_model("ollama:tiny") == resolve_model("ollama:tiny:latest")


def test_a_name_of_no_cache_is_none_of_ours() -> None:
    for name in ("org/tiny", "org/tiny:Q8_0", "./llama.cpp:x", "OLLAMA:x"):
        assert find_model(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "ollama:",
        "ollama:missing",
        "ollama:../../secret",
        "ollama:tiny:../../../secret",
        "llama.cpp:../secret",
        "llama.cpp:/etc/passwd",
        "llama.cpp:secret.gguf",
        "lmstudio:../x/secret",
        "lmstudio:",
    ],
)
def test_what_the_cache_does_not_have_is_one_line(home: Path, tiny_gguf: Path, name: str) -> None:
    for folder in (".ollama/models/manifests", ".cache/llama.cpp", ".lmstudio/models"):
        (home / folder).mkdir(parents=True)
    for folder in (".", ".cache", ".ollama", ".lmstudio/x"):
        (copied(home / folder, tiny_gguf) / tiny_gguf.name).rename(home / folder / "secret.gguf")
    with pytest.raises(DownloadError) as refused:
        resolve_model(name)
    assert str(refused.value) == f"there is no {name} here; `parley models` lists what there is"


def test_a_model_that_is_refused_is_called_by_its_name(home: Path, tiny: Path) -> None:
    file = write_gguf(tiny, home / "a.gguf", edit=lambda writer: writer.add_logit_scale(8))
    add_to_ollama(home / ".ollama/models", f"{TINY}/1b", file)
    with pytest.raises(UnsupportedModelError) as refused:
        resolve_model("ollama:tiny:1b")
    line = "ollama:tiny:1b: llama.logit_scale is set, which is not computed"
    assert str(refused.value) == line


def test_a_part_that_leads_out_of_the_cache_is_not_read(home: Path, tiny_parts: list[Path]) -> None:
    folder = copied(home / ".cache/llama.cpp", *tiny_parts[:-1])
    (folder / tiny_parts[-1].name).symlink_to(tiny_parts[-1])
    with pytest.raises(DownloadError, match="parts, which are not all here"):
        resolve_model("llama.cpp:tiny-F16")


def test_the_first_place_that_has_a_name_counts(home: Path, tiny_gguf: Path) -> None:
    first = copied(home / ".lmstudio/models/org/tiny", tiny_gguf)
    copied(home / ".cache/lm-studio/models/org/tiny", tiny_gguf)
    (found,) = all_models([])
    assert found.path == first / tiny_gguf.name
    same = find_model(found.name)
    assert same is not None
    assert same.path == found.path
