"""What other workers store, as it happens: one pub/sub connection for a worker.

Pub/sub promises nothing, so two things are done about it. Numbers: a follower of a log subscribes
first, then reads it, then drops what was already read. And distrust: the feed sends itself a probe
every few seconds through the whole path, in a cluster from each primary; one that does not come
back within `probe_timeout_seconds` means that a link is dead, however alive the socket looks. After
each reconnection everything is subscribed again and then the `on_resync` callbacks run, because
what was published in between is lost: they must read the logs again by number.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Self

from redis import exceptions
from redis.asyncio.connection import AbstractConnection

from sessions.background import first_of, start
from sessions.connection.client import RedisClient
from sessions.connection.deadlines import within
from sessions.model.codec import decode_live
from sessions.model.errors import StoreUnavailable
from sessions.model.events import LivePayload
from sessions.model.keys import Keys

logger = logging.getLogger("parley.sessions")

PROBE_SECONDS: Final = 3.0
PROBE_TIMEOUT_SECONDS: Final = 5.0
MAX_BACKOFF_SECONDS: Final = 0.5

Callback = Callable[[LivePayload], None]


class _Subscription:
    """A channel's callback, and whether Redis has confirmed the channel on this connection."""

    __slots__ = ("callback", "confirmed")

    def __init__(self, callback: Callback) -> None:
        self.callback = callback
        self.confirmed = asyncio.Event()


