"""An answer on its way from worker to worker: what is lost there is noticed, and said."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from server.commands.stateless import relay as module
from server.commands.stateless.relay import Relay
from server.commands.stateless.reply import Reading, Reply
from server.protocol.errors import ApiError
from sessions.connection.feed import LiveFeed
from sessions.directory.calls import Calls, Place
from sessions.model.events import LiveFrame, LivePayload
from sessions.store.store import SessionStore
from tests.helpers.patience import PATIENCE

PLACE = Place("w0", "one")


class Site:
    """A relay, and what the other worker hears, whose part the test plays."""

    def __init__(self, store: SessionStore, feed: LiveFeed) -> None:
        self.calls = Calls(store.client, store.keys)
        self.relay = Relay(self.calls, feed, store.keys)
        self.reply = Reply("two")
        self._heard: asyncio.Queue[LiveFrame] = asyncio.Queue()

    def hear(self, payload: LivePayload) -> None:
        assert isinstance(payload, LiveFrame)
        self._heard.put_nowait(payload)

    async def command(self) -> tuple[str, str]:
        """The next one to the other worker, and the channel that it names."""
        async with asyncio.timeout(PATIENCE):
            data = (await self._heard.get()).data
        return data["type"], data["channel"]

    async def fetch(self) -> tuple["asyncio.Task[bool]", str]:
        """Begin, and give the channel on which the other worker is asked to answer."""
        fetching = asyncio.create_task(self.relay.fetch(PLACE, self.reply))
        kind, channel = await self.command()
        assert kind == "relay"
        return fetching, channel


@pytest.fixture
async def site(store: SessionStore) -> AsyncIterator[Site]:
    async with LiveFeed(store.client, store.keys) as feed:
        site = Site(store, feed)
        await feed.subscribe(store.keys.control_channel(PLACE.replica), site.hear)
        yield site
        await site.relay.close()


async def done(fetching: "asyncio.Task[bool]") -> bool:
    return await asyncio.wait_for(fetching, PATIENCE)


async def test_parts_and_headers_arrive_and_beats_say_nothing(site: Site) -> None:
    fetching, channel = await site.fetch()
    part = {"data": "é", "headers": [["x-a", "1"]]}
    frames: list[dict[str, Any]] = [{"found": True}, part, {}, {"end": True}]
    for number, frame in enumerate(frames):
        assert await site.calls.send(channel, {"n": number, **frame})
    assert await done(fetching)
    assert site.reply.take(0) == ("é".encode(), 1) and site.reply.headers == [(b"x-a", b"1")]
    assert await site.command() == ("relay_end", channel)


async def test_a_frame_that_is_lost_ends_it(site: Site) -> None:
    fetching, channel = await site.fetch()
    await site.calls.send(channel, {"n": 0, "found": True})
    await site.calls.send(channel, {"n": 2, "data": "two", "headers": []})
    with pytest.raises(ApiError) as lost:
        await done(fetching)
    assert lost.value.code == "engine_unavailable"
    assert await site.command() == ("relay_end", channel)


async def test_silence_ends_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE_SECONDS", 0.01)
    fetching, channel = await site.fetch()
    await site.calls.send(channel, {"n": 0, "found": True})
    with pytest.raises(ApiError):
        await done(fetching)


async def test_who_has_no_such_call_or_says_nothing_has_none(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetching, channel = await site.fetch()
    await site.calls.send(channel, {"n": 0, "found": False})
    assert not await done(fetching)
    monkeypatch.setattr(module, "FIND_SECONDS", 0.01)
    await site.command()
    fetching, _ = await site.fetch()
    assert not await done(fetching)


async def test_what_nobody_hears_is_not_made(site: Site) -> None:
    left = asyncio.Event()

    def on_leave(reply: Reply) -> None:
        left.set()

    site.reply.put(b"one")
    site.relay.send(Reading(site.reply, on_leave), "a channel of nobody")
    await asyncio.wait_for(left.wait(), PATIENCE)


async def test_an_answer_that_is_slow_beats(
    store: SessionStore, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.01)
    heard: asyncio.Queue[LivePayload] = asyncio.Queue()
    async with LiveFeed(store.client, store.keys) as feed:
        await feed.subscribe(store.keys.relay_channel("c"), heard.put_nowait)
        site.relay.send(Reading(site.reply, lambda _: None), "c")
        frames = [await asyncio.wait_for(heard.get(), PATIENCE) for _ in range(2)]
        assert frames == [LiveFrame({"n": 0, "found": True}), LiveFrame({"n": 1})]
        site.reply.end()
        async with asyncio.timeout(PATIENCE):
            data: dict[str, Any] = {}
            while "end" not in data:
                frame = await heard.get()
                assert isinstance(frame, LiveFrame) and frame.data.keys() <= {"n", "end"}
                data = frame.data
