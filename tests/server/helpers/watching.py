"""A connection as the hub sees it, and a feed that brings nothing by itself."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson

from server.live.hub import Hub
from server.live.outbox import Outbox
from server.live.sent_ends import SentEnds
from server.live.subscription import Subscription
from server.protocol.encoding import of_stored
from server.protocol.objects import MessageObject
from server.protocol.server_frames import MessageCreated, MessageUpdated
from sessions.model.events import LivePayload
from sessions.model.records import Message
from tests.helpers.patience import PATIENCE
from tests.server.helpers.entries import MESSAGE
from tests.sessions.helpers.chat import Chat

Callback = Callable[[LivePayload], None]


class Viewer:
    """Watches; `next` is what its writer would send."""

    def __init__(self, uid: str = "alice") -> None:
        self.uid = uid
        self.outbox = Outbox(lambda: None)
        self.sent_ends = SentEnds()
        self.evicted_for: str | None = None

    def evict(self, reason: str) -> None:
        self.evicted_for = reason

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            frame: dict[str, Any] = orjson.loads(await self.outbox.get())
            return frame

    async def sent(self) -> list[dict[str, Any]]:
        """Everything that waits now."""
        self.outbox.put({"type": "end of test"})
        frames: list[dict[str, Any]] = []
        while not frames or frames[-1]["type"] != "end of test":
            frames.append(await self.next())
        # Deltas leave when no control frame waits any more.
        while True:
            getting = asyncio.ensure_future(self.outbox.get())
            await asyncio.sleep(0)
            if not getting.done():
                getting.cancel()
                await asyncio.gather(getting, return_exceptions=True)
                return [frame for frame in frames if frame["type"] != "end of test"]
            frames.append(orjson.loads(getting.result()))


class SilentFeed:
    """Stands for `LiveFeed`: knows who subscribed, and delivers what the test tells it to."""

    is_connected = True

    def __init__(self) -> None:
        self.channels: dict[str, Callback] = {}
        self.calls: Counter[str] = Counter()
        self.resync: Callable[[], None] = lambda: None

    def on_resync(self, callback: Callable[[], None]) -> None:
        self.resync = callback

    async def subscribe(self, channel: str, callback: Callback) -> None:
        self.calls["subscribe"] += 1
        await asyncio.sleep(0)
        self.channels[channel] = callback

    async def unsubscribe(self, channel: str) -> None:
        self.calls["unsubscribe"] += 1
        await asyncio.sleep(0)
        self.channels.pop(channel, None)

    def deliver(self, channel: str, payload: LivePayload) -> None:
        self.channels[channel](payload)


async def join(hub: Hub, chat: Chat, viewer: Viewer) -> Subscription:
    """A subscription that has its snapshot."""
    subscription = Subscription(viewer, chat.session_id)
    await hub.join(subscription)
    session = await chat.store.sessions.get(chat.uid, chat.session_id)
    subscription.end_join(session.offset)
    return subscription


def publish(hub: Hub, chat: Chat, offset: int, message: Message = MESSAGE) -> None:
    """A message of this worker, as a session event: a new one, or one that has ended."""
    kind = MessageCreated if message.status == "in_progress" else MessageUpdated
    about = of_stored(MessageObject, message.event_wire())
    hub.publish_session(kind(session_id=chat.session_id, offset=offset, message=about))


def kinds(frames: list[dict[str, Any]]) -> list[str]:
    return [
        frame["type"].removeprefix("response.").removeprefix("output_text.") for frame in frames
    ]
