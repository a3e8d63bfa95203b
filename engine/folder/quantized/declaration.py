"""`Declaration`: what config.json says of the quantization of the weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UnsupportedModelError
from engine.folder.model_files import wrong

MAX_GROUP = 1 << 20


@dataclass(frozen=True, slots=True)
class Declaration:
    """The object `quantization_config`, or the part `where` of it."""

    file: Path
    fields: Mapping[str, Any]
    where: str = "quantization_config"

    def get(self, *names: str) -> Any:
        """The first of these fields that is there and not null."""
        found = (self.fields.get(name) for name in names)
        return next((value for value in found if value is not None), None)

    def section(self, name: str) -> "Declaration | None":
        """A field that is an object; None if it is not there."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, "must be an object")
        return Declaration(self.file, value, f"{self.where}.{name}")

    def must_be(self, name: str, *values: Any) -> None:
        """Raise `UnsupportedModelError` if the field is there and none of these."""
        value = self.get(name)
        if not any(type(value) is type(each) and value == each for each in (None, *values)):
            choice = " or ".join(repr(each) for each in values) or "absent"
            raise self.wrong(name, f"must be {choice}: no other is read here")

    def count(self, name: str) -> int:
        """A whole number; `UnsupportedModelError` if it is none."""
        value = self.fields.get(name)
        if type(value) is not int or not 0 < value <= MAX_GROUP:
            raise self.wrong(name, f"must be a whole number from 1 to {MAX_GROUP}")
        return value

    def group_inputs(self) -> int | None:
        """`group_size`; None: all inputs are one group."""
        return None if self.get("group_size") in (None, -1) else self.count("group_size")

    def wrong(self, name: str, problem: str) -> UnsupportedModelError:
        return wrong(self.file, f"{self.where}.{name}", self.fields.get(name), problem)
