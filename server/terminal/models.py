"""`parley models`: what lies in the caches of this machine, in the terminal.

Names, and what files say of themselves, are words of strangers: none of them reaches a terminal as
it is.
"""

import json
import sys
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from server.engines.native.local_models import LocalModel, list_models
from server.terminal.text import output_console, printable

MAX_NOTES = 20
MAX_WORD = 60  # characters of what a file says that it is; its name is shown whole


def show_models(as_json: bool) -> None:
    """By cache and name; what was left out goes to standard error."""
    models, notes = list_models()
    for note in notes[:MAX_NOTES]:
        print(f"parley: {printable(note)}", file=sys.stderr)
    if len(notes) > MAX_NOTES:
        print(f"parley: {len(notes) - MAX_NOTES} others are left out", file=sys.stderr)
    if as_json:
        print(json.dumps([_as_object(model) for model in models]))
    elif models:
        output_console().print(_table(models))
    else:
        print("no models are here; `parley serve --model owner/name` downloads one")


def _as_object(model: LocalModel) -> dict[str, object]:
    return {
        "name": model.name,
        "format": model.format,
        "architecture": model.architecture,
        "context_length": model.context_length,
        "size_bytes": model.size_bytes,
        "runs": model.runs,
        "problem": model.problem,
    }


def _table(models: Sequence[LocalModel]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for heading in ("name", "format", "architecture"):
        table.add_column(heading, overflow="fold")
    for heading in ("context", "size"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("runs", overflow="fold")
    for model in models:
        context = "" if model.context_length is None else str(model.context_length)
        kind, family = (_short(word or "") for word in (model.format, model.architecture))
        words = (printable(model.name), kind, family, context, _size(model))
        table.add_row(*map(Text, words), _verdict(model))
    return table


def _short(text: str) -> str:
    return printable(text if len(text) <= MAX_WORD else f"{text[:MAX_WORD]}…")


def _size(model: LocalModel) -> str:
    if model.size_bytes < 1e9:
        return f"{model.size_bytes / 1e6:.1f} MB"
    return f"{model.size_bytes / 1e9:.1f} GB"


def _verdict(model: LocalModel) -> Text:
    if model.problem is None:
        return Text("yes", "green")
    return Text(f"no: {printable(model.problem)}", "red")
