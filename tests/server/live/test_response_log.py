"""Entries of a log as frames: one by one, as a replay, or as a snapshot."""

from typing import Any

import orjson
import pytest

from server.live.response_log import MAX_SNAPSHOT_PART, put_event, put_snapshot, text_of
from sessions.model.events import Event, ObjectEvent, TextEvent
from tests.server.helpers.watching import Viewer

RESPONSE = "resp_1"


@pytest.fixture
def viewer() -> Viewer:
    return Viewer()


async def test_a_text_event_is_a_delta(viewer: Viewer) -> None:
    put_event(viewer.outbox, RESPONSE, 4, 2, TextEvent(7, "new"))
    (frame,) = await viewer.sent()
    assert frame["type"] == "response.output_text.delta"
    assert (frame["sequence_number"], frame["fence"], frame["text_offset"]) == (4, 2, 7)


async def test_any_other_event_is_sent_with_its_number_and_fence(viewer: Viewer) -> None:
    put_event(viewer.outbox, RESPONSE, 1, 2, ObjectEvent({"type": "response.created"}))
    put_event(viewer.outbox, RESPONSE, 2, 2, ObjectEvent({"type": "response.in_progress"}))
    created, started = await viewer.sent()
    assert created == {
        "type": "response.created",
        "sequence_number": 1,
        "fence": 2,
        "replayed": False,
    }
    assert "replayed" not in started


@pytest.mark.parametrize(
    ("length", "parts"),
    [(0, 1), (1, 1), (MAX_SNAPSHOT_PART - 2, 1), (MAX_SNAPSHOT_PART - 1, 2), (400_000, 4)],
)
async def test_a_snapshot_has_as_many_parts_as_it_needs(
    viewer: Viewer, length: int, parts: int
) -> None:
    put_snapshot(viewer.outbox, RESPONSE, 9, 1, "x" * length)
    frames: list[dict[str, Any]] = await viewer.sent()
    assert [(frame["part"], frame["parts"]) for frame in frames] == [
        (part, parts) for part in range(1, parts + 1)
    ]
    assert sum(len(frame["text"]) for frame in frames) == length


@pytest.mark.parametrize("character", ["\x01", "é", "漢", "😀"])
async def test_no_part_of_a_snapshot_comes_near_the_limit_of_a_frame(
    viewer: Viewer, character: str
) -> None:
    put_snapshot(viewer.outbox, RESPONSE, 9, 1, character * 100_000)
    frames: list[dict[str, Any]] = await viewer.sent()
    assert "".join(frame["text"] for frame in frames) == character * 100_000
    assert max(len(orjson.dumps(frame)) for frame in frames) < 129 * 1024


def test_the_text_of_a_log() -> None:
    events: list[Event] = [ObjectEvent({}), TextEvent(0, "a"), ObjectEvent({}), TextEvent(1, "b")]
    assert text_of(events) == "ab"
