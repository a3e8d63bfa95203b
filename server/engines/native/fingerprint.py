"""A short name for what a model computes: an answer goes on under the same one alone.

Small files count whole; of weights, which may be gigabytes, their length and a piece at each end,
where safetensors and GGUF files have their header.
"""

import hashlib
from pathlib import Path

from engine.folder.gguf.link import LINK, read_link

WHOLE_BYTES = 32 * 1024 * 1024  # up to here a file counts whole: configurations, tokenizers
PIECE_BYTES = 64 * 1024
DIGITS = 16
IGNORED = {".md", ".gitattributes", ".lock", LINK}  # no effect on what is computed


def model_fingerprint(folder: Path) -> str:
    """The fingerprint of a checkpoint's folder, wherever it lies."""
    digest = hashlib.sha256()
    link = read_link(folder)
    weights = () if link is None else link.files  # which lie elsewhere, on each host
    for path in [*sorted(folder.iterdir(), key=lambda path: path.name), *weights]:
        if not path.is_file() or path.suffix in IGNORED or path.name in IGNORED:
            continue
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
