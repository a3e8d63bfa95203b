"""`parley models`: what lies in the caches of this machine.

Names, and what files say of themselves, are words of strangers: none of them reaches a terminal as
it is.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from server.terminal.commands import AsJson, Result, print_result
from server.terminal.tables import Cell, Table
from server.terminal.text import printable

if TYPE_CHECKING:
    from server.engines.native.local_models import LocalModel  # with all that reads files

MAX_NOTES = 20
MAX_WORD = 60  # characters of what a file says that it is; its name is shown whole


def show_models(as_json: AsJson = False) -> None:
    """List the models on this machine, by names that `serve` takes."""
    from server.engines.native.local_models import list_models

    models, notes = list_models()
    for note in notes[:MAX_NOTES]:  # what was left out
        print(f"parley: {printable(note)}", file=sys.stderr)
    if len(notes) > MAX_NOTES:
        print(f"parley: {len(notes) - MAX_NOTES} others are left out", file=sys.stderr)
    none = "no models are here; `parley serve --model owner/name` downloads one"
    shown = _table(models) if models else none
    print_result(Result([_as_object(model) for model in models], shown), as_json)


def _as_object(model: "LocalModel") -> dict[str, object]:
    return {
        "name": model.name,
        "format": model.format,
        "architecture": model.architecture,
        "context_length": model.context_length,
        "size_bytes": model.size_bytes,
        "runs": model.runs,
        "problem": model.problem,
    }


def _table(models: "Sequence[LocalModel]") -> Table:
    """By cache and name."""
    table = Table(
        *("name", "format", "architecture", "context", "size", "runs"), numbers=("context", "size")
    )
    for model in models:
        kind, family = (_short(word or "") for word in (model.format, model.architecture))
        table.add(model.name, kind, family, model.context_length, _size(model), _verdict(model))
    return table


def _short(text: str) -> str:
    return text if len(text) <= MAX_WORD else f"{text[:MAX_WORD]}…"


def _size(model: "LocalModel") -> str:
    if model.size_bytes < 1e9:
        return f"{model.size_bytes / 1e6:.1f} MB"
    return f"{model.size_bytes / 1e9:.1f} GB"


def _verdict(model: "LocalModel") -> Cell:
    if model.problem is None:
        return Cell("yes", "green")
    return Cell(f"no: {model.problem}", "red")
