"""Samples: what each worker measured lately, from which any worker can draw the recent past.

A short span is kept in fine steps, and longer ones in coarser steps. The next sample of any worker
removes those that are too old for their span. The content is the caller's.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal

from sessions.connection.client import Command, RedisClient
from sessions.model.keys import Keys

Span = Literal["15m", "24h", "7d", "30d"]

DAY_MS: Final = 86_400_000
SPAN_MS: Final[dict[Span, int]] = {
    "15m": 900_000,
    "24h": DAY_MS,
    "7d": 7 * DAY_MS,
    "30d": 30 * DAY_MS,
}


class Samples:
    """Any method may raise `StoreUnavailable`."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def add(
        self, span: Span, at: int, body: bytes, *, replacing: Collection[bytes] = ()
    ) -> None:
        """Keep a sample of that moment (ms since 1970), instead of others where there are any.

        The same one again changes nothing.
        """
        key = self._keys.samples(span)
        outdated: list[Command] = [("ZREM", key, *replacing)] if replacing else []
        await self._client.calls(
            *outdated,
            ("ZADD", key, at, body),
            ("ZREMRANGEBYSCORE", key, "-inf", at - SPAN_MS[span]),
            ("PEXPIRE", key, SPAN_MS[span]),
        )

    async def since(self, span: Span, at: int) -> list[tuple[int, bytes]]:
        """The samples after that moment with their own, oldest first."""
        key = self._keys.samples(span)
        found = await self._client.call("ZRANGEBYSCORE", key, f"({at}", "+inf", "WITHSCORES")
        return [(int(moment), body) for body, moment in found]