class LiveFeed:
    """Callbacks for channels, on one supervised connection.

    Callbacks run in the feed's task, in the order of publication, and must neither block nor raise
    (what they raise is logged). `async with LiveFeed(…)` starts and ends the feed.
    """

    def __init__(
        self,
        client: RedisClient,
        keys: Keys,
        *,
        probe_seconds: float = PROBE_SECONDS,
        probe_timeout_seconds: float = PROBE_TIMEOUT_SECONDS,
    ) -> None:
        self._client = client
        self._keys = keys
        self._probe_seconds = probe_seconds
        self._probe_timeout_seconds = probe_timeout_seconds
        self._probe_channel = keys.probe_channel(secrets.token_urlsafe(9))
        self._subscriptions: dict[str, _Subscription] = {}
        self._unconfirmed: Counter[str] = Counter()  # channel -> SUBSCRIBEs on their way
        self._probe_heard = asyncio.Event()
        self._num_heard = 0  # of this round's probes
        self._resync_callbacks: list[Callable[[], None]] = []
        self._connection: AbstractConnection | None = None
        self._connected = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        """Whether every channel is subscribed on a connection that is thought to be alive."""
        return self._connected.is_set()

    @property
    def own_channel(self) -> str:
        """A channel that nobody else has subscribed: with it come all the others."""
        return self._probe_channel

    def hears(self, channel: str) -> bool:
        """Whether Redis has confirmed that channel, and it was not left since."""
        subscription = self._subscriptions.get(channel)
        return subscription is not None and subscription.confirmed.is_set()

    def on_resync(self, callback: Callable[[], None]) -> None:
        """Call this after each reconnection, when everything is subscribed again."""
        self._resync_callbacks.append(callback)

    async def start(self) -> None:
        """Start the feed; it connects by itself, now or when Redis is back."""
        if self._task is None:
            self._task = start(self._supervise())

    async def close(self) -> None:
        """End the feed and its connection. May be called twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def subscribe(self, channel: str, callback: Callback) -> None:
        """Return when everything published on `channel` from now on reaches `callback`.

        A second subscription of a channel replaces its callback. Raises `StoreUnavailable` when
        Redis does not confirm in time; then, and when cancelled, nothing is subscribed.
        """
        subscription = self._subscriptions.get(channel)
        if subscription is None:
            subscription = self._subscriptions[channel] = _Subscription(callback)
            await self._send("SUBSCRIBE", [channel])
        subscription.callback = callback
        try:
            async with within(self._client.timeout_seconds):
                await subscription.confirmed.wait()
        except TimeoutError:
            await self._forget(channel, subscription)
            raise StoreUnavailable("Redis did not confirm a subscription") from None
        except asyncio.CancelledError:
            await self._forget(channel, subscription)
            raise

    async def unsubscribe(self, channel: str) -> None:
        """Call the channel's callback no more. Unknown channels are ignored."""
        subscription = self._subscriptions.get(channel)
        if subscription is not None:
            await self._forget(channel, subscription)

    async def _forget(self, channel: str, subscription: _Subscription) -> None:
        if self._subscriptions.get(channel) is subscription:
            del self._subscriptions[channel]
            await self._send("UNSUBSCRIBE", [channel])

    # ---- the connection --------------------------------------------------------------------------

    async def _supervise(self) -> None:
        """Connect, follow until it breaks, again: the first retry at once, later ones slower."""
        backoff = 0.0
        is_first = True
        while True:
            try:
                await asyncio.sleep(backoff * random.uniform(0.5, 1.0))
                backoff = min(MAX_BACKOFF_SECONDS, 2 * backoff or 0.02)
                async with within(self._probe_timeout_seconds):
                    connection = await self._connect()
                backoff = 0.0
                if not is_first:
                    self._resync()
                is_first = False
                await self._follow(connection)
            except (OSError, exceptions.RedisError, StoreUnavailable) as error:
                logger.info("live feed broken", extra={"error": type(error).__name__})
            finally:
                await self._disconnect()

    async def _connect(self) -> AbstractConnection:
        """A connection on which every channel is confirmed."""
        # RESP2: with RESP3 redis-py formats each push for a debug log, which would hold user text.
        connection = await self._client.open_connection(protocol=2)
        self._unconfirmed.clear()
        self._connection = connection  # from here on `subscribe` writes to it, too
        await self._send("SUBSCRIBE", [self._probe_channel, *self._subscriptions])
        while not self._all_confirmed():
            self._receive(await connection.read_response())
        self._connected.set()
        return connection

    def _all_confirmed(self) -> bool:
        waiting = (item for item in self._subscriptions.values() if not item.confirmed.is_set())
        return not self._unconfirmed[self._probe_channel] and not any(waiting)

    async def _follow(self, connection: AbstractConnection) -> None:
        """Hand out messages until the connection breaks or a probe does not come back."""
        for task in await first_of(self._read(connection), self._probe()):
            task.result()

    async def _read(self, connection: AbstractConnection) -> None:
        while True:
            self._receive(await connection.read_response())

    async def _probe(self) -> None:
        """Raise `ConnectionError` when a probe does not come back in time."""
        while True:
            self._num_heard = 0
            self._probe_heard.clear()
            try:
                async with within(self._probe_timeout_seconds):
                    num_sent = 1  # what Redis did not take is not heard either
                    with suppress(StoreUnavailable):
                        num_sent = len(
                            await self._client.everywhere("PUBLISH", self._probe_channel, b"")
                        )
                    while self._num_heard < num_sent:
                        self._probe_heard.clear()
                        await self._probe_heard.wait()
            except TimeoutError:
                raise ConnectionError("a probe did not come back") from None
            await asyncio.sleep(self._probe_seconds)

    async def _send(self, command: str, channels: Sequence[str]) -> None:
        """Write a command if there is a connection; the next one subscribes everything anyway."""
        connection = self._connection
        if connection is None or not connection.is_connected:
            return
        if command == "SUBSCRIBE":
            self._unconfirmed.update(channels)
        with suppress(OSError, exceptions.RedisError):
            await connection.send_packed_command(
                connection.pack_command(command, *channels), check_health=False
            )

    async def _disconnect(self) -> None:
        self._connected.clear()
        for subscription in self._subscriptions.values():
            subscription.confirmed.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    # ---- messages --------------------------------------------------------------------------------

    def _receive(self, message: list[bytes]) -> None:
        """One message of the connection: a confirmation, a probe, or a payload."""
        kind, channel = message[0], message[1].decode()
        if kind == b"subscribe":
            self._unconfirmed[channel] -= 1
            # A channel left and joined again is only joined when the last SUBSCRIBE is confirmed.
            if channel in self._subscriptions and self._unconfirmed[channel] <= 0:
                self._subscriptions[channel].confirmed.set()
        elif kind == b"message" and channel == self._probe_channel:
            self._num_heard += 1
            self._probe_heard.set()
        elif kind == b"message":
            self._deliver(channel, message[2])

    def _deliver(self, channel: str, payload: bytes) -> None:
        subscription = self._subscriptions.get(channel)
        if subscription is None:
            return
        try:
            subscription.callback(decode_live(self._keys.session_of_channel(channel), payload))
        except Exception:
            logger.exception("live payload not delivered")

    def _resync(self) -> None:
        for callback in self._resync_callbacks:
            try:
                callback()
            except Exception:
                logger.exception("resync callback failed")
