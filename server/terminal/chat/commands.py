"""The words that begin with `/` in `parley chat`: what each does, and the help that lists them."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from server.terminal.admin_client import AdminError
from server.terminal.chat.chat import Chat
from server.terminal.chat.state.run import Frame, Message
from server.terminal.chat.transcript import branch_text, quoted
from server.terminal.text import harmless, printable
from sessions.background import start

HELP = (
    ("/edit [TEXT]", "change your last question, in a branch of its own"),
    ("/again", "another answer to the last question"),
    ("/continue", "go on with an answer that was cut short"),
    ("/branch [N|next|back]", "show another branch; without a number, which there are"),
    ("/queue", "what waits; /queue send [N], remove N, edit N TEXT, first N"),
    ("/steer TEXT", "end the answer that is written, and go on with these words"),
    ("/stop", "stop the answer"),
    ("/history", "this chat once more, from the beginning of what is held"),
    ("/thought", "what the model thought before its last answer"),
    ("/allow [always], /deny", "whether a tool may run"),
    ("/share, /unshare", "make a link that shows this chat to anybody, or end it"),
    ("/open", "the address of this chat on the page"),
    ("/title TEXT", "name this chat"),
    ("/new", "begin another chat"),
    ("/quit", "leave"),
)
KEYS = (
    ("Enter", "send; while an answer is written, the message waits for its end"),
    ("Ctrl+S", "steer: end the answer that is written, and go on with what you typed"),
    ("Alt+Enter, Ctrl+J", "a new line"),
    ("Ctrl+C", "stop the answer; else drop what you typed; twice leaves"),
    ("Ctrl+D", "leave; an answer goes on without you"),
    ("↑ ↓", "what you typed before"),
)


class Screen(Protocol):
    """What a command may do to the screen."""

    def note(self, text: str) -> None: ...
    def trouble(self, text: str) -> None: ...
    def put(self, text: str) -> None: ...
    def edit(self, message: Message) -> None: ...
    def show_history(self) -> None: ...
    def begin_anew(self) -> None: ...
    def leave(self) -> None: ...


class Commands:
    """One method for each; what they are called is in `_all`."""

    def __init__(self, chat: Chat, screen: Screen) -> None:
        self._chat, self._screen = chat, screen
        self._all: dict[str, Callable[[str], None]] = {
            "edit": self._edit,
            "again": self._again,
            "continue": self._continue,
            "branch": self._branch,
            "queue": self._queue,
            "steer": self.steer,
            "stop": lambda _: self.stop(),
            "history": lambda _: self._screen.show_history(),
            "thought": self._thought,
            "allow": self._allow,
            "deny": lambda _: self._consent("deny"),
            "share": self._share,
            "unshare": self._unshare,
            "open": self._open,
            "title": self._title,
            "new": lambda _: self._screen.begin_anew(),
            "help": lambda _: self._screen.note(help_text()),
            "quit": lambda _: self._screen.leave(),
        }

    @property
    def names(self) -> list[str]:
        return sorted(self._all)

    def run(self, text: str) -> bool:
        """Do what a line says. Returns whether there is such a command."""
        word, _, rest = text.removeprefix("/").partition(" ")
        command = self._all.get(word.strip())
        if command is None:
            self._screen.trouble(f"There is no /{word.strip()}; /help lists what there is.")
            return False
        command(rest.strip())
        return True

    def steer(self, text: str) -> None:
        """Without an answer to end, the words are asked as any."""
        client = self._chat.client
        if not text:
            self._screen.trouble("What should it go on with? /steer TEXT")
        elif client.active_run is not None:
            client.steer(text)
        elif client.is_busy:
            client.enqueue(text)
        else:
            client.ask(text)

    def stop(self) -> None:
        if not self._chat.client.stop():
            self._screen.note("Nothing is being written.")

    # ---- messages and branches -------------------------------------------------------------------

    def _last(self, role: str) -> Message | None:
        path = self._chat.client.path
        return next((one for one in reversed(path) if one.role == role), None)

    def _edit(self, text: str) -> None:
        question = self._last("user")
        if question is None:
            self._screen.trouble("Nothing was asked yet.")
        elif text:
            self._chat.client.ask(text, parent_id=question.parent_id, on_busy="cancel")
        else:
            self._screen.edit(question)

    def _again(self, _: str) -> None:
        answer = self._last("assistant")
        if answer is None:
            self._screen.trouble("There is no answer yet.")
        else:
            self._chat.client.ask(regenerate_of=answer.id, on_busy="cancel")

    def _continue(self, _: str) -> None:
        answer = self._last("assistant")
        if answer is None or answer.status not in ("interrupted", "failed"):
            self._screen.trouble("The last answer was not cut short.")
        else:
            self._chat.client.ask(continue_of=answer.id)

    def _branch(self, wanted: str) -> None:
        """Of the last message that has others in its place."""
        conversation = self._chat.client.conversation
        path = conversation.path if conversation is not None else []
        forks = [one for one in path if conversation and len(conversation.siblings(one)) > 1]
        if conversation is None or not forks:
            self._screen.note("This chat has one branch. /edit and /again make others.")
            return
        siblings = conversation.siblings(forks[-1])
        place = siblings.index(forks[-1].id)
        steps = {"next": place + 1, "back": place - 1}
        if not wanted:
            named = [f"{branch_text(conversation, one)} {quoted(one.text)}" for one in forks]
            self._screen.note("\n".join(named) + "\n/branch N shows another one of the last.")
            return
        number = steps.get(wanted, int(wanted) - 1 if wanted.isdecimal() else -1)
        if not 0 <= number < len(siblings):
            self._screen.trouble(f"There are {len(siblings)} branches here: /branch 1, 2, …")
        elif number != place:
            self._chat.client.switch_to(siblings[number])

    def _thought(self, _: str) -> None:
        answer = self._last("assistant")
        thoughts = answer.thoughts if answer is not None else ""
        self._screen.note(harmless(thoughts).strip() or "It has not said what it thought.")

    # ---- the queue -------------------------------------------------------------------------------

    def _queue(self, rest: str) -> None:
        conversation = self._chat.client.conversation
        queue: Frame = {"items": [], "paused": False}
        if conversation is not None:
            queue = conversation.queue
        deed, _, rest = rest.partition(" ")
        number, _, text = rest.strip().partition(" ")
        items: list[Frame] = queue["items"]
        if not deed or not items:
            self._screen.note(queue_text(queue))
            return
        if deed == "send" and not number:
            self._chat.client.change_queue("queue.send")
            return
        place = int(number) - 1 if number.isdecimal() else -1
        if not 0 <= place < len(items):
            self._screen.trouble(f"Which one? /queue {deed} 1, 2, …")
            return
        item = items[place]["id"]
        match deed:
            case "send":
                self._chat.client.change_queue("queue.send", item_id=item)
            case "remove":
                self._chat.client.change_queue("queue.remove", item_id=item)
            case "first":
                self._chat.client.change_queue("queue.update", item_id=item, place=0)
            case "edit" if text.strip():
                self._chat.client.change_queue("queue.update", item_id=item, input=text.strip())
            case _:
                self._screen.trouble("/queue send [N], remove N, edit N TEXT, first N")

    # ---- tools -----------------------------------------------------------------------------------

    def _allow(self, rest: str) -> None:
        self._consent("allow_session" if rest == "always" else "allow")

    def _consent(self, decision: str) -> None:
        run = self._chat.client.active_run
        items = run.message.items.values() if run is not None else ()
        asked = [item for item in items if item.get("status") == "awaiting_consent"]
        if run is None or not asked:
            self._screen.note("No tool waits for your word.")
            return
        self._chat.client.consent(run.id, asked[0]["call_id"], decision)

    # ---- the chat as a whole ---------------------------------------------------------------------

    def _title(self, title: str) -> None:
        if self._has_chat() and title:
            self._chat.client.update_session(title=title)

    def _open(self, _: str) -> None:
        conversation = self._chat.client.conversation
        fragment = f"#{conversation.id}" if conversation is not None else ""
        self._screen.note(f"{self._chat.address()[0]}/{fragment}")

    def _share(self, _: str) -> None:
        if self._has_chat():
            self._ask_server(
                lambda session_id: (
                    f"Anybody can read this chat, as it is now, at "
                    f"{self._chat.user_client.share(session_id)}"
                )
            )

    def _unshare(self, _: str) -> None:
        def unshare(session_id: str) -> str:
            self._chat.user_client.unshare(session_id)
            return "The link shows nothing any more."

        if self._has_chat():
            self._ask_server(unshare)

    def _has_chat(self) -> bool:
        if self._chat.client.conversation is None:
            self._screen.trouble("Nothing was asked yet.")
        return self._chat.client.conversation is not None

    def _ask_server(self, act: Callable[[str], str]) -> None:
        """Do something over HTTP, and say what came of it."""
        conversation = self._chat.client.conversation
        assert conversation is not None

        async def ask() -> None:
            try:
                self._screen.note(await asyncio.to_thread(act, conversation.id))
            except AdminError as error:
                self._screen.trouble(str(error))

        start(ask())


def queue_text(queue: Frame) -> str:
    """What waits, one a line."""
    lines = []
    for number, item in enumerate(queue["items"], 1):
        text = item.get("input") or f"{item.get('beginning', '')}…"
        error = item.get("error")
        why = f" (could not be asked: {printable(error['message'])})" if error else ""
        lines.append(f"{number}. {quoted(text)}{why}")
    if not lines:
        return "Nothing waits."
    if queue["paused"]:
        lines.append("Paused: /queue send goes on.")
    return "\n".join(lines)


def help_text() -> str:
    width = max(len(name) for name, _ in (*HELP, *KEYS)) + 2
    lines = [f"{name.ljust(width)}{text}" for name, text in (*HELP, *KEYS)]
    return "\n".join([*lines, "//TEXT".ljust(width) + "send a message that begins with a /"])
