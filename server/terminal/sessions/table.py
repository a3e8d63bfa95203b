"""The list of sessions as a table, and `parley sessions --once`, which prints it and ends."""

import json
import sys
from dataclasses import dataclass

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from server.terminal.admin_client import AdminClient, AdminError
from server.terminal.sessions.figures import duration
from server.terminal.sessions.finding import Row, find_sessions
from server.terminal.text import UNBOUNDED_WIDTH, printable

STATE_STYLES = {"in_progress": "green", "queued": "yellow", "stopping": "red"}


@dataclass(frozen=True, slots=True)
class Column:
    """One of the list; shown where the terminal has `least_width` columns."""

    heading: str
    least_width: int = 0
    justify: JustifyMethod = "left"
    ratio: int | None = None
    min_width: int | None = None
    max_width: int | None = None


COLUMNS = (
    Column("user", max_width=16),
    Column("title", 80, ratio=1, min_width=12),
    Column("worker", 144, max_width=24),
    Column("state", 58),
    Column("tokens", 86, "right"),
    Column("tokens/s", 109, "right"),
    Column("viewers", 118, "right"),
    Column("age", 99, "right"),
    Column("id", min_width=26),
)


def list_once(
    client: AdminClient, console: Console, *, everything: bool, as_json: bool, wanted: str = ""
) -> None:
    """The list as it is now. Raises `AdminError`, also where nobody is what is wanted."""
    found = find_sessions(client, wanted, everything=everything)
    if not found.is_known:
        raise AdminError(found.title, 404)
    if as_json:
        print(json.dumps(found.rows))
        return
    if wanted:
        print(printable(found.title), file=sys.stderr)
    console.print(session_table(found.rows, None, console.width))


def session_table(rows: list[Row], chosen: str | None, width: int) -> Table:
    """The list, with one session marked; a narrow terminal has its columns for what matters."""
    bounded = width < UNBOUNDED_WIDTH
    table = Table(box=None, header_style="dim", pad_edge=False, expand=bounded)
    table.add_column("", width=1)
    shown = [n for n, column in enumerate(COLUMNS) if column.least_width <= width]
    has_title = COLUMNS[1].least_width <= width  # without it, names get what is left
    for column in (COLUMNS[n] for n in shown):
        table.add_column(
            column.heading,
            no_wrap=True,
            justify=column.justify,
            ratio=column.ratio if has_title or column is not COLUMNS[0] else 1,
            min_width=column.min_width,
            max_width=column.max_width if bounded and has_title else None,
        )
    for row in rows:
        is_chosen = row["id"] == chosen
        cells = _cells(row)
        mark = Text("▸" if is_chosen else " ")
        table.add_row(mark, *(cells[n] for n in shown), style="bold" if is_chosen else "")
    return table


def _cells(row: Row) -> list[Text]:
    """One for each of `COLUMNS`."""
    run = row["response"] or {}
    rate = run.get("tokens_per_s")
    texts = [
        row["user"]["name"] or row["user"]["id"],
        row["title"] if row["title"] is not None else "(hidden)",
        run.get("replica", ""),
        row["state"] + (f" +{row['queued']}" if row["queued"] else ""),
        str(run.get("tokens", row["usage"]["output_tokens"])),
        "" if rate is None else f"{rate:.0f}",
        str(row["viewers"]),
        duration(run["age_ms"]) if run else "",
        row["id"],
    ]
    cells = [Text(printable(text)) for text in texts]
    cells[3].stylize(STATE_STYLES.get(row["state"], "dim"))
    return cells
