"""`Emitter`: numbers the events of an answer, and writes them as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson


class AnswerEvent(NamedTuple):
    """One event; `data` is its JSON, with type and number in it."""

    sequence_number: int
    type: str
    data: bytes


class DeltaForm(NamedTuple):
    """What the deltas of one item have in common, as JSON."""

    type: str
    beginning: bytes
    has_logprobs: bool


class Emitter:
    """What was emitted waits until somebody takes it."""

    def __init__(self) -> None:
        self._number = 0
        self._emitted: list[AnswerEvent] = []

    @property
    def num_emitted(self) -> int:
        """So far: the number of the next event."""
        return self._number

    def take(self) -> list[AnswerEvent]:
        """What was emitted since the last time."""
        emitted, self._emitted = self._emitted, []
        return emitted

    def emit(self, kind: str, **fields: Any) -> None:
        """The next event."""
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._put(kind, orjson.dumps(event))

    def emit_delta(self, form: DeltaForm, delta: str, logprobs: Sequence[Any] = ()) -> None:
        """The same: by far the most frequent event, so it is put together as it leaves."""
        more = b""
        if form.has_logprobs:
            more = b',"logprobs":%b' % (orjson.dumps(logprobs) if logprobs else b"[]")
        data = b'%b%b%b,"sequence_number":%d}' % (
            form.beginning,
            orjson.dumps(delta),
            more,
            self._number,
        )
        self._put(form.type, data)

    def _put(self, kind: str, data: bytes) -> None:
        self._emitted.append(AnswerEvent(self._number, kind, data))
        self._number += 1


def delta_form(kind: str, place: Mapping[str, Any], *, has_logprobs: bool = False) -> DeltaForm:
    """`place` are the fields that are the same in each of them."""
    beginning = orjson.dumps({"type": kind, **place})[:-1] + b',"delta":'
    return DeltaForm(kind, beginning, has_logprobs)
