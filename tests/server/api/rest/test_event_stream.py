"""Server-sent events: frames in order with their positions, heartbeats, one end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from server.api.rest import event_stream
from server.api.rest.event_stream import (
    EventStream,
    HttpViewer,
    encode_event,
    head_of,
    parse_event_id,
)
from server.protocol.encoding import encode
from server.protocol.errors import ApiError
from tests.helpers.patience import PATIENCE

DONE = {"type": "response.done", "sequence_number": 9, "fence": 2}


class Exchange:
    """One request to an `EventStream`, with what it sends."""

    def __init__(
        self, viewer: HttpViewer, check: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.sent: list[dict[str, Any]] = []
        self.num_left = 0
        self.gone = asyncio.Event()
        self._progress = asyncio.Condition()
        self._stream = EventStream(viewer, check=check or self._check, leave=self._leave)

    async def _check(self) -> None:
        return

    async def _leave(self) -> None:
        self.num_left += 1

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        async with self._progress:
            self.sent.append(message)
            self._progress.notify_all()

    async def sends(self, body: bytes | None) -> None:
        """Wait until it has sent that, or its head for None."""
        async with asyncio.timeout(PATIENCE), self._progress:
            await self._progress.wait_for(
                lambda: any(message.get("body") == body for message in self.sent)
            )

    async def run(self) -> bytes:
        """Serve until the end; returns the body."""
        async with asyncio.timeout(PATIENCE):
            await self._stream({"type": "http"}, self._receive, self._send)
        return b"".join(message.get("body", b"") for message in self.sent)


def event_of(frame: dict[str, Any]) -> bytes:
    encoded = encode(frame)
    return encode_event(head_of(encoded), encoded)


def test_a_numbered_frame_carries_its_position() -> None:
    frame = {"type": "response.output_text.delta", "sequence_number": 7, "fence": 2, "delta": "a\n"}
    event = event_of(frame).decode()
    assert event.startswith("event: response.output_text.delta\ndata: {")
    assert event.endswith("\nid: 2.7\n\n") and event.count("\n") == 4


def test_only_the_last_part_of_a_snapshot_carries_a_position() -> None:
    snapshot = {"type": "response.output_text.snapshot", "sequence_number": 7, "fence": 1}
    assert b"\nid:" not in event_of({**snapshot, "part": 1, "parts": 2})
    assert event_of({**snapshot, "part": 2, "parts": 2}).endswith(b"\nid: 1.7\n\n")


def test_other_frames_carry_none() -> None:
    assert b"\nid:" not in event_of({"type": "response.queued", "position": 1})


@pytest.mark.parametrize("value", ["", "1", ".", "1.", ".1", "a.1", "-1.1", "1.1.1", "1.٣"])
def test_a_broken_event_id_is_refused(value: str) -> None:
    with pytest.raises(ValueError):
        parse_event_id(value)


def test_an_event_id_names_fence_and_number() -> None:
    assert parse_event_id("3.41") == (3, 41)


async def test_the_stream_ends_with_the_response() -> None:
    viewer = HttpViewer("alice")
    viewer.outbox.put({"type": "response.queued"})
    viewer.outbox.put(DONE)
    viewer.outbox.put({"type": "response.queued"})
    exchange = Exchange(viewer)
    body = await exchange.run()
    assert [line for line in body.split(b"\n") if line.startswith(b"event")] == [
        b"event: response.queued",
        b"event: response.done",
    ]
    assert exchange.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert exchange.num_left == 1


async def test_a_stream_goes_on_after_an_end_that_is_not_stored_yet() -> None:
    """Nor is that end a position to come back with: it would seem that nothing is missing."""
    viewer = HttpViewer("alice")
    response = {"status": "completed", "status_details": {"reason": "eos"}}
    viewer.outbox.put({**DONE, "response": response, "durable": False})
    viewer.outbox.put({**DONE, "response": response, "durable": True})
    body = await Exchange(viewer).run()
    assert body.count(b"event: response.done\n") == 2
    assert body.count(b"\nid: 2.9\n") == 1


async def test_a_stream_ends_with_what_will_never_be_stored() -> None:
    viewer = HttpViewer("alice")
    response = {"status": "failed", "status_details": {"reason": "store_lost"}}
    viewer.outbox.put({**DONE, "response": response, "durable": False})
    assert b"store_lost" in await Exchange(viewer).run()


async def test_silence_is_broken_by_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "HEARTBEAT_SECONDS", 0.01)
    viewer = HttpViewer("alice")
    exchange = Exchange(viewer)
    serving = asyncio.create_task(exchange.run())
    await exchange.sends(b": hb\n\n")
    viewer.outbox.put(DONE)
    assert b"response.done" in await serving


async def test_a_reader_that_goes_away_only_leaves() -> None:
    exchange = Exchange(HttpViewer("alice"))
    exchange.gone.set()
    await exchange.run()
    assert exchange.num_left == 1


async def test_a_response_that_is_gone_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "CHECK_SECONDS", 0.01)

    async def check() -> None:
        raise ApiError("response_not_found", "no such response")

    body = await Exchange(HttpViewer("alice"), check).run()
    assert b"event: error\n" in body and b"response_not_found" in body


async def test_what_was_taken_before_a_check_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "CHECK_SECONDS", 0.0)
    viewer = HttpViewer("alice")
    viewer.outbox.put({"type": "response.queued"})

    async def check() -> None:
        raise ApiError("response_not_found", "no such response")

    body = await Exchange(viewer, check).run()
    assert [line for line in body.split(b"\n") if line.startswith(b"event")] == [
        b"event: response.queued",
        b"event: error",
    ]


async def test_a_restart_tells_the_reader_to_come_again() -> None:
    viewer = HttpViewer("alice")
    exchange = Exchange(viewer)
    serving = asyncio.create_task(exchange.run())
    await exchange.sends(None)
    viewer.close_soon()
    assert b"event: connection.draining\n" in await serving


@pytest.mark.row("N4")
async def test_a_reader_that_falls_far_behind_hears_why_it_is_sent_away() -> None:
    viewer = HttpViewer("alice")
    for _ in range(20):
        viewer.outbox.put({"type": "response.queued", "padding": "x" * 100_000})
    exchange = Exchange(viewer)
    body = await exchange.run()
    assert body.startswith(b"event: error\n") and b"slow_consumer" in body
    assert len(exchange.sent) == 3 and exchange.num_left == 1  # the head, why, and the end
