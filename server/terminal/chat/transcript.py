"""`Transcript`: what of a session is printed for good, and what still moves below it.

Lines that are whole are printed once and scroll away; the last line of an answer, which grows,
stays below them until it is whole. So a window may be resized, and what was printed can be copied
as it is. Every text of strangers goes through `harmless` or `printable` before it is a piece.
"""

from dataclasses import dataclass, field

from server.terminal.chat.state.client import Ask, ChatClient
from server.terminal.chat.state.conversation import Conversation
from server.terminal.chat.state.run import Message, Run
from server.terminal.chat.state.words import TOOL_STATES, end_text, figures_text, wait_text
from server.terminal.text import harmless, printable

Piece = tuple[str, str]  # style and text, as prompt_toolkit has them

QUESTION, NOTE, TROUBLE, PLAIN = "class:question", "class:note", "class:trouble", ""
NUM_SHOWN = 6  # messages of a chat that is gone on with
MAX_QUOTED = 60  # characters of a message that is only named
MAX_ITEM = 120  # characters of the arguments of a tool


@dataclass
class Shown:
    """One message, as far as it is printed."""

    id: str
    text: str = ""
    is_begun: bool = False
    is_done: bool = False
    items: dict[str, str] = field(default_factory=dict)  # the state of each call that was shown


class Transcript:
    """Of one session; `Transcript()` again for another one."""

    def __init__(self) -> None:
        self._shown: list[Shown] = []
        self._is_loaded = False

    # ---- what is printed for good ----------------------------------------------------------------

    def take(self, client: ChatClient) -> list[Piece]:
        """What can be printed now and was not yet; ends with a whole line."""
        conversation = client.conversation
        if conversation is None or not conversation.is_loaded:
            return []
        path = [message for message in conversation.path if message.role in ("user", "assistant")]
        pieces: list[Piece] = []
        if not self._is_loaded:
            self._is_loaded = True
            pieces += self._begin(conversation, path)
        self._align(path)
        for place, message in enumerate(path):
            if place == len(self._shown):
                self._shown.append(Shown(message.id))
            shown = self._shown[place]
            pieces += self._message(conversation, message, shown)
            if not shown.is_done:
                break  # what follows it waits
        return pieces

    def _begin(self, conversation: Conversation, path: list[Message]) -> list[Piece]:
        """Of a chat that is gone on with the last turns are shown."""
        left = max(0, len(path) - NUM_SHOWN)
        self._shown = [Shown(message.id, message.text, True, True) for message in path[:left]]
        if not path:
            return []
        title = printable(conversation.title) or "Chat"
        earlier = f"{left}{' or more' if conversation.has_more else ''} earlier messages: /history"
        text = f"{title} · {earlier}" if left or conversation.has_more else title
        return [(NOTE, f"{text}\n")]

    def _align(self, path: list[Message]) -> None:
        """Forget what is not of the branch in use. A snapshot may begin later, or earlier."""
        ids = [message.id for message in path]
        known = [shown.id for shown in self._shown]
        if ids and known and ids[0] in known:
            del self._shown[: known.index(ids[0])]
        elif ids and known and known[0] in ids:
            older = path[: ids.index(known[0])]
            self._shown[:0] = [Shown(message.id, message.text, True, True) for message in older]
        same = 0
        for shown, message_id in zip(self._shown, ids, strict=False):
            if shown.id != message_id:
                break
            same += 1
        del self._shown[same:]

    def _message(self, conversation: Conversation, message: Message, shown: Shown) -> list[Piece]:
        if message.role == "user":
            return self._question(conversation, message, shown)
        return self._answer(conversation, message, shown)

    def _question(self, conversation: Conversation, message: Message, shown: Shown) -> list[Piece]:
        if shown.is_done or message.is_incomplete:  # its text is on the way
            return []
        shown.is_done = True
        place = branch_text(conversation, message)
        return [
            (QUESTION, f"\n› {_indented(message.text)}"),
            (NOTE, f"  {place}\n" if place else "\n"),
        ]

    def _answer(self, conversation: Conversation, message: Message, shown: Shown) -> list[Piece]:
        run = conversation.runs.get(message.response_id or "")
        writing = message.is_streaming or (run is not None and not run.is_settled)
        if shown.is_done:
            if not writing:
                return []
            self._go_on(shown)
        pieces: list[Piece] = []
        if not shown.is_begun and (writing or message.text or message.items):
            shown.is_begun = True
            if place := branch_text(conversation, message):
                pieces.append((NOTE, f"{place}\n"))
            if message.num_omitted:
                pieces.append((NOTE, "(Earlier messages no longer fit and were left out)\n"))
        pieces += self._text(message, shown, is_whole=not writing and not message.is_incomplete)
        pieces += self._items(message, shown)
        if not writing and not message.is_incomplete:
            shown.is_done = True
            pieces += self._end(message)
        return pieces

    def _go_on(self, shown: Shown) -> None:
        """An answer that had ended is continued: from the beginning of its last line."""
        shown.is_done = False
        shown.text = shown.text[: shown.text.rfind("\n") + 1]

    def _text(self, message: Message, shown: Shown, *, is_whole: bool) -> list[Piece]:
        """The lines of an answer that are whole; all of it at its end."""
        text = message.visible_text
        pieces: list[Piece] = []
        if not text.startswith(shown.text):
            if not is_whole and shown.text.startswith(text):
                return []  # a snapshot on its way to where we are, or another's stop
            if shown.text.startswith(text):
                note = f"(What is stored ends earlier, with “{_tail(text)}”)\n"
                shown.text = text
                return [(NOTE, note)]
            pieces.append((NOTE, "(The answer as it is stored:)\n"))
            shown.text = ""
        end = len(text) if is_whole else text.rfind("\n") + 1
        if end <= len(shown.text):
            return pieces
        new = text[len(shown.text) : end]
        shown.text = text[:end]
        return [*pieces, (PLAIN, harmless(new) if new.endswith("\n") else f"{harmless(new)}\n")]

    def _items(self, message: Message, shown: Shown) -> list[Piece]:
        """A line for each change of what the model has called."""
        pieces = []
        for item in message.items.values():
            state = str(item.get("status"))
            if shown.items.get(item["id"]) == state:
                continue
            if item["type"] == "function_call" and state == "in_progress":
                continue  # its arguments are being written
            shown.items[item["id"]] = state
            pieces.append((NOTE, f"⚙ {_item_text(item)}\n"))
        return pieces

    def _end(self, message: Message) -> list[Piece]:
        words = [
            end_text(message.status, message.reason, printable(message.details or "") or None),
            *figures_text(message.usage, message.timings),
        ]
        style = TROUBLE if message.status == "failed" else NOTE
        return [(style, f"— {' · '.join(filter(None, words))}\n")]

    # ---- what moves below it ---------------------------------------------------------------------

    def growing(self, client: ChatClient) -> str:
        """The line of the answer that is being written."""
        if not self._shown or self._shown[-1].is_done or client.conversation is None:
            return ""
        shown = self._shown[-1]
        message = client.conversation.find(shown.id)
        if message is None or not message.visible_text.startswith(shown.text):
            return ""
        return harmless(message.visible_text[len(shown.text) :])

    # ---- all of it -------------------------------------------------------------------------------

    def history(self, client: ChatClient) -> list[Piece]:
        """Every message that is held, once more."""
        conversation = client.conversation
        pieces: list[Piece] = []
        if conversation is None:
            return pieces
        if conversation.has_more:
            pieces.append((NOTE, "(The page has what came before: /open)\n"))
        for message in conversation.path:
            if not message.is_streaming and message.role in ("user", "assistant"):
                pieces += self._message(conversation, message, Shown(message.id))
        return pieces


