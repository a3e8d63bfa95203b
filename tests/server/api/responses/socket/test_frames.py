"""What clients say on the websocket: all of it is read, or refused in words."""

import json
import random
from typing import Any

import msgspec
import orjson
import pytest

from server.api.responses.socket.events import on_lane, refusal
from server.api.responses.socket.frames import Cancel, Create, Refused, Steer, parse
from server.protocol.errors import ApiError

CREATE = {
    "type": "response.create",
    "model": "m",
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}],
    "stream_id": "lane",
    "metadata": {"a": "b"},
    "temperature": 0.5,
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
}
STEER = {"type": "response.steer", "previous_response_id": "r", "input": "a"}
CANCEL = {"type": "response.cancel", "response_id": "r", "stream_id": "lane"}


def said(frame: Any) -> dict[str, Any]:
    return {"type": "websocket.receive", "text": json.dumps(frame)}


def test_each_frame_is_read() -> None:
    create = parse(said(CREATE))
    assert isinstance(create, Create) and create.stream_id == "lane"
    left = {name: value for name, value in CREATE.items() if name not in ("type", "stream_id")}
    assert create.body == left and create.request.temperature == 0.5
    assert parse(said(STEER)) == Steer("response.steer", "r", "a")
    assert parse(said(CANCEL)) == Cancel("response.cancel", "r", "lane")


def test_bytes_are_read_like_text_and_whole_fractions_like_integers() -> None:
    frame = {**CREATE, "max_output_tokens": 4.0, "stream": True, "generate": True}
    create = parse({"type": "websocket.receive", "bytes": json.dumps(frame).encode()})
    assert isinstance(create, Create) and create.request.max_output_tokens == 4
    assert "stream" not in create.body and "generate" not in create.body
    with pytest.raises(Refused) as refused:
        parse({"type": "websocket.receive", "bytes": b"\xff"})
    assert refused.value.error.code == "invalid_json"


def mutated(chance: random.Random, value: Any) -> Any:
    """The same with something else somewhere."""
    if chance.random() < 0.2:
        odd: list[Any] = [
            None,
            True,
            -1,
            1e300,
            "",
            "x" * 200,
            [],
            {},
            [[]],
            {"type": "message"},
            "\x00é😀",
        ]
        return chance.choice(odd)
    if isinstance(value, dict):
        kept = {k: mutated(chance, v) for k, v in value.items() if chance.random() < 0.95}
        return {**kept, "extra": 1} if chance.random() < 0.05 else kept
    if isinstance(value, list):
        return [mutated(chance, each) for each in value] * chance.choice([1, 1, 1, 0, 2])
    return value


def test_whatever_comes_is_read_or_refused_with_its_lane() -> None:
    chance = random.Random(5)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(3000):
        frame = mutated(chance, chance.choice([CREATE, STEER, CANCEL]))
        try:
            parse(said(frame))
            outcomes["read"] += 1
        except Refused as refused:
            outcomes["refused"] += 1
            given = frame.get("stream_id") if isinstance(frame, dict) else None
            assert refused.stream_id == (given if isinstance(given, str) else None)
            assert refused.error.http_status < 500
    assert min(outcomes.values()) > 300


def test_a_refusal_says_what_http_would() -> None:
    error = ApiError("rate_limited", "later", param="p", retry_after_ms=7)
    assert orjson.loads(refusal(error, "lane", 3)) == {
        "type": "error",
        "status": 429,
        "error": {
            "type": "rate_limit_error",
            "code": "rate_limited",
            "message": "later",
            "param": "p",
            "headers": {"retry-after-ms": "7"},
        },
        "sequence_number": 3,
        "stream_id": "lane",
    }
    assert "stream_id" not in orjson.loads(refusal(error))


def test_the_name_of_a_lane_is_added_to_an_event() -> None:
    event = msgspec.json.encode({"type": "t"})
    assert on_lane(event, None) == event
    assert orjson.loads(on_lane(event, 'a"é')) == {"type": "t", "stream_id": 'a"é'}
