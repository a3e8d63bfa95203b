"""Entries of an answer's log as frames: one by one, as a replay, or as a snapshot."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from server.live.outbox import LOGPROB_BYTES, Outbox, PendingDelta
from server.protocol.encoding import encode
from server.protocol.server_frames import TextSnapshot
from sessions.model.events import Event, ObjectEvent, TextEvent

MAX_SNAPSHOT_PART = 128 * 1024  # bytes of encoded text, so that no frame comes near 256 KiB
MAX_REPLAY_CHARACTERS = 64 * 1024  # a longer replay is replaced by a snapshot
MAX_BURST_BYTES = 32 * 1024  # what is more at once is no fault of who reads it


def put_event(outbox: Outbox, response_id: str, number: int, fence: int, event: Event) -> None:
    """Queue one numbered entry of a response's log."""
    if isinstance(event, TextEvent):
        outbox.put_delta(response_id, number, fence, event.text_offset, event.delta, event.logprobs)
        return
    frame = _entry_frame(number, fence, event)
    # What begins an answer is stored by then: that need never be taken back.
    outbox.put(frame, response_id, is_entry=frame["type"] != "response.created")


def _entry_frame(number: int, fence: int, event: ObjectEvent) -> dict[str, Any]:
    frame = {**event.data, "sequence_number": number, "fence": fence}
    if frame["type"] == "response.created":
        frame["replayed"] = False
    return frame


def replay_bytes(events: Sequence[Event]) -> int:
    """What a replay of these entries takes, roughly."""
    texts = [event for event in events if isinstance(event, TextEvent)]
    return sum(len(text.delta) + LOGPROB_BYTES * len(text.logprobs) for text in texts)


def replay_frames(
    response_id: str, fence: int, first: int, events: Sequence[Event]
) -> Iterator[bytes]:
    """Entries `first`, `first` + 1, … of a log as encoded frames, text merged as an outbox does."""
    pending: PendingDelta | None = None
    for number, event in enumerate(events, first):
        if pending is not None and (isinstance(event, ObjectEvent) or pending.is_full):
            yield pending.encode()
            pending = None
        if isinstance(event, ObjectEvent):
            yield encode(_entry_frame(number, fence, event))
        elif pending is None:
            pending = PendingDelta.of(
                response_id, number, fence, event.text_offset, event.delta, event.logprobs
            )
        else:
            pending.add(number, event.delta, event.logprobs)
    if pending is not None:
        yield pending.encode()


def put_snapshot(outbox: Outbox, response_id: str, number: int, fence: int, text: str) -> None:
    """Queue the whole text of a response as of entry `number`, in parts if it is long."""
    frames = snapshot_frames(response_id, number, fence, text)
    if len(text) > MAX_BURST_BYTES:
        outbox.put_replay(response_id, map(encode, frames), len(text))
        return
    for frame in frames:
        outbox.put(frame, response_id, is_entry=True)


def snapshot_frames(response_id: str, number: int, fence: int, text: str) -> Iterator[TextSnapshot]:
    parts = list(_parts_of(text))
    for place, part in enumerate(parts, 1):
        yield TextSnapshot(
            response_id=response_id,
            sequence_number=number,
            fence=fence,
            text=part,
            part=place,
            parts=len(parts),
        )


def _parts_of(text: str) -> Iterator[str]:
    """The text in pieces that are small enough once they are encoded."""
    if len(orjson.dumps(text)) <= MAX_SNAPSHOT_PART:
        yield text
    else:
        middle = len(text) // 2
        yield from _parts_of(text[:middle])
        yield from _parts_of(text[middle:])
