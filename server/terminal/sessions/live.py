"""`parley sessions`: who is being answered, in the terminal, live, with stop and evict.

The list and the figures above it are asked for once a second, beside the keys: whatever is pressed
counts, each key once, also while the server does not answer. prompt_toolkit tells keys apart and
draws the screen.
"""

import asyncio
import io
import math
import time
from collections.abc import Callable
from typing import Any

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import (
    BufferControl,
    ConditionalContainer,
    FormattedTextControl,
    HSplit,
    Layout,
    Window,
)
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.output import Output
from prompt_toolkit.styles import Style
from rich.console import Console

from server.terminal.admin_client import AdminClient, AdminError
from server.terminal.drawing import leaves_when_told, terminal_output
from server.terminal.sessions.figures import BAD, FAINT, GOOD, Stats, figures_line, health_line
from server.terminal.sessions.finding import MAX_ROWS, Found, find_sessions
from server.terminal.sessions.table import session_table
from server.terminal.text import printable
from sessions.background import Background

REFRESH_SECONDS = 1.0
FOUND_SECONDS = 3.0  # what is looked for is asked for less often: titles have no index
READ_SECONDS = 4.0  # so long, too, may `q` take where a server hangs
STYLE = Style.from_dict({"good": "ansigreen", "bad": "ansired", "faint": "dim", "head": "bold"})
KEYS = "↑ ↓ choose   s stop   e evict   / find   a all or active   q leave"


def run_live(client: AdminClient, *, everything: bool, wanted: str = "") -> int:
    """Until `q` or Ctrl+C. Returns the exit code."""
    client.read_seconds = READ_SECONDS

    async def watch() -> int:
        screen = LiveSessions(client, create_input(), terminal_output(), everything=everything)
        screen.wanted = wanted
        return await screen.run()

    return asyncio.run(watch())


