"""The caches that hold GGUF files under names of their own: llama.cpp's and LM Studio's.

llama.cpp keeps them beside each other; what newer versions download lies in Hugging Face's cache.
LM Studio keeps them as publisher/repository/file.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from engine.folder.caches.confined import Cache
from engine.folder.caches.found import Found, gguf_models

LLAMA_CPP, LM_STUDIO = "llama.cpp:", "lmstudio:"


def llama_cpp_models(notes: list[str]) -> Iterator[Found]:
    """`llama.cpp:file`."""
    named = os.environ.get("LLAMA_CACHE", "")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(named) if named else Path(base, "llama.cpp").expanduser()
    if (cache := Cache.open(folder, notes)) is not None:
        yield from gguf_models(cache.root, cache.files(cache.root), LLAMA_CPP)


def lm_studio_models(notes: list[str]) -> Iterator[Found]:
    """`lmstudio:publisher/repository/file`."""
    for place in ("~/.lmstudio/models", "~/.cache/lm-studio/models"):
        if (cache := Cache.open(Path(place).expanduser(), notes)) is None:
            continue
        for publisher in cache.folders(cache.root):
            for repository in cache.folders(publisher):
                prefix = f"{LM_STUDIO}{publisher.name}/{repository.name}/"
                yield from gguf_models(repository, cache.files(repository), prefix)
