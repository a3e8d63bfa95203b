"""An answer's entries become OpenAI's events: each kind, each end, each number."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from server.api.responses.answer.answer_events import AnswerEvents, outcome_of
from server.api.responses.answer.teller import AnswerEvent
from sessions.model.events import Event, ObjectEvent, TextEvent

TAIL = "abcdefghijklmnopqrstuv"
MESSAGE = f"msg_{TAIL}"
RESPONSE = f"resp_{TAIL}12345678901"
ASKED = {"id": RESPONSE, "created_at": 1_700_000_000, "model": "m"}
USAGE = {"input_tokens": 3, "cached_tokens": 1, "output_tokens": 5}


def answer_events(**options: Any) -> AnswerEvents:
    return AnswerEvents(ASKED, MESSAGE, **options)


def done(status: str = "completed", reason: str = "eos", **details: Any) -> ObjectEvent:
    response = {
        "status": status,
        "status_details": {"reason": reason, **details},
        "usage": USAGE,
        "timings": {"total_ms": 1, "done_at": 1_700_000_001_500},
    }
    return ObjectEvent({"type": "response.done", "durable": True, "response": response})


def words(*texts: str) -> list[Event]:
    return [TextEvent(0, text) for text in texts]


def told(entries: Sequence[Event], **options: Any) -> list[AnswerEvent]:
    answer = answer_events(**options)
    return [*answer.begin(), *(event for entry in entries for event in answer.take_event(entry))]


def read(events: Sequence[AnswerEvent]) -> list[dict[str, Any]]:
    """The events as objects, whose numbers and types are those that stand beside them."""
    found = [orjson.loads(event.data) for event in events]
    for number, (event, data) in enumerate(zip(events, found, strict=True)):
        assert event.sequence_number == data["sequence_number"] == number
        assert event.type == data["type"]
    return found


def brief(event: Mapping[str, Any]) -> tuple[Any, ...]:
    """Type, place, and what is new."""
    kind = event["type"].removeprefix("response.")
    new = [event[name] for name in ("delta", "text", "arguments") if name in event]
    for name in ("item", "part"):
        if name in event:
            new.append(event[name]["type"])
    if "response" in event:
        new.append(event["response"]["status"])
    return kind, event.get("output_index"), *new


def test_words_are_told_from_their_item_to_its_end() -> None:
    events = read(told([*words("Hi, wor", "ld"), done()]))
    assert [brief(event) for event in events] == [
        ("created", None, "in_progress"),
        ("in_progress", None, "in_progress"),
        ("output_item.added", 0, "message"),
        ("content_part.added", 0, "output_text"),
        *(("output_text.delta", 0, each) for each in ["H", "i", ",", " ", "w", "o", "r", "l"]),
        ("output_text.delta", 0, "d"),
        ("output_text.done", 0, "Hi, world"),
        ("content_part.done", 0, "output_text"),
        ("output_item.done", 0, "message"),
        ("completed", None, "completed"),
    ]
    message = {
        "id": MESSAGE,
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [
            {"type": "output_text", "text": "Hi, world", "annotations": [], "logprobs": []}
        ],
    }
    assert events[-2]["item"] == message
    response = events[-1]["response"]
    assert response["output"] == [message]
    assert response["completed_at"] == 1_700_000_001.5
    assert response["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 8,
    }
    assert events[0]["response"] == {
        **response,
        "status": "in_progress",
        "output": [],
        "usage": None,
        "completed_at": None,
    }


def test_a_delta_is_written_as_it_is_read() -> None:
    (delta,) = [event for event in told(words('"')) if event.type.endswith(".delta")]
    assert delta.data == (
        b'{"type":"response.output_text.delta","item_id":"%b","output_index":0,'
        b'"content_index":0,"delta":"\\"","logprobs":[],"sequence_number":4}' % MESSAGE.encode()
    )


def test_the_object_is_that_of_the_last_event() -> None:
    answer = answer_events()
    for entry in [*words("Hi"), done()]:
        events = answer.take_event(entry)
    assert answer.is_over
    assert orjson.loads(events[-1].data)["response"] == answer.response()
    entry = done()
    assert isinstance(entry, ObjectEvent)
    assert answer.outcome == outcome_of(entry.data["response"])
    assert answer.take_event(entry) == []
