"""What comes over HTTP, in any pieces, → events → an answer."""

import json
from typing import Any

import pytest

from bench.peers.load.doors import Answer, EventParser, LoadError, take_event

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
BODY = b'data: {"a": 1}\n\n: a comment\n\ndata: {"b":\ndata: 2}\n\nevent: x\ndata: [DONE]\n\n'
EVENTS = [b'{"a": 1}', b'{"b":\n2}', b"[DONE]"]


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(f"{len(p):x}\r\n".encode() + p + b"\r\n" for p in [*pieces, b""])


def fed(data: bytes, size: int) -> list[bytes]:
    parser = EventParser()
    return [
        event
        for start in range(0, len(data), size)
        for event in parser.feed(data[start : start + size])
    ]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_are_found_however_the_bytes_are_cut(size: int) -> None:
    assert fed(HEAD + b"\r\n" + BODY, size) == EVENTS


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("chunk", [1, 3, 16, 1000])
def test_chunks_are_taken_apart(size: int, chunk: int) -> None:
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    assert fed(head + chunked(BODY, chunk), size) == EVENTS


def test_lines_may_end_in_carriage_returns() -> None:
    assert fed(HEAD + b"\r\n" + BODY.replace(b"\n", b"\r\n"), 1000) == EVENTS


def test_a_refusal_is_no_stream_and_keeps_its_body() -> None:
    parser = EventParser()
    head = b"HTTP/1.1 422 Unprocessable\r\ncontent-type: application/json\r\n\r\n"
    assert parser.feed(head + b'{"detail": "no"}') == []
    assert (parser.status, parser.body) == (422, b'{"detail": "no"}')
    assert not parser.is_stream


def take(answer: Answer, at: float, **body: Any) -> bool:
    return take_event(answer, at, json.dumps(body).encode())


def test_text_of_completions_and_of_chats_is_noted_with_its_moment() -> None:
    answer = Answer(asked=10.0)
    assert not take(answer, 10.5, choices=[{"delta": {"role": "assistant"}}])
    assert take(answer, 11.0, choices=[{"delta": {"content": " a"}}])
    assert take(answer, 12.0, choices=[{"delta": {"reasoning_content": " b"}}])
    assert take(answer, 14.0, choices=[{"text": " c"}])
    assert (answer.text, answer.arrivals) == (" a b c", [11.0, 12.0, 14.0])
    assert (answer.first_seconds, answer.gaps) == (1.0, [1.0, 2.0])


def test_tokens_are_counted_as_the_server_does() -> None:
    answer = Answer(asked=0.0, arrivals=[1.0, 3.0])
    usage = {
        "prompt_tokens": 128,
        "completion_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 64},
    }
    assert not take(answer, 3.0, choices=[], usage=usage)
    assert (answer.prompt_tokens, answer.num_tokens, answer.cached_tokens) == (128, 9, 64)
    assert answer.tokens_per_second == 4.0


def test_pieces_that_came_together_have_no_gap_between_them() -> None:
    answer = Answer(asked=0.0, arrivals=[1.0, 1.0, 2.0, 2.0, 4.0])
    assert (answer.moments, answer.gaps) == ([1.0, 2.0, 4.0], [1.0, 2.0])


def test_an_error_within_a_stream_is_raised() -> None:
    with pytest.raises(LoadError, match="out of memory"):
        take(Answer(0.0), 1.0, error={"message": "out of memory"})
