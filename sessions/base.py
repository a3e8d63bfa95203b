"""What both halves of the store stand on: a client, the key names, the indexes, the lifetimes."""

from __future__ import annotations

from typing import Final

from sessions.client import RedisClient
from sessions.indexes import Indexes
from sessions.keys import SESSION_LOG_ENTRIES, SESSION_LOG_MS, Keys

PUBLISH: Final = "PUBLISH"  # SPUBLISH is for clusters of 7.0 and later
LOG_LIMITS: Final = (SESSION_LOG_ENTRIES, SESSION_LOG_MS)


class StoreBase:
    """One client and one set of key names, shared by everything that the store does."""

    def __init__(
        self,
        client: RedisClient,
        keys: Keys,
        *,
        lease_seconds: float,
        keep_seconds: float,
        idempotency_seconds: float,
    ) -> None:
        self.client = client
        self.keys = keys
        self._indexes = Indexes(client, keys)
        self._lease_ms = int(lease_seconds * 1000)
        self._keep_ms = int(keep_seconds * 1000)
        self._idempotency_ms = int(idempotency_seconds * 1000)

    def _session_keys(self, session_id: str, *suffixes: str) -> list[str]:
        return [self.keys.session(session_id, suffix) for suffix in suffixes]

    def _publish_to(self, session_id: str) -> tuple[str, str]:
        return PUBLISH, self.keys.session_channel(session_id)
