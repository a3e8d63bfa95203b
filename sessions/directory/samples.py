"""Samples: what each worker measured lately, from which any worker can draw the recent past.

Two spans are kept, a short one in fine steps and a day in coarse ones. The next sample of any
worker removes older ones. The content is the caller's.
"""

from __future__ import annotations

from typing import Final, Literal

from sessions.connection.client import RedisClient
from sessions.model.keys import Keys

Span = Literal["15m", "24h"]

SPAN_MS: Final[dict[Span, int]] = {"15m": 900_000, "24h": 86_400_000}


class Samples:
    """Any method may raise `StoreUnavailable`."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def add(self, span: Span, at: int, body: bytes) -> None:
        """Keep a sample of that moment (ms since 1970). The same one again changes nothing."""
        key = self._keys.samples(span)
        await self._client.calls(
            ("ZADD", key, at, body),
            ("ZREMRANGEBYSCORE", key, "-inf", at - SPAN_MS[span]),
            ("PEXPIRE", key, SPAN_MS[span]),
        )

    async def since(self, span: Span, at: int) -> list[bytes]:
        """The samples after that moment, oldest first."""
        key = self._keys.samples(span)
        found = await self._client.call("ZRANGEBYSCORE", key, f"({at}", "+inf")
        return [bytes(body) for body in found]
