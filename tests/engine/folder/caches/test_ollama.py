"""Manifests: which blob they mean, and that they can mean nothing else."""

import json
from pathlib import Path

import pytest

from engine.folder.caches.found import Found
from engine.folder.caches.ollama import ollama_models
from tests.engine.helpers.gguf.cache_folders import KIND, add_to_ollama, write_manifest

TINY = "registry.ollama.ai/library/tiny/1b"


@pytest.fixture
def models(home: Path) -> Path:
    return home / ".ollama" / "models"


def only_one() -> Found:
    notes: list[str] = []
    (found,) = ollama_models(notes)
    assert notes == []
    return found


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (TINY, "ollama:tiny:1b"),
        ("registry.ollama.ai/ada/tiny/latest", "ollama:ada/tiny:latest"),
        ("hf.co/org/tiny-GGUF/Q8_0", "ollama:hf.co/org/tiny-GGUF:Q8_0"),
    ],
)
def test_a_model_is_named_as_in_ollama(
    models: Path, tiny_gguf: Path, place: str, name: str
) -> None:
    add_to_ollama(models, place, tiny_gguf, "projector")
    found = only_one()
    assert (found.name, found.problem) == (name, None)
    assert found.path.read_bytes() == tiny_gguf.read_bytes()
    assert found.gguf == (found.path,)


def test_blobs_of_older_versions_have_a_colon(models: Path, tiny_gguf: Path) -> None:
    add_to_ollama(models, TINY, tiny_gguf)
    (blob,) = (models / "blobs").iterdir()
    blob.rename(blob.with_name(blob.name.replace("-", ":")))
    assert only_one().problem is None


@pytest.mark.parametrize(
    "digest",
    [
        "sha256:../../../secret",
        "sha256-" + "a" * 64,
        "../../secret",
        "/etc/passwd",
        "sha256:" + "A" * 64,
        "sha256:" + "a" * 64 + "/../x",
        "sha256:" + "a" * 64 + "\n",
        "",
    ],
)
def test_a_manifest_names_a_digest_or_nothing(models: Path, tiny_gguf: Path, digest: str) -> None:
    (models.parent / "secret").parent.mkdir(parents=True, exist_ok=True)
    (models.parent / "secret").write_bytes(tiny_gguf.read_bytes())
    write_manifest(models, TINY, [("model", digest)])
    found = only_one()
    assert found.problem == "its manifest names no digest of its model"
    assert found.gguf == ()


def test_a_blob_that_leads_out_of_the_cache_is_not_served(models: Path, tiny_gguf: Path) -> None:
    add_to_ollama(models, TINY, tiny_gguf)
    (blob,) = (models / "blobs").iterdir()
    blob.unlink()
    blob.symlink_to(tiny_gguf)
    notes: list[str] = []
    (found,) = ollama_models(notes)
    assert found.gguf == ()
    assert str(found.problem).startswith("its file is not in blobs: sha256-")
    assert notes == [f"{blob} is left out: it leads out of the cache"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"{", "is not valid JSON"),
        (b"[]", "must hold an object"),
        (b"\xff", "is not UTF-8"),
        (b"[" * 100_000, "is nested too deep"),
        (b" " * (1 << 20) + b"{}", "has 1048578 bytes"),
        (b"{}", "has no list of layers"),
        (b'{"layers": 1}', "has no list of layers"),
        (b'{"layers": [1]}', "has no list of layers"),
        (b'{"layers": [{}]}', "names 0 GGUF files, not one"),
        (b'{"layers": [{"mediaType": [], "digest": {}}]}', "names 0 GGUF files"),
    ],
)
def test_a_damaged_manifest_is_listed_with_its_reason(
    models: Path, content: bytes, says: str
) -> None:
    manifest = write_manifest(models, TINY, [])
    manifest.write_bytes(content)
    found = only_one()
    assert found.name == "ollama:tiny:1b"
    assert f"its manifest {says}" in str(found.problem)
    assert str(models) not in str(found.problem)


def test_a_model_with_an_adapter_is_another_model(models: Path, tiny_gguf: Path) -> None:
    add_to_ollama(models, TINY, tiny_gguf, "adapter")
    assert "has an adapter" in str(only_one().problem)


def test_a_model_of_two_files_is_none(models: Path, tiny_gguf: Path) -> None:
    manifest = add_to_ollama(models, TINY, tiny_gguf)
    content = json.loads(manifest.read_text())
    content["layers"].append({"mediaType": f"{KIND}model", "digest": "sha256:" + "3" * 64})
    manifest.write_text(json.dumps(content))
    assert only_one().problem == "its manifest names 2 GGUF files, not one"
