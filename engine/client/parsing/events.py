"""What a parser says of an answer. No event is taken back by a later one.

Joined, the deltas of a kind are that kind's whole text. A call has one `CallBegin`, any number of
`CallArguments` and one `CallEnd`, in that order, and the calls of an answer do not overlap.
"""

from collections.abc import Iterable

import msgspec


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """New text of the answer itself."""

    delta: str


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    """New text of what the model thinks."""

    delta: str


class CallBegin(msgspec.Struct, frozen=True, gc=False):
    """A call of a tool has begun; `index` counts the calls of an answer, from 0."""

    index: int
    call_id: str  # the model's own, if it wrote one
    name: str


class CallArguments(msgspec.Struct, frozen=True, gc=False):
    """More of the arguments, which are JSON in the end if the call is valid."""

    index: int
    delta: str


class CallEnd(msgspec.Struct, frozen=True, gc=False):
    """The call is over. Arguments that are no JSON object make it invalid, and stay as they are."""

    index: int
    is_valid: bool


Event = TextDelta | ReasoningDelta | CallBegin | CallArguments | CallEnd


def joined(events: Iterable[Event]) -> list[Event]:
    """The same, with deltas that follow each other as one."""
    found: list[Event] = []
    pieces: list[str] = []  # of the last one, if that is a delta
    for event in events:
        last = found[-1] if found else None
        if not isinstance(event, TextDelta | ReasoningDelta | CallArguments):
            _join(found, pieces)
            found.append(event)
        elif type(last) is type(event):
            pieces.append(event.delta)
        else:
            _join(found, pieces)
            found.append(event)
            pieces.append(event.delta)
    _join(found, pieces)
    return found


def _join(found: list[Event], pieces: list[str]) -> None:
    if len(pieces) > 1:
        found[-1] = msgspec.structs.replace(found[-1], delta="".join(pieces))
    pieces.clear()
