"""`Quotas`: how much one user may keep and use. 0 means unlimited.

Sessions and messages are counted by the scripts that would add one more, so a quota is exact and
nothing is stored of what goes beyond it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sessions.model.errors import QuotaExceeded


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits of storage and use."""

    sessions_per_user: int = 10_000
    messages_per_session: int = 20_000
    bytes_per_session: int = 16 * 1024 * 1024  # of its messages, before they are compressed
    tokens_per_day: int = 0  # of prompts and answers, by user

    def session_error(self, what: str) -> QuotaExceeded:
        """What a script refuses that would add more to a session: `messages` or `bytes`."""
        if what == "bytes":
            return QuotaExceeded("bytes in a session", self.bytes_per_session)
        return QuotaExceeded("messages in a session", self.messages_per_session)


@dataclass(frozen=True, slots=True)
class Budget:
    """A user's tokens of one day. `reset_ms`: until the next one begins."""

    limit: int
    used: int
    reset_ms: int

    @property
    def remaining(self) -> int:
        """Never below 0: answers that run already may go beyond the limit."""
        return max(0, self.limit - self.used)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a user keeps, and has used on this day (UTC)."""

    num_sessions: int
    tokens_today: int
