"""Ollama's cache: manifests/HOST/NAMESPACE/NAME/TAG say which of blobs/ is the model.

A manifest is JSON from a registry: what it names is a digest or nothing, never a path.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.errors import UnsupportedModelError
from engine.folder.caches.confined import Cache
from engine.folder.caches.found import Found, reason
from engine.folder.model_files import exists, read_json

OLLAMA = "ollama:"
DEFAULT_TAG = "latest"
MAX_MANIFEST_BYTES = 1 << 20  # some hundred bytes for each layer, of which there are six
_HOST, _NAMESPACE = "registry.ollama.ai", "library"
_SERVICE = "/usr/share/ollama/.ollama/models"  # where Ollama keeps them as a service
_KIND = "application/vnd.ollama.image."
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


def ollama_models(notes: list[str]) -> Iterator[Found]:
    """`ollama:llama3.2:1b`; of others than Ollama's own `ollama:user/name:tag`."""
    named = os.environ.get("OLLAMA_MODELS", "")
    for place in (named or "~/.ollama/models", _SERVICE):
        if (cache := Cache.open(Path(place).expanduser(), notes)) is None:
            continue
        for host in cache.folders(cache.root / "manifests"):
            for namespace in cache.folders(host):
                for model in cache.folders(namespace):
                    for tag, manifest in cache.files(model).items():
                        name = _name(host.name, namespace.name, model.name, tag)
                        yield _read(cache, name, manifest)


def _name(host: str, namespace: str, model: str, tag: str) -> str:
    steps = [host, namespace, model]
    if host == _HOST:
        steps = [model] if namespace == _NAMESPACE else [namespace, model]
    return f"{OLLAMA}{'/'.join(steps)}:{tag}"


def _read(cache: Cache, name: str, manifest: Path) -> Found:
    try:
        exists(manifest, MAX_MANIFEST_BYTES)
        blob = _model_blob(cache, read_json(manifest) or {})
    except UnsupportedModelError as error:
        return Found(name, manifest, problem=f"its manifest {reason(error, manifest)}")
    except _NoModel as error:
        return Found(name, manifest, problem=str(error))
    return Found(name, blob, gguf=(blob,))


class _NoModel(Exception):
    """Why a manifest names no file that can be served."""


def _model_blob(cache: Cache, manifest: dict[str, Any]) -> Path:
    layers = manifest.get("layers")
    if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
        raise _NoModel("its manifest has no list of layers")
    kinds = [layer.get("mediaType") for layer in layers]
    if f"{_KIND}adapter" in kinds:
        raise _NoModel("has an adapter besides, without which it would be another model")
    models = [layer for layer in layers if layer.get("mediaType") == f"{_KIND}model"]
    if len(models) != 1:
        raise _NoModel(f"its manifest names {len(models)} GGUF files, not one")
    found = _DIGEST.fullmatch(str(models[0].get("digest")))
    if found is None:
        raise _NoModel("its manifest names no digest of its model")
    for sign in "-:":  # as it is now, and as older versions had it
        if (blob := cache.file(cache.root / "blobs" / f"sha256{sign}{found[1]}")) is not None:
            return blob
    raise _NoModel(f"its file is not in blobs: sha256-{found[1][:12]}…")
