"""`read_link`: which GGUF files a derived folder stands for.

`derived.py` makes the folders; here is what the core and the workers ask of one.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.errors import UnsupportedModelError
from engine.folder.model_files import exists, read_json

LINK = "gguf.files"

Stamp = tuple[int, int]  # size, and time of the last change in ns


@dataclass(frozen=True, slots=True)
class GgufLink:
    """What a derived folder says of the files that it was made of."""

    stamps: Mapping[Path, Stamp]  # in the order of the parts

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(self.stamps)


def cache_folder() -> Path:
    """Where the derived folders are: `$XDG_CACHE_HOME/parley/gguf`, else in ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "parley" / "gguf"


def read_link(folder: Path) -> GgufLink | None:
    """Of which files a folder was made; None for one that was not made here.

    Raises `UnsupportedModelError` if a file is not the one any more. A folder that lies elsewhere
    is somebody's checkpoint, which names no files of this machine.
    """
    if folder.parent != cache_folder() or not exists(folder / LINK):
        return None
    link = read_stamps(folder)
    for file, stamp in link.stamps.items():
        if stamp_of(file) != stamp:
            raise UnsupportedModelError(f"{file}: has changed since it was first read")
    return link


def read_stamps(folder: Path) -> GgufLink:
    """The same without a look at the files."""
    file = folder / LINK
    entries = (read_json(file) or {}).get("files")
    try:
        stamps = {Path(name): (int(size), int(time)) for name, size, time in entries or ()}
    except (TypeError, ValueError):
        stamps = {}
    if not stamps:
        raise UnsupportedModelError(f"{file}: is damaged; delete its folder")
    return GgufLink(stamps)


def stamp_of(file: Path) -> Stamp:
    """Raises `UnsupportedModelError` if there is no such file."""
    if not exists(file):
        raise UnsupportedModelError(f"{file}: is missing")
    status = file.stat()
    return status.st_size, status.st_mtime_ns