def branch_text(conversation: Conversation, message: Message) -> str:
    """Which of the messages in its place it is, as ‹2/3›; empty if there are no others."""
    siblings = conversation.siblings(message)
    if len(siblings) < 2:
        return ""
    return f"‹{siblings.index(message.id) + 1}/{len(siblings)}›"


def status_texts(client: ChatClient, run: Run | None) -> list[str]:
    """How the answer that runs is going on."""
    if run is None:
        return []
    if run.is_stopping:
        return ["Stopping…"]
    if run.has_ended:
        return ["Waiting until the end is saved…"]
    if run.queued is not None:
        return [wait_text(run.queued)]
    if run.progress is not None:
        return figures_text(run.progress, run.progress)
    if run.message.thoughts and not run.message.text:
        return ["Thinking…"]
    return ["Writing…" if run.message.text else "Reading the question…"]


def unsent_text(ask: Ask) -> str:
    return f"{quoted(ask.text)} (not sent yet)"


def quoted(text: str) -> str:
    """The beginning of a message, on one line."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= MAX_QUOTED else f"{line[: MAX_QUOTED - 1]}…"


def _item_text(item: dict[str, object]) -> str:
    name = printable(str(item.get("name", "a tool")))
    if item["type"] == "function_call":
        arguments = printable(str(item.get("arguments", "")))
        cut = arguments if len(arguments) <= MAX_ITEM else f"{arguments[: MAX_ITEM - 1]}…"
        return f"{name} {cut}"
    return f"{name}: {TOOL_STATES.get(str(item.get('status')), 'goes on')}"


def _indented(text: str) -> str:
    """A question of several lines, below its mark."""
    return harmless(text).replace("\n", "\n  ")


def _tail(text: str) -> str:
    return printable(text[-20:])
