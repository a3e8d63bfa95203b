"""Which GGUF file of several is meant: in a folder, or in a repository of the hub.

Repositories hold one model in a dozen quantizations, each a file or a set of parts. Projectors for
pictures (`mmproj-…`) and importance matrices are no models.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from engine.folder.gguf.parts import SUFFIX, part_name

PREFERRED = ("Q4_K_M", "Q4_0", "Q8_0")  # where nobody says which: small, and close to the original
MAX_SHOWN = 20
_OTHER = re.compile(r"mmproj|imatrix", re.I)


class NotChosen(Exception):
    """None of the files is meant, or it is not clear which; the text says what there is."""


def models_among(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The models among file names: the name of each, without parts and ending, and its files."""
    models: dict[str, list[str]] = {}
    for name in sorted(names):
        path = PurePosixPath(name)
        if path.suffix.lower() != SUFFIX or path.is_absolute() or ".." in path.parts:
            continue
        if not _OTHER.search(path.name):
            part = part_name(path.name)
            own = path.stem if part is None else part[0]
            if own in (".", ".."):
                continue  # no name: `..gguf`
            models.setdefault(path.with_name(own).as_posix(), []).append(name)
    return {name: tuple(files) for name, files in models.items()}


def choose(
    names: Iterable[str], wanted: str | None = None, *, is_only: bool = False
) -> tuple[str, ...]:
    """The files of the model that is meant; `wanted` is a quantization, `Q4_K_M`, or a file's name.

    Without one it is the only model, or the first there is of `PREFERRED`, unless `is_only`.
    Raises `NotChosen`.
    """
    models = models_among(names)
    if not models:
        raise NotChosen("has no GGUF files of a model")
    if wanted is None and len(models) == 1:
        return next(iter(models.values()))
    if is_only:
        raise NotChosen(f"has several models: {_shown(models)}")
    for each in PREFERRED if wanted is None else (wanted,):
        found = _named(models, each)
        if len(found) == 1:
            return models[found[0]]
        if found:
            raise NotChosen(f"has {len(found)} models named {each}: {_shown(found)}")
    if wanted is None:
        raise NotChosen(f"has several models: {_shown(models)}")
    raise NotChosen(f"has no model named {wanted}; there are {_shown(models)}")


def _named(models: Mapping[str, tuple[str, ...]], wanted: str) -> list[str]:
    """Those whose names end in a quantization, or hold it between signs; or that are so named."""
    exact = [
        name for name, files in models.items() if wanted in (name, PurePosixPath(name).name, *files)
    ]
    if exact:
        return exact
    word = re.compile(rf"(^|[-._/]){re.escape(wanted)}([-./]|$)", re.I)
    return [name for name in models if word.search(PurePosixPath(name).name)]


def _shown(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - MAX_SHOWN} others" if len(names) > MAX_SHOWN else ""
    return ", ".join(names[:MAX_SHOWN]) + more
