"""`parley chat` in a terminal: the session above, a line to type in below, both alive at once.

What is whole is printed and scrolls away (`Transcript`); below it prompt_toolkit draws the line
that grows, what waits, how things are, and the field. Nothing but this module and the live list of
`parley sessions` imports prompt_toolkit.
"""

import asyncio
import signal
import time
from collections.abc import Callable

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import (
    BufferControl,
    ConditionalContainer,
    Dimension,
    FormattedTextControl,
    HSplit,
    Layout,
    Window,
)
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.output import Output
from prompt_toolkit.renderer import print_formatted_text
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import get_cwidth

from server.terminal.chat.chat import Chat
from server.terminal.chat.commands import Commands
from server.terminal.chat.link import Address
from server.terminal.chat.state.client import Ask
from server.terminal.chat.state.run import Message
from server.terminal.chat.state.words import close_text, trouble_text
from server.terminal.chat.transcript import (
    NOTE,
    QUESTION,
    TROUBLE,
    Piece,
    Transcript,
    quoted,
    status_texts,
    unsent_text,
)
from server.terminal.drawing import leaves_when_told, terminal_output
from server.terminal.text import harmless

TextOf = Callable[[], StyleAndTextTuples]

STYLE = Style.from_dict({"question": "bold", "note": "dim", "trouble": "ansired"})
AWAY_SECONDS = 1.0  # shorter troubles are nobody's business
TWICE_SECONDS = 3.0  # between two Ctrl+C that leave
PASTE_SECONDS = 0.05  # between two parts of it, where a terminal does not mark what is pasted
REDRAW_SECONDS = 0.04  # at most so often, however fast an answer comes
MAX_FIELD_LINES = 10
MAX_WAITING = 3  # of the queue, that are shown
REST_LINES = 8  # of the terminal, that are not for the line that grows


def run_interactive(address: Address, session_id: str | None, question: str | None) -> int:
    """Talk until the user leaves. Returns the exit code."""

    async def talk() -> int:
        screen = Interactive(address, session_id, create_input(), terminal_output())
        return await screen.run(question)

    # Ctrl+C is a key here. Pressed once more than needed, it comes when the terminal is as before.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return asyncio.run(talk())


