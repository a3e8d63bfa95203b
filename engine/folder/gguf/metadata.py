"""`Metadata`: the values of a GGUF file by name, each with the type that it must have.

Every method raises `UnsupportedModelError`, naming file and key, for a value of another type.
"""

import math
import struct
from array import array
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NoReturn

from engine.errors import UnsupportedModelError, refuse
from engine.folder.gguf.head import Value
from engine.folder.model_files import wrong


class Metadata:
    """What is asked of it by a full key, or by one of the architecture, `{arch}.block_count`."""

    def __init__(self, file: Path, values: Mapping[str, Value]) -> None:
        self.file = file
        self._values = values
        self._asked: set[str] = set()
        self.architecture = self.text("general.architecture") or ""
        if not self.architecture:
            self.refuse("general.architecture is missing")

    def has(self, key: str) -> bool:
        return self._key(key) in self._values

    def is_list(self, key: str) -> bool:
        return isinstance(self._values.get(self._key(key)), list | array)

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number from 0; without a default it must be there."""
        key = self._key(key)
        value = self._values.get(key, default)
        if value is None:
            self.refuse(f"{key} is missing")
        if isinstance(value, list | array):
            self.refuse(f"{key} differs from layer to layer, which is not computed")
        if type(value) is not int or value < 0:
            raise wrong(self.file, key, value, "must be a whole number from 0")
        return value

    def token_id(self, name: str) -> int | None:
        """`tokenizer.ggml.{name}_token_id`; None if there is none, which some write as -1."""
        key = f"tokenizer.ggml.{name}_token_id"
        value = self._values.get(key)
        if value is None or value in (-1, 0xFFFFFFFF):
            return None
        return self.count(key)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number, as its writer meant it: not 9.999999974752427e-07, but 1e-06."""
        key = self._key(key)
        value = self._values.get(key, default)
        if value is None:
            self.refuse(f"{key} is missing")
        # `type(…) not in` leaves out bool, which is an int; mypy does not narrow by it.
        if type(value) not in (int, float) or not math.isfinite(float(value)):  # type: ignore[arg-type]
            raise wrong(self.file, key, value, "must be a number")
        return shortest(float(value))  # type: ignore[arg-type]

    def text(self, key: str) -> str | None:
        value = self._values.get(self._key(key))
        if value is not None and not isinstance(value, str):
            raise wrong(self.file, key, value, "must be text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(self._key(key), default)
        if not isinstance(value, bool):
            raise wrong(self.file, key, value, "must be true or false")
        return value

    def texts(self, key: str) -> list[str] | None:
        value = self._values.get(key)
        if value is not None and not isinstance(value, list):
            self.refuse(f"{key} must be a list of texts")
        return value

    def numbers(self, key: str) -> "array[float] | None":
        key = self._key(key)
        value = self._values.get(key)
        if value is not None and not isinstance(value, array):
            self.refuse(f"{key} must be a list of numbers")
        return value

    def changes(self, keys: tuple[str, ...]) -> str | None:
        """The first of these keys that is there and not nothing: 0, false or an empty text."""
        return next((key for key in map(self._key, keys) if self._values.get(key)), None)

    def unasked(self, harmless: Collection[str]) -> str | None:
        """The first key of the architecture that says something which nobody has asked for.

        `harmless` are those that need not be.
        """
        left = self._values.keys() - self._asked - {self._key(key) for key in harmless}
        own = (key for key in sorted(left) if key.startswith(f"{self.architecture}."))
        return next((key for key in own if self._values[key]), None)

    def refuse(self, problem: str) -> NoReturn:
        raise UnsupportedModelError(f"{self.file}: {problem}")

    def refuse_value(self, key: str, value: object, problem: str) -> NoReturn:
        raise UnsupportedModelError(f"{self.file}: {refuse(self._key(key), value, problem)}")

    def _key(self, key: str) -> str:
        key = key.replace("{arch}", self.architecture) if "{arch}" in key else key
        self._asked.add(key)
        return key


def shortest(value: float) -> float:
    """The shortest decimal that is the same number in 32 bits; others stay as they are."""
    try:
        single = struct.pack("<f", value)
    except OverflowError:
        return value
    if struct.unpack("<f", single)[0] != value:
        return value
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        if struct.pack("<f", short) == single:
            return short
    return value
