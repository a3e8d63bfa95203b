"""Entries of a log as frames: one by one, as a replay, or as a snapshot."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from server.live.response_log import (
    MAX_SNAPSHOT_PART,
    MAX_STRETCHES,
    ResponseLog,
    order_of,
    put_event,
    put_snapshot,
    read_log,
    replay_bytes,
    replay_frames,
    response_frame,
    text_of,
)
from server.protocol.encoding import ServerFrame, encode
from server.protocol.server_frames import TYPES, CreatedEntry, DoneEntry, InProgressEntry
from sessions.model.events import Event, ObjectEvent, TextEvent
from sessions.store.store import SessionStore
from tests.server.helpers.watching import Viewer
from tests.sessions.helpers.chat import Chat

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


@pytest.mark.parametrize("entry", [CreatedEntry, InProgressEntry, DoneEntry])
def test_an_entry_of_an_answer_becomes_its_frame(entry: type[ServerFrame]) -> None:
    kind = str(entry.__struct_config__.tag)
    frame = response_frame(4, 2, ObjectEvent({"type": kind, "response": {"id": "resp_1"}}))
    assert type(frame) is TYPES[kind]
    sent = orjson.loads(encode(frame))
    assert (sent["type"], sent["sequence_number"], sent["fence"]) == (kind, 4, 2)
    assert "event_id" not in sent


def test_the_beginning_of_an_answer_says_what_it_answers_and_whether_again() -> None:
    data = {"type": "response.created", "response": {"id": "resp_1"}, "idempotency_key": "k"}
    numbers = {"sequence_number": 1, "fence": 2}
    first = orjson.loads(encode(response_frame(1, 2, ObjectEvent(data), event_id="e1")))
    assert first == {**data, **numbers, "replayed": False, "event_id": "e1"}
    again = orjson.loads(encode(response_frame(1, 2, ObjectEvent(data), replayed=True)))
    assert again == {**data, **numbers, "replayed": True}


def test_an_entry_that_a_later_version_has_stored_is_sent_on() -> None:
    later = {"type": "response.tool_call", "name": "x"}
    numbers = {"sequence_number": 4, "fence": 2}
    assert response_frame(4, 2, ObjectEvent(later)) == {**later, **numbers}


async def test_a_thought_is_an_entry_with_a_frame_of_its_own(viewer: Viewer) -> None:
    thought = ObjectEvent(
        {
            "type": "response.reasoning_text.delta",
            "response_id": RESPONSE,
            "text_offset": 0,
            "delta": "Hm",
        }
    )
    events: list[Event] = [TextEvent(0, "a"), thought, TextEvent(1, "b")]
    for number, event in enumerate(events, 3):
        put_event(viewer.outbox, RESPONSE, number, 1, event)
    frames = await viewer.sent()
    assert [(frame["sequence_number"], frame["delta"]) for frame in frames] == [
        (3, "a"),
        (4, "Hm"),
        (5, "b"),
    ]
    log = ResponseLog(1, events)
    assert (log.text(), log.reasoning(), log.reasoning(1)) == ("ab", "Hm", "")
    assert replay_bytes(events) == 4
    replayed = [orjson.loads(frame) for frame in replay_frames(RESPONSE, 1, 3, events)]
    assert replayed == frames


async def test_a_snapshot_brings_thoughts_before_the_text(viewer: Viewer) -> None:
    put_snapshot(viewer.outbox, RESPONSE, 9, 1, "Yes.", "Hm")
    thought, text = await viewer.sent()
    assert (thought["reasoning_text"], thought["text"], thought["part"]) == ("Hm", "", 1)
    assert (text["text"], text["parts"], "reasoning_text" in text) == ("Yes.", 2, False)


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


@pytest.mark.parametrize("base", ["", "Before. "])
async def test_what_is_stored_while_a_log_is_read_is_not_what_its_message_began_with(
    store: SessionStore, chat: Chat, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = {"text_length": len(base)} if base else {}
    begun = await chat.begin(created_event={"type": "response.created", "response": length})
    rid, runs = begun.response_id, store.runs
    started = ObjectEvent({"type": "response.in_progress"})
    await runs.append(rid, fence=1, first=2, events=[started], text_length=len(base))
    read = runs.events

    async def overtaken(response_id: str) -> list[tuple[int, Event]]:
        events = await read(response_id)
        text, length = TextEvent(len(base), "words"), len(base) + len("words")
        await runs.append(rid, fence=1, first=3, events=[text], text_length=length, token_ids=[1])
        message = replace(chat.messages[rid], text=base + "words", status="completed")
        await chat.finish(rid, 4, message=message, text_length=length)
        return events

    monkeypatch.setattr(runs, "events", overtaken)
    log = await read_log(store, "alice", rid)
    assert (len(log.events), log.text()) == (2, base)


def test_the_text_of_a_log() -> None:
    events: list[Event] = [ObjectEvent({}), TextEvent(0, "a"), ObjectEvent({}), TextEvent(1, "b")]
    assert text_of(events) == "ab"


def call_item(number: int, length: int = 0) -> dict[str, Any]:
    fields = {"id": f"fc_{number}", "call_id": f"call_{number}", "name": "clock"}
    arguments = "x" * length
    return {"type": "function_call", **fields, "arguments": arguments, "status": "completed"}


async def test_a_snapshot_brings_calls_whole_between_thoughts_and_text(viewer: Viewer) -> None:
    items = [call_item(0), call_item(1), call_item(2, MAX_SNAPSHOT_PART), call_item(3)]
    put_snapshot(viewer.outbox, RESPONSE, 9, 1, "Yes.", "Hm", items)
    frames = await viewer.sent()
    assert [frame.get("output") for frame in frames] == [
        *(None, items[:2], items[2:3], items[3:], None)
    ]
    assert [frame["parts"] for frame in frames] == [5] * 5
    assert "".join(frame["text"] for frame in frames) == "Yes."


def entries_in(kinds: str) -> list[Event]:
    """An entry for each letter: words of two code units, thoughts of one, calls."""
    call = {"type": "response.output_item.added", "item": {"type": "function_call"}}
    entries: dict[str, Event] = {
        "t": TextEvent(0, "😀"),
        "r": ObjectEvent({"type": "response.reasoning_text.delta", "delta": "."}),
        "c": ObjectEvent(call),
    }
    return [entries[kind] for kind in kinds]


def test_the_usual_order_is_not_worth_a_word() -> None:
    for kinds in ("", "t", "rrtt", "rtcc", "tcc", "rc"):
        assert order_of(entries_in(kinds)) is None


def test_any_other_order_says_how_much_of_each_kind_came() -> None:
    assert order_of(entries_in("ttrtcct")) == "t4r1t2c2t2"
    assert order_of(entries_in("tr" * 100)) == "t2r1" * (MAX_STRETCHES // 2)
