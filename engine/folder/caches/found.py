"""`Found`: a model in a cache, before any of its weights is looked at."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.errors import one_line
from engine.folder.gguf.choice import models_among
from engine.folder.gguf.parts import SUFFIX, part_name

MAX_NAME = 500  # characters


@dataclass(frozen=True, slots=True)
class Found:
    """One model: its GGUF files, or the files of its folder."""

    name: str  # as `--model` takes it
    path: Path  # what is served under this name
    gguf: tuple[Path, ...] = ()  # the parts in their order, where each really lies
    folder: Mapping[str, Path] | None = None  # of a checkpoint: its files, where each really lies
    problem: str | None = None  # why it cannot be served, as far as its place says


def gguf_models(folder: Path, files: Mapping[str, Path], prefix: str) -> Iterator[Found]:
    """The models among the files of one folder; each is named by its file, without the ending."""
    for own, names in models_among(files).items():
        part = part_name(names[0])
        count, suffix = 1 if part is None else part[2], names[0][-len(SUFFIX) :]
        whole = [f"{own}-{each:05d}-of-{count:05d}{suffix}" for each in range(1, count + 1)]
        is_whole = list(names) == (whole if part else [f"{own}{suffix}"])
        problem = None if is_whole else f"it is in {count} parts, which are not all here"
        yield Found(
            f"{prefix}{own}",
            folder / names[0],
            gguf=tuple(files[name] for name in names),
            problem=problem,
        )


def name_problem(name: str) -> str | None:
    """Why a model cannot be named so: what a terminal would obey, nobody types."""
    if not name.isprintable() or len(name) > MAX_NAME or name != name.strip():
        return "its name has characters that cannot be typed"
    return None


def reason(error: Exception, *files: Path) -> str:
    """What an error says, without the file that it names first, which nobody knows by its path."""
    text = str(error)
    for file in files:
        text = text.removeprefix(one_line(f"{file}:")).strip()
    return text


def is_plain(name: str) -> bool:
    """Whether it is one step of a path: `llama3.2`, `Q4_K_M`, never `..`."""
    return re.fullmatch(r"\w[\w.+-]*", name) is not None
