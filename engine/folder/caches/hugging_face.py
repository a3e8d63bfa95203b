"""Hugging Face's cache: models--OWNER--NAME/snapshots/COMMIT, whose files are links to blobs/.

The commit is the one that refs/main names, as when the hub cannot be reached.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from engine.folder.caches.confined import Cache
from engine.folder.caches.found import Found, gguf_models, is_plain

MAX_REF_BYTES = 1000
_ID = re.compile(r"models--(?P<id>\w[\w.-]*)")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")


def cache_folder() -> Path:
    """Where huggingface_hub keeps what it downloads, by the same settings."""
    home = os.environ.get("HF_HOME") or str(
        Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    )
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expandvars(named or os.path.join(home, "hub"))).expanduser()


def hugging_face_models(notes: list[str]) -> Iterator[Found]:
    """`owner/name`, and of GGUF repositories `owner/name:file`."""
    if (cache := Cache.open(cache_folder(), notes)) is None:
        return
    for repository in cache.folders(cache.root):
        if (found := _ID.fullmatch(repository.name)) is not None:
            yield from _models(cache, found["id"].replace("--", "/", 1), repository)


def _models(cache: Cache, name: str, repository: Path) -> Iterator[Found]:
    commit = _main_commit(cache, repository)
    if commit is None:
        yield Found(name, repository, problem="its branch main is not here, only parts or others")
        return
    snapshot = repository / "snapshots" / commit
    files = cache.files(snapshot)
    is_checkpoint = any(file.endswith(".safetensors") for file in files)
    models = list(_gguf_models(cache, name, snapshot, files))
    if is_checkpoint or not models:
        yield Found(name, snapshot, folder=files, problem=_missing(files, is_checkpoint))
    yield from models


def _main_commit(cache: Cache, repository: Path) -> str | None:
    ref = cache.file(repository / "refs" / "main")
    if ref is None:
        return None
    try:
        with ref.open("rb") as stream:
            text = stream.read(MAX_REF_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return None
    is_here = _COMMIT.fullmatch(text) and (repository / "snapshots" / text).is_dir()
    return text if is_here else None


def _missing(files: dict[str, Path], is_checkpoint: bool) -> str | None:
    if is_checkpoint:
        return None
    if any(file.endswith(_PICKLED) for file in files):
        return "has only pickled weights; safetensors are needed"
    return "its weights are not here"


def _gguf_models(
    cache: Cache, name: str, snapshot: Path, files: dict[str, Path]
) -> Iterator[Found]:
    """Also those in the folders of a repository, where large models in parts are."""
    found = list(gguf_models(snapshot, files, ""))
    for folder in cache.folders(snapshot):
        found += gguf_models(folder, cache.files(folder), "")
    names = [model.name for model in found]
    for model in found:
        problem = model.problem
        if not is_plain(model.name) or names.count(model.name) > 1:
            problem = "its file has a name that --model does not take"
        yield replace(model, name=f"{name}:{model.name}", problem=problem)