class Interactive:
    """The screen: a `Screen` for commands, and all that keys do."""

    def __init__(
        self, address: Address, session_id: str | None, keys: Input, output: Output
    ) -> None:
        self.chat = Chat(
            address,
            session_id,
            on_change=self._changed,
            on_note=self.trouble,
            on_refused=self._refused,
        )
        self._commands = Commands(self.chat, self)
        self._transcript = Transcript()
        self._notes: list[Piece] = []
        self._wake = asyncio.Event()
        self._editing: Message | None = None
        self._told_problem: str | None = None
        self._interrupted_at = self._pasted_at = 0.0
        self._buffer = Buffer(
            history=InMemoryHistory(), multiline=True, accept_handler=self._accepted
        )
        self._buffer.on_text_changed += self._typed
        self._output = output
        self.app: Application[int] = Application(
            layout=self._layout(),
            key_bindings=self._bindings(),
            style=STYLE,
            erase_when_done=True,
            input=keys,
            output=output,
            min_redraw_interval=REDRAW_SECONDS,
            refresh_interval=AWAY_SECONDS,  # what depends on time
        )

    async def run(self, question: str | None) -> int:
        """Until the user leaves, or the server closes for good."""
        self.note("/help lists what there is, Ctrl+D leaves")

        def begin() -> None:
            self.app.create_background_task(self._print_forever())
            self.app.create_background_task(self._connect())
            if question:
                self._say(question)

        with leaves_when_told(self.leave):
            code = await self.app.run_async(pre_run=begin, handle_sigint=False)
        self._print(self._take())
        self._say_goodbye()
        return code

    # ---- for commands ----------------------------------------------------------------------------

    def note(self, text: str) -> None:
        self._show(NOTE, text)

    def trouble(self, text: str) -> None:
        self._show(TROUBLE, text)

    def put(self, text: str) -> None:
        """Into the field, unless something is typed there."""

        def fill() -> None:
            if not self._buffer.text:
                self._buffer.document = Document(text)
                self.app.invalidate()

        asyncio.get_running_loop().call_soon(fill)  # the field is emptied when a key is done

    def edit(self, message: Message) -> None:
        self._editing = message
        self.put(message.text)

    def show_history(self) -> None:
        self._notes += self._transcript.history(self.chat.client)
        self._changed()

    def begin_anew(self) -> None:
        self._say_goodbye_to_session()
        self.chat.begin_anew()
        self._transcript, self._editing, self._told_problem = Transcript(), None, None

    def leave(self, code: int = 0) -> None:
        if not self.app.future or not self.app.future.done():
            self.app.exit(result=code)

    # ---- what is typed ---------------------------------------------------------------------------

    def _accepted(self, buffer: Buffer) -> bool:
        """Enter. Returns whether the text stays in the field."""
        text = buffer.text
        self._interrupted_at = 0.0
        if text.startswith("/") and not text.startswith("//"):
            return not self._commands.run(text)
        if text.strip():
            self._say(text.removeprefix("/") if text.startswith("//") else text)
        return False

    def _pasted(self, text: str) -> None:
        """The last Enter was that of a paste, unless what was read then was a part of it."""
        if self._buffer.text == text:
            self._buffer.document = Document(text.removesuffix("\n"))
            self._buffer.validate_and_handle()

    def _typed(self, _: Buffer) -> None:
        self._interrupted_at = 0.0  # whoever types does not leave

    def _say(self, text: str) -> None:
        client = self.chat.client
        if client.problem is not None:
            if not client.is_evicted:
                self.trouble(f"{client.problem} /new begins another chat.")
                self.put(text)
                return
            self._told_problem = None
            client.reopen()
        editing, self._editing = self._editing, None
        if editing is not None:
            client.ask(text, parent_id=editing.parent_id, on_busy="cancel")
        elif client.is_busy:
            client.enqueue(text)
        else:
            client.ask(text)

    def _steer(self) -> None:
        if text := self._buffer.text.strip():
            self._buffer.append_to_history()
            self._buffer.reset()
            self._commands.steer(text)

    def _interrupt(self) -> None:
        """Ctrl+C: stop what is written, else drop what is typed; twice leaves."""
        now = time.monotonic()
        if now - self._interrupted_at < TWICE_SECONDS:
            self.leave()
            return
        if self.chat.client.is_busy:
            self.chat.client.stop()
            self._interrupted_at = now
        elif self._buffer.text or self._editing is not None:
            self._editing = None
            self._buffer.reset()
        else:
            self._interrupted_at = now
            self.note("Ctrl+C again leaves, and so does Ctrl+D.")

    def _bindings(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            # Where a terminal does not mark what is pasted, more of it is here already.
            following = (key.data for key in event.key_processor.input_queue)
            more = next((data for data in following if data != "\r"), "")  # behind empty lines
            if len(more) == 1 and (more.isprintable() or more == "\t"):
                event.current_buffer.insert_text("\n")
                self._pasted_at = time.monotonic()
            elif time.monotonic() - self._pasted_at < PASTE_SECONDS:
                event.current_buffer.insert_text("\n")
                text = event.current_buffer.text
                asyncio.get_running_loop().call_later(PASTE_SECONDS, self._pasted, text)
            else:
                event.current_buffer.validate_and_handle()

        @keys.add("escape", "enter")
        @keys.add("c-j")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        keys.add("c-s")(lambda event: self._steer())
        keys.add("c-c")(lambda event: self._interrupt())
        keys.add("<sigint>")(lambda event: self._interrupt())
        nothing_typed = Condition(lambda: not self._buffer.text)
        keys.add("c-d", filter=nothing_typed)(lambda event: self.leave())
        return keys

    # ---- what happens ----------------------------------------------------------------------------

    async def _connect(self) -> None:
        code = await self.chat.run()
        self.trouble(close_text(code))
        self.leave(1)

    def _changed(self) -> None:
        problem = self.chat.client.problem
        if problem is not None and problem != self._told_problem:
            self._told_problem = problem
            more = "Asking again opens it." if self.chat.client.is_evicted else ""
            self._notes.append((TROUBLE, f"{harmless(problem)} {more}\n"))
        self._wake.set()
        self.app.invalidate()

    def _refused(self, ask: Ask, reason: str) -> None:
        self.trouble(reason)
        if ask.text:
            self.put(ask.text)

    def _show(self, style: str, text: str) -> None:
        self._notes.append((style, f"{harmless(text)}\n"))
        self._wake.set()

    # ---- what is printed for good ----------------------------------------------------------------

    async def _print_forever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if pieces := self._take():
                self._print_above(pieces)

    def _print_above(self, pieces: list[Piece]) -> None:
        """Print in the place of what is drawn, and have that drawn below.

        The terminal stays as it is: `run_in_terminal` lets it obey keys for that time, and what is
        pressed then would be lost, or end us.
        """
        self.app.renderer.erase()
        self._print(pieces)
        self.app.renderer.reset()
        self.app.invalidate()

    def _take(self) -> list[Piece]:
        notes, self._notes = self._notes, []
        return [*self._transcript.take(self.chat.client), *notes]

    def _print(self, pieces: list[Piece]) -> None:
        if pieces:
            shown: StyleAndTextTuples = list(pieces)
            print_formatted_text(self._output, shown, STYLE, color_depth=self.app.color_depth)

    def _say_goodbye(self) -> None:
        if self.chat.client.active_run is not None:
            if growing := self._transcript.growing(self.chat.client):
                self._print([("", f"{growing}\n")])  # it was read: it does not vanish
            self._print([(NOTE, "The answer goes on without you.\n")])
        for text in [ask.text for ask in self.chat.client.asks.values() if ask.text]:
            self._print(
                [(TROUBLE, "Not sent yet, as far as is known:\n"), ("", f"{harmless(text)}\n")]
            )
        self._say_goodbye_to_session()
        self._print(self._take())

    def _say_goodbye_to_session(self) -> None:
        if (conversation := self.chat.client.conversation) is not None:
            self.note(f"To go on with this chat: parley chat --session {conversation.id}")

    # ---- what is drawn below it ------------------------------------------------------------------

    def _layout(self) -> Layout:
        field = Window(
            BufferControl(self._buffer, [BeforeInput(self._mark)]),
            wrap_lines=True,
            dont_extend_height=True,
            height=Dimension(min=1, max=MAX_FIELD_LINES),
        )
        shown = [self._part(self._growing), self._part(self._waiting), self._part(self._state)]
        return Layout(HSplit([*shown, field]), focused_element=field)

    def _part(self, text: TextOf) -> ConditionalContainer:
        window = Window(FormattedTextControl(text), wrap_lines=True, dont_extend_height=True)
        return ConditionalContainer(window, Condition(lambda: bool(text())))

    def _mark(self) -> StyleAndTextTuples:
        return [(QUESTION, "edit› " if self._editing is not None else "› ")]

    def _growing(self) -> StyleAndTextTuples:
        text = self._transcript.growing(self.chat.client).expandtabs()
        if not text:
            return []
        size = self._output.get_size()
        return [("", last_rows(text, size.columns, max(3, size.rows - REST_LINES)))]

    def _waiting(self) -> StyleAndTextTuples:
        """Questions that the server does not show yet, and those that wait in the queue."""
        client = self.chat.client
        lines = [(QUESTION, f"› {unsent_text(ask)}") for ask in client.unsent]
        queue = client.conversation.queue if client.conversation is not None else {"items": []}
        items = [item.get("input") or item.get("beginning", "") for item in queue["items"]]
        texts = [*items, *(ask.text for ask in client.asks.values() if ask.is_waiting)]
        word = "paused" if queue.get("paused") else "next"
        lines += [(NOTE, f"{word}: {quoted(text)}") for text in texts[:MAX_WAITING]]
        if len(texts) > MAX_WAITING:
            lines.append((NOTE, f"and {len(texts) - MAX_WAITING} more: /queue"))
        return _joined(lines)

    def _state(self) -> StyleAndTextTuples:
        """What is wrong, and how the answer goes on."""
        client = self.chat.client
        lines: list[Piece] = []
        if self.chat.lost_seconds() > AWAY_SECONDS:
            lost = "Reconnecting" if self.chat.link.has_opened else "Connecting"
            lines.append((TROUBLE, f"{lost}… nothing is lost"))
        elif trouble := trouble_text(client.degraded):
            lines.append((TROUBLE, trouble))
        if words := status_texts(client, client.active_run):
            stops = [] if words == ["Stopping…"] else ["Ctrl+C stops"]
            lines.append((NOTE, " · ".join([*words, *stops])))
        return _joined(lines)


def _joined(lines: list[Piece]) -> StyleAndTextTuples:
    last = len(lines) - 1
    return [(style, text + ("\n" if n < last else "")) for n, (style, text) in enumerate(lines)]


def last_rows(text: str, num_columns: int, num_rows: int) -> str:
    """The end of a text that a window of this size has room for."""
    if len(text) < num_columns and "\n" not in text:
        return text
    rows: list[str] = []
    for line in text.split("\n")[-num_rows:]:
        row, width = "", 0
        for character in line:
            taken = get_cwidth(character)
            if width + taken > num_columns:
                rows.append(row)
                row, width = "", 0
            row += character
            width += taken
        rows.append(row + "\n")
    return "".join(rows[-num_rows:]).removesuffix("\n")
