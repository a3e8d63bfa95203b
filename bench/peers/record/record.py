"""`Record`: the file of all measurements, with their conditions.

A whole comparison takes hours, so a run can continue a record of the same machine and sizes: its
rounds are appended.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from bench.peers.record.figures import Row


class Mismatch(Exception):
    """What was to be put together was measured under different conditions, or of other engines."""


@dataclass(slots=True)
class Record:
    """`conditions` are those that make figures comparable: machine, threads, sizes."""

    conditions: Mapping[str, Any]
    rows: list[Row] = field(default_factory=list)
    models: dict[str, Any] = field(default_factory=dict)  # what its rows' floors are computed from
    versions: dict[str, str] = field(default_factory=dict)  # of engines
    notes: dict[str, str] = field(default_factory=dict)  # what is particular to a peer
    left_out: list[str] = field(default_factory=list)  # and why
    is_quick: bool = False

    @classmethod
    def read(cls, path: Path) -> Self:
        """Of a file that `write` made. Raises OSError, ValueError, KeyError and TypeError."""
        kept = json.loads(path.read_text())
        return cls(
            kept["conditions"],
            [Row(**row) for row in kept["rows"]],
            kept["models"],
            kept["versions"],
            kept["notes"],
            kept["left_out"],
            kept["is_quick"],
        )

    def write(self, path: Path) -> None:
        kept = {"date": time.strftime("%Y-%m-%d"), **asdict(self)}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")

    @property
    def next_round(self) -> int:
        return 1 + max((row.round for row in self.rows), default=-1)

    def check_conditions(self, conditions: Mapping[str, Any]) -> None:
        """Raises `Mismatch` where a run under these could not go on with it."""
        for name, here in json.loads(json.dumps(conditions)).items():
            if (recorded := json.loads(json.dumps(self.conditions[name]))) != here:
                raise Mismatch(f"the recorded run had {name} {recorded}, not {here}")

    def add_version(self, engine: str, version: str) -> None:
        """Raises `Mismatch` where rows of another version are here."""
        if (recorded := self.versions.setdefault(engine, version)) != version:
            raise Mismatch(f"{engine} was {recorded} in the recorded run, and is {version}")

    def add_model(
        self,
        name: str,
        facts: dict[str, Any],
        weight_bytes: dict[str, float],
        value_bytes: dict[str, float],
    ) -> None:
        """Bytes of each engine's weights, and of its keys and values; those that are known stay."""
        known = self.models.get(name, {})
        self.models[name] = {
            **facts,
            "weight_bytes": known.get("weight_bytes", {}) | weight_bytes,
            "value_bytes": known.get("value_bytes", {}) | value_bytes,  # older records have none
        }
