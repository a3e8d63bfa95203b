"""What both halves of the store stand on: a client, the key names, the indexes, the lifetimes."""

from __future__ import annotations

from typing import Final

from sessions.connection.client import RedisClient
from sessions.indexes.indexes import Indexes
from sessions.model.keys import SESSION_LOG_ENTRIES, SESSION_LOG_MS, Keys
from sessions.model.quotas import Quotas

PUBLISH: Final = "PUBLISH"  # SPUBLISH is for clusters of 7.0 and later

LOG_LIMITS: Final = (SESSION_LOG_ENTRIES, SESSION_LOG_MS)
# Every key that lives and goes with its session, `m` first.
SESSION_SUFFIXES: Final = ("m", "msg", "tree", "ids", "runs", "q", "share")


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
        idle_seconds: float = 0.0,
        quotas: Quotas | None = None,
    ) -> None:
        """`idle_seconds`: an unused session goes after so long; 0 keeps it for ever."""
        self.client = client
        self.keys = keys
        self._indexes = Indexes(client, keys)
        self._lease_ms = int(lease_seconds * 1000)
        self.quotas = quotas or Quotas()
        self._idle_ms = int(idle_seconds * 1000)
        most_ms = self._idle_ms or SESSION_LOG_MS
        self._keep_ms = min(int(keep_seconds * 1000), self._idle_ms or int(keep_seconds * 1000))
        self._log_limits = (SESSION_LOG_ENTRIES, min(SESSION_LOG_MS, most_ms))
        self._idempotency_ms = int(idempotency_seconds * 1000)

    def _session_keys(self, session_id: str, *suffixes: str) -> list[str]:
        return [self.keys.session(session_id, suffix) for suffix in suffixes]

    def _publish_to(self, session_id: str) -> tuple[str, str]:
        return PUBLISH, self.keys.session_channel(session_id)
