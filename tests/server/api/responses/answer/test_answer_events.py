"""An answer's entries become OpenAI's events: each kind, each end, each number."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from server.api.responses.answer.answer_events import AnswerEvents, outcome_of
from server.api.responses.answer.emitter import AnswerEvent
from sessions.model.events import Event, ObjectEvent, TextEvent
from tests.end_to_end.sdks.environment import strict_problems

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


def events_of(entries: Sequence[Event], **options: Any) -> list[AnswerEvent]:
    answer = answer_events(**options)
    return [*answer.begin(), *(event for entry in entries for event in answer.take(entry))]


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


def test_words_are_sent_from_their_item_to_its_end() -> None:
    events = read(events_of([*words("Hi, wor", "ld"), done()]))
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
    (delta,) = [event for event in events_of(words('"')) if event.type.endswith(".delta")]
    assert delta.data == (
        b'{"type":"response.output_text.delta","item_id":"%b","output_index":0,'
        b'"content_index":0,"delta":"\\"","logprobs":[],"sequence_number":4}' % MESSAGE.encode()
    )


def test_the_object_is_that_of_the_last_event() -> None:
    answer = answer_events()
    for entry in [*words("Hi"), done()]:
        events = answer.take(entry)
    assert answer.is_over
    assert orjson.loads(events[-1].data)["response"] == answer.response()
    entry = done()
    assert isinstance(entry, ObjectEvent)
    assert answer.outcome == outcome_of(entry.data["response"])
    assert answer.take(entry) == []


# ---- each kind of item, and each end ------------------------------------------------------------

LOGPROB = {"token": "Hé", "logprob": -0.5, "top": [{"token": "Ho", "logprob": -1.0}]}
CALL = {"type": "function_call", "id": "fc", "call_id": "call_1", "name": "rain", "arguments": ""}
OUTPUT = {
    "type": "function_call_output",
    "id": "fco",
    "call_id": "call_1",
    "name": "rain",
    "server_label": "sky",
    "output": "wet",
}


def thought(text: str) -> Event:
    return ObjectEvent({"type": "response.reasoning_text.delta", "text_offset": 0, "delta": text})


def added(item: Mapping[str, Any], place: int = 0) -> Event:
    return ObjectEvent(
        {"type": "response.output_item.added", "output_index": place, "item": dict(item)}
    )


def arguments(delta: str, place: int = 0) -> Event:
    kind = "response.function_call_arguments.delta"
    return ObjectEvent({"type": kind, "output_index": place, "delta": delta})


def over(item: Mapping[str, Any], status: str = "completed", place: int = 0) -> Event:
    item = {**item, "status": status}
    return ObjectEvent({"type": "response.output_item.done", "output_index": place, "item": item})


CALLED = [added(CALL), arguments('{"a":'), arguments("1}"), over(CALL)]
KINDS: dict[str, list[Event]] = {
    "nothing": [done()],
    "words": [*words("Hi"), done()],
    "log probabilities": [TextEvent(0, "Hé", logprobs=(LOGPROB,)), done()],
    "thoughts": [thought("Hm."), *words("Hi"), done()],
    "only thoughts": [thought("Hm."), done("incomplete", "max_output_tokens")],
    "a call": [*CALLED, done(reason="tool_calls")],
    "a call that is cut": [added(CALL), arguments('{"a'), done("incomplete", "max_output_tokens")],
    "a call that is no JSON": [added(CALL), arguments("{"), over(CALL, "failed"), done()],
    "words, thoughts, words": [*words("Hi"), thought("Hm."), *words("Ho"), done()],
    "the server's call": [
        *CALLED,
        added({**OUTPUT, "output": "", "status": "in_progress"}),
        over(OUTPUT),
        done(reason="tool_calls"),
    ],
    "the server's call that fails": [*CALLED, over(OUTPUT, "failed"), done(reason="tool_calls")],
    "the server's call that is stopped": [
        *CALLED,
        added({**OUTPUT, "output": "", "status": "awaiting_consent"}),
        done("cancelled", "client_cancelled", by="user"),
    ],
    "too long": [*words("Hi"), done("incomplete", "max_output_tokens")],
    "too slow": [*words("Hi"), done("incomplete", "deadline")],
    "filtered": [*words("Hi"), done("incomplete", "content_filter")],
    "its owner is lost": [*words("Hi"), done("incomplete", "owner_lost")],
    "failed": [done("failed", "engine_error")],
    "a form is refused": [done("failed", "output_format_refused", message="no such form")],
    "cancelled": [*words("Hi"), done("cancelled", "client_cancelled", by="user")],
    "steered": [*words("Hi"), done("cancelled", "steered", by="user")],
}


def events_of_kind(name: str) -> list[dict[str, Any]]:
    is_server_s = name.startswith("the server's")
    return read(events_of(KINDS[name], server_of=lambda tool: "sky" if is_server_s else None))


def test_openais_own_types_take_every_event_and_object() -> None:
    events = [event for name in KINDS for event in events_of_kind(name)]
    objects = [event["response"] for event in events if "response" in event]
    items = [event["item"] for event in events if "item" in event]
    given = [("responses:ResponseStreamEvent", event) for event in events]
    given += [("responses:Response", each) for each in objects]
    given += [("responses:ResponseOutputItem", each) for each in items]
    assert strict_problems(given) == ""


def test_thoughts_come_before_words_each_in_an_item_of_its_own() -> None:
    events = events_of_kind("thoughts")
    assert [brief(event) for event in events[2:-1]] == [
        ("output_item.added", 0, "reasoning"),
        ("content_part.added", 0, "reasoning_text"),
        *(("reasoning_text.delta", 0, each) for each in "Hm."),
        ("reasoning_text.done", 0, "Hm."),
        ("content_part.done", 0, "reasoning_text"),
        ("output_item.done", 0, "reasoning"),
        ("output_item.added", 1, "message"),
        ("content_part.added", 1, "output_text"),
        *(("output_text.delta", 1, each) for each in "Hi"),
        ("output_text.done", 1, "Hi"),
        ("content_part.done", 1, "output_text"),
        ("output_item.done", 1, "message"),
    ]
    assert events[-1]["response"]["output"][0] == {
        "id": f"rs_{TAIL}",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
        "status": "completed",
    }


def test_a_call_is_sent_with_its_arguments() -> None:
    events = events_of_kind("a call")
    assert [brief(event) for event in events[2:-1]] == [
        ("output_item.added", 0, "function_call"),
        *(("function_call_arguments.delta", 0, each) for each in '{"a":1}'),
        ("function_call_arguments.done", 0, '{"a":1}'),
        ("output_item.done", 0, "function_call"),
    ]
    assert events[-2]["item"] == {
        "id": f"fc_{TAIL}_0",
        "type": "function_call",
        "call_id": "call_1",
        "name": "rain",
        "arguments": '{"a":1}',
        "status": "completed",
    }


def test_what_becomes_of_the_servers_call_is_sent_after_it() -> None:
    events = events_of_kind("the server's call")
    assert [brief(event) for event in events[-6:-1]] == [
        ("mcp_call_arguments.delta", 0, "}"),
        ("mcp_call_arguments.done", 0, '{"a":1}'),
        ("mcp_call.in_progress", 0),
        ("mcp_call.completed", 0),
        ("output_item.done", 0, "mcp_call"),
    ]
    assert events[-2]["item"] == {
        "id": f"mcp_{TAIL}_0",
        "type": "mcp_call",
        "server_label": "sky",
        "name": "rain",
        "arguments": '{"a":1}',
        "output": "wet",
        "error": None,
        "status": "completed",
    }
    failed = events_of_kind("the server's call that fails")
    assert failed[-3]["type"] == "response.mcp_call.failed"
    assert failed[-2]["item"]["error"] == {"type": "mcp_tool_execution_error", "content": "wet"}


def test_what_comes_before_a_call_is_done_waits_for_it() -> None:
    second = {**CALL, "call_id": "call_2"}
    early = [added(CALL), added(second, 1), arguments("{}", 1), over(second, place=1)]
    usual = [added(CALL), over(CALL), added(second, 1), arguments("{}", 1), over(second, place=1)]
    assert events_of([*early, over(CALL), done()]) == events_of([*usual, done()])


def test_log_probabilities_go_with_the_next_delta_and_with_the_whole() -> None:
    events = events_of_kind("log probabilities")
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    token = {"token": "Hé", "logprob": -0.5, "top_logprobs": [{"token": "Ho", "logprob": -1.0}]}
    assert [event["logprobs"] for event in deltas] == [[token], []]
    (text,) = [event for event in events if event["type"] == "response.output_text.done"]
    assert text["logprobs"] == [token]
    (part,) = events[-1]["response"]["output"][0]["content"]
    assert part["logprobs"][0]["bytes"] == [72, 195, 169]
    assert part["logprobs"][0]["top_logprobs"] == [
        {"token": "Ho", "bytes": [72, 111], "logprob": -1.0}
    ]


def ending(name: str) -> tuple[Any, ...]:
    event = events_of_kind(name)[-1]
    response = event["response"]
    details = response["incomplete_details"]
    reason = None if details is None else details["reason"]
    status = [item["status"] for item in response["output"]]
    return event["type"].removeprefix("response."), response["status"], reason, *status


def test_an_end_is_one_that_clients_know() -> None:
    assert ending("words") == ("completed", "completed", None, "completed")
    assert ending("nothing") == ("completed", "completed", None)
    assert ending("too long") == ("incomplete", "incomplete", "max_output_tokens", "incomplete")
    assert ending("too slow") == ("incomplete", "incomplete", "max_output_tokens", "incomplete")
    assert ending("filtered") == ("incomplete", "incomplete", "content_filter", "incomplete")
    assert ending("its owner is lost") == ("incomplete", "incomplete", None, "incomplete")
    assert ending("cancelled") == ("incomplete", "cancelled", None, "incomplete")
    assert ending("steered") == ("incomplete", "incomplete", "steered", "incomplete")
    assert ending("a call that is cut")[3:] == ("incomplete",)
    assert ending("a call that is no JSON")[3:] == ("incomplete",)


def test_a_failure_says_why() -> None:
    failed = events_of_kind("failed")[-1]["response"]
    assert failed["error"] == {"code": "server_error", "message": "the engine has failed"}
    refused = events_of_kind("a form is refused")[-1]["response"]
    assert refused["error"] == {"code": "invalid_prompt", "message": "no such form"}
    assert (failed["status"], failed["completed_at"]) == ("failed", None)


def test_an_end_that_is_not_stored_yet_is_none() -> None:
    early = done()
    assert isinstance(early, ObjectEvent)
    assert events_of([ObjectEvent({**early.data, "durable": False})]) == events_of([])
