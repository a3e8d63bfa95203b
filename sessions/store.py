"""`SessionStore`: conversations, runs and their logs in Redis, which outlive every connection.

Each method is one promise. Whatever changes more than one key is a Lua script, so it happens whole
or not at all, and may be repeated with the same arguments: a lost reply never doubles anything.
All ids are checked by shape before Redis sees them, and `uid` decides whose they are: a foreign id
is answered exactly like an unknown one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import orjson

from sessions.arguments import check_uid
from sessions.base import PUBLISH
from sessions.checks import check_redis
from sessions.client import RedisClient
from sessions.conversations import Conversations
from sessions.keys import RATE_MS, Keys
from sessions.records import Allowed, Limited
from sessions.responses import Responses


class SessionStore(Conversations, Responses):
    """The one store: what `Conversations` and `Responses` say, on one connection.

    Any method may raise `StoreUnavailable`; a cancelled one harms no other.
    """

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        prefix: str = "parley:",
        lease_seconds: float = 10.0,
        keep_seconds: float = 600.0,
        idempotency_seconds: float = 86400.0,
    ) -> Self:
        """Connect and check that this Redis can keep our promises.

        Raises `StoreUnavailable` when nothing answers and `StoreRefused`, with one line for the
        operator, when what answers would lose data or lacks a command.
        """
        client = RedisClient(url)
        try:
            keys = Keys(prefix)
            await check_redis(client, keys)
        except BaseException:
            await client.close()
            raise
        return cls(
            client,
            keys,
            lease_seconds=lease_seconds,
            keep_seconds=keep_seconds,
            idempotency_seconds=idempotency_seconds,
        )

    async def close(self) -> None:
        """Fail what is still waiting and close the connection. May be called twice."""
        await self.client.close()

    async def ping(self) -> None:
        """Return if Redis answers within a second and can write its disk."""
        await self.client.call("PING")

    # ---- messages between workers, limits --------------------------------------------------------

    async def publish_user(self, uid: str, frame: Mapping[str, Any]) -> None:
        """Send a frame to every worker that has this user connected. It is not stored."""
        check_uid(uid)
        await self.client.call(PUBLISH, self.keys.user_channel(uid), orjson.dumps(dict(frame)))

    async def publish_control(self, replica: str, command: Mapping[str, Any]) -> bool:
        """Send a command to one worker; False means that nobody listened. It is not stored."""
        channel = self.keys.control_channel(replica)
        receivers = await self.client.call(PUBLISH, channel, orjson.dumps(dict(command)))
        return int(receivers) > 0

    async def take_rate(
        self, uid: str, field: str, *, interval_seconds: float, burst: int, cost: int = 1
    ) -> Allowed | Limited:
        """Take `cost` from a bucket that holds `burst` and gains one per `interval_seconds`."""
        check_uid(uid)
        reply = await self.client.script(
            "take_rate",
            [self.keys.user_rates(uid)],
            (field, int(interval_seconds * 1_000_000), burst, cost, RATE_MS),
        )
        if reply[0] == b"limited":
            return Limited(retry_after_ms=reply[1])
        return Allowed(remaining=reply[1], reset_ms=reply[2])
