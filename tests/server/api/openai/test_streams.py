"""Streams: which way their parts go, and what keeps them alive."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.types import Message

from server.api.openai import streams
from server.api.openai.streams import HEARTBEAT, StreamBody, TokenStream
from tests.helpers.patience import PATIENCE


class Client:
    """Notes what comes to it, and by which way. It never leaves."""

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self.came: list[tuple[str, bytes]] = []
        self.has_beat = asyncio.Event()

    def write(self, part: bytes) -> None:
        self._note("straight", part)

    async def send(self, message: Message) -> None:
        if message.get("more_body"):
            self._note("sent", message["body"])

    async def receive(self) -> Any:
        await asyncio.Event().wait()

    def _note(self, way: str, part: bytes) -> None:
        self.came.append((way, part))
        if part == HEARTBEAT:
            self.has_beat.set()

    @property
    def body(self) -> StreamBody:
        return StreamBody({"type": "http", "extensions": {"parley.chunks": self}})


async def nothing() -> None:
    """Nobody has to leave."""


@pytest.mark.parametrize(("is_open", "way"), [(True, "straight"), (False, "sent")])
async def test_events_and_heartbeats_go_straight_while_nothing_waits_in_the_socket(
    monkeypatch: pytest.MonkeyPatch, *, is_open: bool, way: str
) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_SECONDS", 0.01)
    client = Client(is_open=is_open)

    async def events() -> AsyncGenerator[bytes, None]:
        yield b"event"
        await client.has_beat.wait()

    async with asyncio.timeout(PATIENCE):
        await TokenStream(events(), client.body, nothing)({}, client.receive, client.send)
    assert client.came[:2] == [(way, b"event"), (way, HEARTBEAT)]


def test_what_goes_straight_puts_the_heartbeat_off() -> None:
    body = Client(is_open=True).body
    body.sent_at = 0.0
    body.write(b"event")
    assert body.sent_at > 0


def test_below_another_server_nothing_goes_straight() -> None:
    assert not StreamBody({"type": "http"}).is_open()
