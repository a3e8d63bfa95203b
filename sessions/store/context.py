"""`StoreContext`: what each part of the store stands on: client, key names, indexes, lifetimes."""

from __future__ import annotations

from typing import Final

from sessions.connection.client import Command, RedisClient
from sessions.indexes.indexes import Indexes
from sessions.model.codec import SESSION_FIELDS
from sessions.model.keys import SESSION_LOG_ENTRIES, SESSION_LOG_MS, Keys
from sessions.model.quotas import Quotas

PUBLISH: Final = "PUBLISH"  # SPUBLISH is for clusters of 7.0 and later

LOG_LIMITS: Final = {"log_entries": SESSION_LOG_ENTRIES, "log_ms": SESSION_LOG_MS}
# Every key that lives and goes with its session, `m` first.
SESSION_SUFFIXES: Final = ("m", "msg", "tree", "ids", "runs", "q", "share")


class StoreContext:
    """One client and one set of key names, shared by all parts of a store."""

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
        self.indexes = Indexes(client, keys)
        self.quotas = quotas or Quotas()
        self.lease_ms = int(lease_seconds * 1000)
        self.idle_ms = int(idle_seconds * 1000)
        most_ms = self.idle_ms or SESSION_LOG_MS
        self.keep_ms = min(int(keep_seconds * 1000), self.idle_ms or int(keep_seconds * 1000))
        self.log_limits = {**LOG_LIMITS, "log_ms": min(SESSION_LOG_MS, most_ms)}
        self.idempotency_ms = int(idempotency_seconds * 1000)

    def session_keys(self, session_id: str, *suffixes: str) -> list[str]:
        """Some of a session's own keys."""
        return [self.keys.session(session_id, suffix) for suffix in suffixes]

    def run_keys(self, session_id: str, response_id: str) -> list[str]:
        """The keys of a run: its hash, its log, its token ids."""
        return [
            self.keys.run(session_id, response_id),
            self.keys.events(session_id, response_id),
            self.keys.token_ids(session_id, response_id),
        ]

    def read_session(self, session_id: str) -> Command:
        """The command whose reply `decode_session` takes."""
        return ("HMGET", self.keys.session(session_id, "m"), *SESSION_FIELDS)
