"""`Scripts`: the Lua scripts of `sessions/lua`, and their arguments, which callers give by name.

A script begins with `read_args({values}, {lists})`. The names are read here, too, so that the
script is the only place that lists them; `prelude.lua` says how they are sent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

Argument = str | bytes | int | float
Value = Argument | Sequence[Argument] | None  # what a script is given under one name

_ARGUMENTS: Final = (str, bytes, int, float)

FOLDER: Final = Path(__file__).resolve().parents[1] / "lua"

_COMMENT: Final = re.compile(r"--.*")
_FUNCTION: Final = re.compile(r"^local function (\w+)", re.M)
_NAME: Final = re.compile(r"'(\w+)'")
_READ_ARGS: Final = re.compile(r"^read_args\(\{([^}]*)\}(?:, \{([^}]*)\})?\)", re.M)


@dataclass(frozen=True, slots=True)
class Script:
    """One script: its source with the functions of the prelude that it calls, and its arguments."""

    name: str
    source: str
    digest: str
    values: tuple[str, ...]
    lists: tuple[str, ...]
    takes: frozenset[str]

    @classmethod
    def of(cls, name: str, prelude: str, text: str) -> Script:
        """Raises `ValueError` for a text without `read_args`."""
        declared = _READ_ARGS.search(_COMMENT.sub("", text))
        if declared is None:
            raise ValueError(f"{name}.lua does not call read_args")
        values, lists = (tuple(_NAME.findall(names or "")) for names in declared.groups())
        source = _with_prelude(prelude, text)
        digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        return cls(name, source, digest, values, lists, frozenset(values + lists))

    def pack(self, given: Mapping[str, Value]) -> list[Argument]:
        """The script's ARGV: None as an empty string, each list after its length.

        Raises `TypeError` unless exactly what the script takes is given.
        """
        if given.keys() != self.takes:
            missing, unknown = self.takes - given.keys(), given.keys() - self.takes
            raise TypeError(f"{self.name}.lua: missing {[*missing]}, unknown {[*unknown]}")
        packed: list[Argument] = []
        for name in self.values:
            value = given[name]
            if isinstance(value, _ARGUMENTS):
                packed.append(value)
            elif value is None:
                packed.append("")
            else:
                raise TypeError(f"{self.name}.lua takes one {name}, not a list")
        for name in self.lists:
            items = given[name]
            if items is None or isinstance(items, _ARGUMENTS):
                raise TypeError(f"{self.name}.lua takes a list of {name}")
            packed.append(len(items))
            packed += items
        return packed


class Scripts(dict[str, Script]):
    """Every script by the name of its file."""

    def __init__(self) -> None:
        prelude = (FOLDER / "prelude.lua").read_text()
        for path in sorted(FOLDER.glob("**/*.lua")):
            if path.stem != "prelude":
                self[path.stem] = Script.of(path.stem, prelude, path.read_text())


def _with_prelude(prelude: str, text: str) -> str:
    """The functions of the prelude that the text calls, then the text.

    All of them would cost each run a microsecond.
    """
    for block in reversed(prelude.split("\n\n")):
        function = _FUNCTION.search(block)
        if function is not None and f"{function[1]}(" in text:
            text = f"{block}\n\n{text}"
    return text
