"""Server-sent events from bytes that come in any pieces."""

import time

import pytest

from server.engines.remote.wire.events import MAX_EVENT_BYTES, EventReader
from server.engines.remote.wire.problems import Broken

STREAM = (
    b': a comment\n\ndata: {"a":1}\n\nevent: x\nid: 7\ndata:{"b":2}\r\n\r\ndata: one\ndata: two\n\n'
)
EVENTS = [b'{"a":1}', b'{"b":2}', b"one\ntwo"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_the_same_in_whatever_pieces_they_come(size: int) -> None:
    reader = EventReader()
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert [event for piece in pieces for event in reader.feed(piece)] == EVENTS


def test_half_an_event_is_none() -> None:
    reader = EventReader()
    assert reader.feed(b"data: whole\n\ndata: ha") == [b"whole"]
    assert reader.feed(b"lf\n") == []
    assert reader.feed(b"\n") == [b"half"]


@pytest.mark.parametrize("piece", [b"x" * 4096, b"data: " + b"x" * 4096 + b"\n"])
def test_an_event_without_an_end_is_broken_before_it_fills_the_memory(piece: bytes) -> None:
    reader = EventReader()
    with pytest.raises(Broken, match="an event of more than"):
        for _ in range(2 * MAX_EVENT_BYTES // len(piece)):
            reader.feed(piece)


def test_an_event_in_many_small_pieces_costs_no_more_than_its_bytes() -> None:
    reader, began = EventReader(), time.process_time()
    reader.feed(b"data: ")
    for _ in range(400_000):
        reader.feed(b"x")
    assert reader.feed(b"\n\n") == [b"x" * 400_000]
    assert time.process_time() - began < 3  # each piece added to all before: half a minute
