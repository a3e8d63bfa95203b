"""`parley sessions`: who is being answered, in the terminal, live, with stop and evict.

Arrow keys choose a session, `s` stops it, `e` evicts its viewers after a reason, `a` shows idle
ones too, `q` leaves. Into a pipe, or with `--once`, it prints the list and ends.
"""

import contextlib
import json
import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, JustifyMethod
from rich.live import Live
from rich.table import Table
from rich.text import Text

from server.terminal.admin_client import AdminClient, AdminError
from server.terminal.text import UNBOUNDED_WIDTH, printable

REFRESH_SECONDS = 1.0
MAX_ROWS = 50
UP, DOWN = "\x1b[A", "\x1b[B"
STATE_STYLES = {"in_progress": "green", "queued": "yellow", "stopping": "red"}

Row = dict[str, Any]


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
    Column("title", ratio=1, min_width=12),
    Column("worker", 144, max_width=24),
    Column("state"),
    Column("tokens", 86, "right"),
    Column("tokens/s", 109, "right"),
    Column("viewers", 118, "right"),
    Column("age", 99, "right"),
    Column("id", min_width=26),
)


def list_once(client: AdminClient, console: Console, *, everything: bool, as_json: bool) -> None:
    """The list as it is now."""
    page = client.get("/sessions", limit=MAX_ROWS, active=not everything)
    if as_json:
        print(json.dumps(page["sessions"]))
    else:
        console.print(session_table(page["sessions"], None, console.width))


def session_table(rows: list[Row], chosen: str | None, width: int) -> Table:
    """The list, with one session marked; a narrow terminal has its columns for what matters."""
    bounded = width < UNBOUNDED_WIDTH
    table = Table(box=None, header_style="dim", pad_edge=False, expand=bounded)
    table.add_column("", width=1)
    shown = [n for n, column in enumerate(COLUMNS) if column.least_width <= width]
    for column in (COLUMNS[n] for n in shown):
        table.add_column(
            column.heading,
            no_wrap=True,
            justify=column.justify,
            ratio=column.ratio,
            min_width=column.min_width,
            max_width=column.max_width if bounded else None,
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


def duration(milliseconds: int) -> str:
    """A time span in at most two units."""
    seconds = milliseconds // 1000
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02} min"


class LiveSessions:
    """The list that refreshes itself and obeys keys."""

    def __init__(self, client: AdminClient, console: Console, *, everything: bool) -> None:
        self._client = client
        self._console = console
        self._everything = everything
        self._rows: list[Row] = []
        self._chosen: str | None = None
        self._note = Text("")

    def run(self) -> None:
        """Until `q` or Ctrl-C."""
        with contextlib.suppress(KeyboardInterrupt), _single_keys():
            with Live(console=self._console, screen=True, auto_refresh=False) as live:
                while True:
                    self._fetch()
                    live.update(self._view(), refresh=True)
                    key = _read_key(REFRESH_SECONDS)
                    if key == "q":
                        return
                    if key == "e" and self._chosen is not None:
                        self._evict(live)
                    elif key:
                        self._obey(key)

    def _fetch(self) -> None:
        try:
            page = self._client.get("/sessions", limit=MAX_ROWS, active=not self._everything)
        except AdminError as error:
            self._note = Text(str(error), "red")
            return
        self._rows = page["sessions"]
        ids = [row["id"] for row in self._rows]
        if self._chosen not in ids:
            self._chosen = ids[0] if ids else None

    def _view(self) -> Group:
        shown = "all sessions" if self._everything else "sessions that are being answered"
        head = Text.assemble((f"{len(self._rows)} ", "bold"), (shown, "bold"))
        keys = Text("↑ ↓ choose   s stop   e evict   a all or active   q leave", "dim")
        body: Text | Table = Text("nothing", "dim")
        if self._rows:
            body = session_table(self._rows, self._chosen, self._console.width)
        return Group(head, Text(""), body, Text(""), self._note, keys)

    def _obey(self, key: str) -> None:
        self._note = Text("")
        ids = [row["id"] for row in self._rows]
        if key == "a":
            self._everything = not self._everything
        elif key in (UP, DOWN, "k", "j") and self._chosen in ids:
            step = -1 if key in (UP, "k") else 1
            place = max(0, min(len(ids) - 1, ids.index(self._chosen) + step))
            self._chosen = ids[place]
        elif key == "s" and self._chosen is not None:
            self._act("stopped", f"/sessions/{self._chosen}/stop", reason="parley sessions")

    def _evict(self, live: Live) -> None:
        """Ask for a reason below the list, then evict."""
        assert self._chosen is not None
        reason = ""
        while True:
            prompt = Text.assemble((f"evict {self._chosen}: why? ", "yellow"), reason, "▏")
            self._note = Text.assemble(prompt, ("   Enter evicts, Esc does not", "dim"))
            live.update(self._view(), refresh=True)
            key = _read_key(REFRESH_SECONDS)
            if key == "\x1b":
                self._note = Text("")
                return
            if key in ("\r", "\n"):
                break
            reason = reason[:-1] if key == "\x7f" else reason + printable(key[:1] if key else "")
        self._act("evicted", f"/sessions/{self._chosen}/evict", reason=reason)

    def _act(self, done: str, path: str, **body: str) -> None:
        try:
            self._client.post(path, **body)
            self._note = Text(f"{done} {self._chosen}", "green")
        except AdminError as error:
            self._note = Text(str(error), "red")


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """Keys arrive one by one and are not echoed, for the time of a `with` block."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _read_key(seconds: float) -> str:
    """The next key, or an empty string when none came in time."""
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return ""
    return os.read(sys.stdin.fileno(), 8).decode(errors="ignore")
