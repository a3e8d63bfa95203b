"""A short name for what a model computes: an answer goes on under the same one alone.

Small files count whole; of weights, which may be gigabytes, their length and a piece at each end,
where safetensors and GGUF files have their header.
"""

import hashlib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path

from engine.errors import UnsupportedModelError
from engine.folder.gguf.link import LINK, read_link

WHOLE_BYTES = 32 * 1024 * 1024  # up to here a file counts whole: configurations, tokenizers
PIECE_BYTES = 64 * 1024
DIGITS = 16
WEIGHTS = {".safetensors", ".gguf"}
INDEX = ".index.json"  # in which file each tensor is
TEXTS = ("*.json", "tokenizer*", "*.jinja", "merges.txt", "vocab.txt")  # what workers read
IGNORED = {".md", ".gitattributes", ".lock", LINK}  # no effect on what is computed


def model_fingerprint(folder: Path) -> str:
    """The fingerprint of a checkpoint's folder, wherever it lies."""
    return _digest(_files(folder))


def texts_fingerprint(folder: Path) -> str:
    """Of what is read where the weights need not lie: configuration, tokenizer, template."""
    return _digest(path for path in _files(folder) if _is_text(path.name))


def has_weights(folder: Path) -> bool:
    return any(path.suffix in WEIGHTS for path in _files(folder))


def _is_text(name: str) -> bool:
    return not name.endswith(INDEX) and any(fnmatch(name, pattern) for pattern in TEXTS)


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            if size <= WHOLE_BYTES:
                digest.update(file.read())
            else:
                digest.update(file.read(PIECE_BYTES))
                file.seek(size - PIECE_BYTES)
                digest.update(file.read())
    return digest.hexdigest()[:DIGITS]


def file_stamps(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Size and time of the same files, which nobody reads for it; nothing of one that is gone."""
    try:
        found = [(path.name, path.stat()) for path in _files(folder)]
    except (OSError, UnsupportedModelError):
        return ()
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)


def _files(folder: Path) -> Iterator[Path]:
    link = read_link(folder)
    weights = () if link is None else link.files  # which lie elsewhere, on each host
    for path in [*sorted(folder.iterdir(), key=lambda path: path.name), *weights]:
        if path.is_file() and path.suffix not in IGNORED and path.name not in IGNORED:
            yield path
