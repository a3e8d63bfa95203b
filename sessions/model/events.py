"""What the logs of answers and of sessions hold, and what a feed brings of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import orjson


class TextEvent(msgspec.Struct, frozen=True, gc=False):
    """New text of an answer; by far the most frequent entry, so it is stored as a short array.

    And so it is a `Struct`, which is made in a tenth of a frozen dataclass's time.
    """

    text_offset: int
    delta: str
    # For models that write their reasoning before the answer, which a later version runs; nothing
    # sets it today. Its kind in the log, the frame `response.reasoning_text.delta` and the page's
    # `reasoningText` are there before, since old workers and pages must know them by then.
    reasoning: bool = False
    logprobs: tuple[dict[str, Any], ...] = ()  # one for each token, where they were asked for


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """Any other entry of a response's log: the frame's own fields, without number and fence."""

    data: dict[str, Any]


Event = TextEvent | ObjectEvent


def encode_event(event: Event) -> bytes:
    """One log entry; a text event is `["t",text_offset,delta]`, `"r"` for reasoning.

    Where they were asked for, the tokens' log probabilities are a fourth element.
    """
    if isinstance(event, TextEvent):
        entry = ("r" if event.reasoning else "t", event.text_offset, event.delta)
        return orjson.dumps((*entry, event.logprobs) if event.logprobs else entry)
    return orjson.dumps(event.data)


def decode_event(entry: bytes) -> Event:
    """The event of one log entry."""
    data = orjson.loads(entry)
    if isinstance(data, list):
        return TextEvent(data[1], data[2], data[0] == "r", tuple(data[3]) if data[3:] else ())
    return ObjectEvent(data)


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """One entry of a session's log."""

    offset: int
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LiveSessionEvents:
    """Session events as they were stored; `offset` is that of the last one."""

    session_id: str
    epoch: str
    offset: int
    events: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class LiveResponseEvents:
    """Entries `first` to `last` of a response's log as they were stored."""

    response_id: str
    fence: int
    first: int
    last: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class LiveFrame:
    """An unnumbered frame: what `publish_user` and `publish_control` sent."""

    data: dict[str, Any]


LivePayload = LiveSessionEvents | LiveResponseEvents | LiveFrame
