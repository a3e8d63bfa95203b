"""`parley chat --once`: one question, and its answer on standard output, for pipes and scripts.

Nothing but the answer is on standard output; whatever else there is to say is on standard error.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator

from server.terminal.chat.chat import Chat
from server.terminal.chat.link import Address
from server.terminal.chat.state.client import Ask
from server.terminal.chat.state.run import Message
from server.terminal.chat.state.words import close_text, end_text, trouble_text
from server.terminal.text import harmless, printable
from sessions.background import start

MAX_AWAY_SECONDS = 120.0
OK, FAILED, STOPPED = 0, 1, 130
WATCH_SECONDS = 1.0


def run_once(address: Address, session_id: str | None, question: str, *, as_json: bool) -> int:
    """Ask, print, end. Returns 0 for an answer that is whole, 130 after Ctrl-C, else 1."""

    async def ask() -> int:
        return await Once(address, session_id, question, as_json=as_json).run()

    return asyncio.run(ask())


class Once:
    """One question, from its first frame to the exit code."""

    def __init__(
        self, address: Address, session_id: str | None, question: str, *, as_json: bool
    ) -> None:
        self._chat = Chat(
            address,
            session_id,
            on_change=self._changed,
            on_note=note,
            on_refused=self._refused,
        )
        self._question = question
        self._as_json = as_json
        self._asked: Ask | None = None
        self._printed = ""
        self._done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._trouble = ""
        self._is_stopped = False

    async def run(self) -> int:
        with self._on_signals():
            link = start(self._chat.run())
            watch = start(self._watch())
            self._asked = self._chat.client.ask(self._question)
            link.add_done_callback(self._closed)
            try:
                return await self._done
            finally:
                for task in (link, watch):
                    task.cancel()
                await asyncio.gather(link, watch, return_exceptions=True)

    # ---- what happens ----------------------------------------------------------------------------

    def _changed(self) -> None:
        if self._done.done():
            return
        client = self._chat.client
        if client.problem is not None:
            self._fail(client.problem)
            return
        if (trouble := trouble_text(client.degraded)) != self._trouble:
            self._trouble = trouble
            if trouble:
                note(trouble)
        message = self._message()
        if message is None:
            return
        self._deny(message)
        runs = client.conversation.runs if client.conversation is not None else {}
        run = runs.get(message.response_id or "")
        is_whole = not message.is_streaming and not message.is_incomplete
        is_whole = is_whole and (run is None or run.is_settled)
        if not self._as_json:
            self._print(message.visible_text)
        if is_whole and not self._goes_on(message):
            self._end(message)

    def _message(self) -> Message | None:
        """The answer; of rounds in which tools are called, the last one that there is."""
        if self._asked is None or self._asked.response_id is None:
            return None
        path = self._chat.client.path
        places = [n for n, one in enumerate(path) if one.response_id == self._asked.response_id]
        if not places:
            return None
        message = path[places[0]]
        if self._goes_on(message):
            later = [one for one in path[places[0] + 1 :] if one.role == "assistant"]
            if later and later[0].response_id:
                self._asked.response_id = later[0].response_id
                self._printed = ""
                return later[0]
        return message

    def _goes_on(self, message: Message) -> bool:
        """Whether the server itself has carried out what the answer has called, and asks again."""
        kinds = [item["type"] for item in message.items.values()]
        ended = message.status == "completed" and message.reason == "tool_calls"
        return ended and kinds.count("function_call") == kinds.count("function_call_output")

    def _deny(self, message: Message) -> None:
        """Nobody is here to say whether a tool may run."""
        for item in message.items.values():
            if item.get("status") == "awaiting_consent" and message.response_id:
                note(f"{item.get('name')} would need your consent, and nobody can be asked here")
                item["status"] = "denied"
                self._chat.client.consent(message.response_id, item["call_id"], "deny")

    def _print(self, text: str) -> None:
        if not text.startswith(self._printed):
            if not self._printed.startswith(text):
                note("the answer has changed; what follows is all of it")
                self._write(f"\n{harmless(text)}")
                self._printed = text
            return
        self._write(harmless(text[len(self._printed) :]))
        self._printed = text

    def _write(self, text: str) -> None:
        """Whoever has read enough, as `head` has, ends the answer; so does a disk that is full."""
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                note(f"the answer cannot be written: {error.strerror}")
            sys.stdout = open(os.devnull, "w")  # the interpreter flushes it at exit
            self._stop()

    def _end(self, message: Message) -> None:
        if self._as_json:
            self._write(f"{json.dumps(self._object(message))}\n")
        elif self._printed and not self._printed.endswith("\n"):
            self._write("\n")
        if message.status == "completed":
            self._finish(OK)
            return
        how, _, _ = end_text(message.status, message.reason).partition(", /")  # no commands here
        note(f"the answer was {how}")
        self._finish(STOPPED if self._is_stopped else FAILED)

    def _object(self, message: Message) -> dict[str, object]:
        conversation = self._chat.client.conversation
        return {
            "session_id": conversation.id if conversation is not None else None,
            "response_id": message.response_id,
            "status": message.status,
            "reason": message.reason,
            "text": message.text,
            "usage": message.usage,
            "timings": message.timings,
        }

    def _refused(self, _: Ask, reason: str) -> None:
        self._fail(reason)

    def _closed(self, link: "asyncio.Task[int]") -> None:
        if not link.cancelled() and not self._done.done():
            if (error := link.exception()) is not None:
                self._done.set_exception(error)
            else:
                self._fail(close_text(link.result()))

    async def _watch(self) -> None:
        """Give up when there has been no connection for long."""
        told = False
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            away = self._chat.lost_seconds()
            if away > WATCH_SECONDS and not told:
                note("no connection to the server; trying again")
            told = away > WATCH_SECONDS
            if away > MAX_AWAY_SECONDS:
                self._fail("the server does not answer")

    # ---- the end ---------------------------------------------------------------------------------

    def _fail(self, reason: str) -> None:
        if not self._done.done():
            note(reason)
        self._finish(FAILED)

    def _finish(self, code: int) -> None:
        if not self._done.done():
            self._done.set_result(code)

    def _stop(self) -> None:
        """Stop the answer, and print what there is of it; the second time leave at once."""
        if self._is_stopped or not self._chat.client.stop():
            self._finish(STOPPED)
        self._is_stopped = True

    @contextlib.contextmanager
    def _on_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._stop)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)


def note(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more
        print(f"parley: {printable(text)}", file=sys.stderr)
