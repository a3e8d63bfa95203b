"""`Cache`: a folder in which another program keeps models, and what of it may be used.

Only regular files of our own user that lie in the folder: a link may lead from one place of it to
another, as Hugging Face's snapshots do, but not out of it. What is left out is noted in a line.
"""

import os
import stat
from collections.abc import Callable
from itertools import islice
from pathlib import Path

MAX_ENTRIES = 10_000  # of one folder


class Cache:
    """`root` is where it really lies; `notes` are lines for a person on what was left out."""

    def __init__(self, root: Path, notes: list[str]) -> None:
        self.root = root
        self._notes = notes

    @classmethod
    def open(cls, folder: Path, notes: list[str]) -> "Cache | None":
        """None if there is no such folder, or if it is not our own."""
        try:
            root = folder.resolve(strict=True)
            status = root.stat()
        except FileNotFoundError:
            return None
        except (OSError, RuntimeError) as error:  # RuntimeError: links that lead in a circle
            notes.append(f"{folder} cannot be read, and is left out: {_words(error)}")
            return None
        if not stat.S_ISDIR(status.st_mode):
            return None
        if status.st_uid != os.geteuid():
            notes.append(f"{folder} belongs to another user, and is left out")
            return None
        return cls(root, notes)

    def names(self, folder: Path) -> list[str]:
        """What is in a folder of this cache, by name; nothing if it is not to be used."""
        if self._resolve(folder, stat.S_ISDIR) is None:
            return []
        try:
            with os.scandir(folder) as entries:
                return sorted(entry.name for entry in islice(entries, MAX_ENTRIES))
        except OSError as error:
            self._leave_out(folder, f"cannot be read: {_words(error)}")
            return []

    def folders(self, folder: Path) -> list[Path]:
        """The folders in it."""
        return [path for name in self.names(folder) if os.path.isdir(path := folder / name)]

    def files(self, folder: Path) -> dict[str, Path]:
        """The files in it that may be used: by name, where each really lies."""
        found = {}
        for name in self.names(folder):
            path = folder / name
            if not os.path.isdir(path) and (real := self.file(path)) is not None:
                found[name] = real
        return found

    def file(self, path: Path) -> Path | None:
        """Where a file really lies; None if there is none, or none that may be used."""
        return self._resolve(path, stat.S_ISREG)

    def _resolve(self, path: Path, is_kind: Callable[[int], bool]) -> Path | None:
        try:
            real = path.resolve(strict=True)
            status = real.stat()
        except FileNotFoundError:
            if os.path.islink(path):
                self._leave_out(path, "leads to nothing")
            return None
        except (OSError, RuntimeError) as error:
            self._leave_out(path, f"cannot be read: {_words(error)}")
            return None
        if not real.is_relative_to(self.root):
            self._leave_out(path, "leads out of the cache")
        elif status.st_uid != os.geteuid():
            self._leave_out(path, "belongs to another user")
        elif not is_kind(status.st_mode):
            self._leave_out(path, "is not what belongs there")
        else:
            return real
        return None

    def _leave_out(self, path: Path, problem: str) -> None:
        self._notes.append(f"{path} is left out: it {problem}")


def _words(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
