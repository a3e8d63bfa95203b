"""Caches of other programs, as these programs write them, with models that are given."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.engine.helpers.gguf.gguf_files import write_gguf
from tests.helpers.tiny_model import build_tiny_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SETTINGS = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "OLLAMA_MODELS", "LLAMA_CACHE")
KIND = "application/vnd.ollama.image."


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, in which no setting names another place."""
    home = tmp_path / "home"
    home.mkdir()
    for name in (*SETTINGS, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny")


@pytest.fixture(scope="module")
def tiny_gguf(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tiny, tmp_path_factory.mktemp("gguf") / "tiny-Q8_0.gguf", "Q8_0")


@pytest.fixture(scope="module")
def tiny_parts(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    first = write_gguf(tiny, tmp_path_factory.mktemp("parts") / "tiny-F16.gguf", "F16", split=20)
    return sorted(first.parent.iterdir())


def add_to_hub(hub: Path, name: str, *files: Path, under: str = "") -> Path:
    """The repository with these files: each a blob, and a link to it. Returns the snapshot."""
    repository = hub / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    (snapshot / under).mkdir(parents=True, exist_ok=True)
    for folder in ("blobs", "refs"):
        (repository / folder).mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text(COMMIT)
    for file in files:
        blob = repository / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copyfile(file, blob)
        link = snapshot / under / file.name
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


def add_to_ollama(models: Path, name: str, file: Path, *others: str) -> Path:
    """`name` is its path below manifests. Returns the manifest."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    (models / "blobs").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, models / "blobs" / f"sha256-{digest}")
    kinds = {"template": "sha256:" + "1" * 64, "model": f"sha256:{digest}"}
    kinds |= {other: "sha256:" + "2" * 64 for other in others}
    return write_manifest(models, name, list(kinds.items()))


def write_manifest(models: Path, name: str, layers: list[tuple[str, str]]) -> Path:
    manifest = models / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    listed = [{"mediaType": KIND + kind, "digest": digest, "size": 1} for kind, digest in layers]
    content = {"schemaVersion": 2, "config": {"digest": "sha256:" + "0" * 64}, "layers": listed}
    manifest.write_text(json.dumps(content))
    return manifest


def copied(to: Path, *files: Path) -> Path:
    to.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copyfile(file, to / file.name)
    return to