class LiveSessions:
    """The list that refreshes itself and obeys keys."""

    def __init__(
        self, client: AdminClient, keys: Input, output: Output, *, everything: bool
    ) -> None:
        self.wanted = ""
        self.chosen: str | None = None
        self._client, self._output = client, output
        self._everything = everything
        self._found = Found([], "asking the server …", is_known=False)
        self._found_at = -math.inf
        self._stats: Stats | None = None
        self._problem: str | None = None
        self._fetched_at = time.monotonic()
        self._note: tuple[str, str] = ("", "")
        self._prompt: str | None = None  # what is asked for in the field, if it is
        self._accept: Callable[[str], None] = lambda _: None
        self._field = Buffer(multiline=False, accept_handler=self._accepted)
        self._soon = asyncio.Event()  # the list is to be asked for at once
        self._background = Background(AdminError)
        self.app: Application[int] = Application(
            layout=self._layout(),
            key_bindings=self._bindings(),
            style=STYLE,
            full_screen=True,
            input=keys,
            output=output,
            refresh_interval=REFRESH_SECONDS,  # ages
        )
        self.app.ttimeoutlen = self.app.timeoutlen = 0.1  # Esc means Esc

    async def run(self) -> int:
        """Until somebody leaves. Returns the exit code."""

        def begin() -> None:
            self.app.create_background_task(self._refresh())

        try:
            with leaves_when_told(self.leave):
                return await self.app.run_async(pre_run=begin, handle_sigint=False)
        finally:
            await self._background.close()

    # ---- what is asked for -----------------------------------------------------------------------

    async def _refresh(self) -> None:
        while True:
            await self._fetch()
            self.app.invalidate()
            try:
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._soon.wait()
            except TimeoutError:
                pass
            self._soon.clear()

    async def _fetch(self) -> None:
        try:
            self._found, self._stats = await asyncio.gather(
                self._find(), asyncio.to_thread(self._client.get, "/stats")
            )
        except AdminError as error:
            self._problem, self._found_at = f"{error}; still trying", -math.inf
            return
        self._problem, self._fetched_at = None, time.monotonic()
        ids = self._ids
        if self.chosen not in ids:
            self.chosen = ids[0] if ids else None

    async def _find(self) -> Found:
        now = time.monotonic()
        if self.wanted and now - self._found_at < FOUND_SECONDS:
            return self._found
        self._found_at = now
        return await asyncio.to_thread(
            find_sessions, self._client, self.wanted, everything=self._everything
        )

    def _ask_anew(self) -> None:
        self._found_at = -math.inf
        self._soon.set()

    def _do(self, done: str, act: Callable[[], object]) -> None:
        """Have the server do something, and say what came of it."""

        async def do() -> None:
            try:
                await asyncio.to_thread(act)
                self._note = (GOOD, done)
            except AdminError as error:
                self._note = (BAD, printable(str(error)))
            self._ask_anew()
            self.app.invalidate()

        self._note = (FAINT, "…")
        self._background.spawn(do())

    # ---- what keys do ----------------------------------------------------------------------------

    @property
    def _ids(self) -> list[str]:
        return [row["id"] for row in self._found.rows]

    def _move(self, step: int) -> None:
        ids = self._ids
        if self.chosen in ids:
            place = ids.index(self.chosen) + step
            self.chosen = ids[max(0, min(len(ids) - 1, place))]

    def _stop(self) -> None:
        if (session_id := self.chosen) is not None:
            path = f"/sessions/{session_id}/stop"
            self._do(
                f"stopped {session_id}",
                lambda: self._client.post(path, reason="parley sessions"),
            )

    def _ask_reason(self) -> None:
        """The session that is chosen now, whatever the list does meanwhile."""
        if (session_id := self.chosen) is None:
            return
        path = f"/sessions/{session_id}/evict"

        def evict(reason: str) -> None:
            self._do(f"evicted {session_id}", lambda: self._client.post(path, reason=reason))

        self._ask(f"evict {session_id}: why?", evict)

    def _ask_wanted(self) -> None:
        def find(wanted: str) -> None:
            self.wanted, self._everything = wanted, bool(wanted)
            self._ask_anew()

        self._ask("find a name, an id or a title:", find)

    def _ask(self, prompt: str, accept: Callable[[str], None]) -> None:
        self._note = ("", "")
        self._prompt, self._accept = prompt, accept
        self._field.reset()
        self.app.layout.focus(self._field)

    def _accepted(self, field: Buffer) -> bool:
        text = printable(" ".join(field.text.split()))
        self._leave_field()
        self._accept(text)
        return False

    def _leave_field(self) -> None:
        self._prompt = None
        self.app.layout.focus(self._list)

    def _toggle(self) -> None:
        self._everything = not self._everything
        self._ask_anew()

    def _bindings(self) -> KeyBindings:
        keys = KeyBindings()
        typing = Condition(lambda: self._prompt is not None)

        def bind(act: Callable[[], object], *names: str) -> None:
            for name in names:
                keys.add(name, filter=~typing)(lambda event: act() and None)

        bind(lambda: self._move(-1), "up", "k")
        bind(lambda: self._move(1), "down", "j")
        bind(lambda: self._move(-10), "pageup")
        bind(lambda: self._move(10), "pagedown")
        bind(lambda: self._move(-MAX_ROWS), "home")
        bind(lambda: self._move(MAX_ROWS), "end")
        bind(self._stop, "s")
        bind(self._ask_reason, "e")
        bind(self._ask_wanted, "/")
        bind(self._toggle, "a")
        bind(self.leave, "q")

        @keys.add("escape", filter=typing)
        def _(event: KeyPressEvent) -> None:
            self._leave_field()

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _(event: KeyPressEvent) -> None:
            self.leave()

        return keys

    def leave(self, code: int = 0) -> None:
        if self.app.future is not None and not self.app.future.done():
            self.app.exit(result=code)

    # ---- what is drawn ---------------------------------------------------------------------------

    def _layout(self) -> Layout:
        def part(text: Callable[[], Any], **more: Any) -> Window:
            return Window(FormattedTextControl(text), dont_extend_height=True, **more)

        self._list = Window(FormattedTextControl(self._table, focusable=True, show_cursor=False))
        field = Window(
            BufferControl(self._field, [BeforeInput("› ")]),
            height=1,
        )
        asking = Condition(lambda: self._prompt is not None)
        rows = [
            part(self._health, wrap_lines=True),
            part(lambda: figures_line(self._stats, self._width), wrap_lines=True),
            part(self._head, height=2),
            self._list,
            ConditionalContainer(part(lambda: [self._note], wrap_lines=True), ~asking),
            ConditionalContainer(
                part(lambda: [(BAD, self._prompt or "")], wrap_lines=True), asking
            ),
            ConditionalContainer(field, asking),
            part(self._hints, wrap_lines=True),
        ]
        return Layout(HSplit(rows), focused_element=self._list)

    @property
    def _width(self) -> int:
        return self._output.get_size().columns - 1  # what stands in the last one is drawn apart

    def _health(self) -> StyleAndTextTuples:
        age = time.monotonic() - self._fetched_at
        return list(health_line(self._stats, self._problem, age, self._width))

    def _head(self) -> StyleAndTextTuples:
        is_bad = self._stats is not None and not self._found.is_known
        style = BAD if is_bad else "class:head"
        return [(style, f"\n{printable(self._found.title)}")]

    def _table(self) -> StyleAndTextTuples:
        if not self._found.rows:
            return [(FAINT, "nothing" if self._found.is_known else "")]
        console = Console(
            file=io.StringIO(),
            force_terminal=True,
            width=self._width,
            highlight=False,
            legacy_windows=False,
        )
        console.print(session_table(self._found.rows, self.chosen, self._width))
        assert isinstance(console.file, io.StringIO)
        return to_formatted_text(ANSI(console.file.getvalue()))

    def _hints(self) -> StyleAndTextTuples:
        text = "Enter does it   Esc does not" if self._prompt is not None else KEYS
        return [(FAINT, text)]
