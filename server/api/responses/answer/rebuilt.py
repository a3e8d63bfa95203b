"""An answer whose log is gone, made again from its message: the events that its log gave."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from server.api.responses.answer.answer_events import AnswerEvents, no_server
from server.api.responses.answer.emitter import AnswerEvent
from server.api.responses.answer.response_object import Outcome
from server.live.response_log import CALLS, REASONING_DELTA, THOUGHTS, WORDS
from server.protocol.calls import ADDED, ARGUMENTS, ITEM_DONE
from sessions.model.events import Event, ObjectEvent, TextEvent
from sessions.model.records import Message

# Of an interrupted message: these ends left it incomplete, all others are somebody's stop.
UNFINISHED: Final = frozenset(
    (
        "max_output_tokens",
        "repetition",
        "deadline",
        "quota",
        "server_shutdown",
        "owner_lost",
        "engine_lost",
        "content_filter",
    )
)
_STRETCH: Final = re.compile(r"([rtc])([0-9]+)")
_ALL: Final = 1 << 53  # more than there is of anything


def rebuilt(
    asked: Mapping[str, Any],
    message: Message,
    server_of: Callable[[str], str | None] = no_server,
) -> tuple[AnswerEvents, list[AnswerEvent]]:
    """All events of an answer that is over, and the object that it ended with.

    Only log probabilities are kept in no message.
    """
    labels = {each["call_id"]: each["server_label"] for each in message.tool_outputs or ()}
    named = {
        call["name"]: labels[call["call_id"]]
        for call in message.tool_calls or ()
        if call["call_id"] in labels
    }
    answer = AnswerEvents(asked, message.id, lambda name: named.get(name) or server_of(name))
    events = answer.begin()
    for entry in entries_of(message):
        events += answer.take(entry)
    return answer, [*events, *answer.end(outcome_of_message(message))]


def outcome_of_message(message: Message) -> Outcome:
    """How its answer has ended."""
    details = message.status_details or {}
    reason = details.get("reason", "")
    status: str = message.status
    if status == "interrupted":
        status = "incomplete" if reason in UNFINISHED else "cancelled"
    ended_at = (message.timings or {}).get("done_at")
    return Outcome(
        status,
        reason,
        details.get("message", ""),
        message.usage,
        None if ended_at is None else ended_at / 1000,
    )


def entries_of(message: Message) -> Iterator[Event]:
    """What the log of its answer said, but for the cuts of text, and the end."""
    left = _Left(message)
    for kind, length in _STRETCH.findall(message.order or ""):
        yield from left.take(kind, int(length))
    for kind in (THOUGHTS, WORDS, CALLS):
        yield from left.take(kind, _ALL)
    for output in message.tool_outputs or ():
        yield ObjectEvent({"type": ITEM_DONE, "item": output})


class _Left:
    """What of a message is not emitted yet. Texts are counted in UTF-16 code units."""

    def __init__(self, message: Message) -> None:
        self._thoughts = (message.reasoning or "").encode("utf-16-le")
        self._words = message.text.encode("utf-16-le")
        self._calls = list(message.tool_calls or ())
        self._num_calls = 0

    def take(self, kind: str, length: int) -> Iterator[Event]:
        """So much of one kind, or what there is."""
        if kind == CALLS:
            calls, self._calls = self._calls[:length], self._calls[length:]
            for call in calls:
                yield from self._call(call)
        elif kind == WORDS:
            words, self._words = self._words[: 2 * length], self._words[2 * length :]
            if words:
                yield TextEvent(0, words.decode("utf-16-le"))
        else:
            thoughts, self._thoughts = self._thoughts[: 2 * length], self._thoughts[2 * length :]
            if thoughts:
                delta = thoughts.decode("utf-16-le")
                yield ObjectEvent({"type": REASONING_DELTA, "delta": delta})

    def _call(self, call: Mapping[str, Any]) -> Iterator[Event]:
        place = {"output_index": self._num_calls}
        self._num_calls += 1
        yield ObjectEvent({"type": ADDED, **place, "item": call})
        if call["arguments"]:
            yield ObjectEvent({"type": ARGUMENTS, **place, "delta": call["arguments"]})
        if call["status"] != "incomplete":
            yield ObjectEvent({"type": ITEM_DONE, **place, "item": call})
