"""`Quotas`: how much one user may keep and use. 0 means unlimited.

Sessions and messages are counted by the scripts that would add one more, so a quota is exact and
nothing is stored of what goes beyond it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sessions.model.errors import QuotaExceeded

# The names of quotas, by which a refusal says which one was reached.
USER_TOKENS: Final = "user.tokens_per_day"
USER_SESSIONS: Final = "user.sessions"
USER_ANSWERS: Final = "user.answers"
GROUP_TOKENS: Final = "group.tokens_per_day"
GROUP_SESSIONS: Final = "group.sessions"
GROUP_ANSWERS: Final = "group.answers"
SESSION_MESSAGES: Final = "session.messages"
SESSION_BYTES: Final = "session.bytes"


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
            return QuotaExceeded("bytes in a session", self.bytes_per_session, quota=SESSION_BYTES)
        return QuotaExceeded(
            "messages in a session", self.messages_per_session, quota=SESSION_MESSAGES
        )


@dataclass(frozen=True, slots=True)
class OwnQuotas:
    """What an admin has set for one user; None: the server's setting holds. 0 means unlimited."""

    tokens_per_day: int | None = None
    sessions: int | None = None
    answers: int | None = None  # at a time


@dataclass(frozen=True, slots=True)
class GroupQuotas:
    """What the members of a group share. 0 means unlimited."""

    tokens_per_day: int = 0
    sessions: int = 0
    answers: int = 0  # at a time


@dataclass(frozen=True, slots=True)
class Allowance:
    """One user's own quotas, and the group whose quotas they share, if they are in one."""

    own: OwnQuotas = field(default_factory=OwnQuotas)
    group: str | None = None
    shared: GroupQuotas = field(default_factory=GroupQuotas)

    @property
    def limits_answers(self) -> bool:
        """Whether answers at a time are counted, also where the server has no limit."""
        return self.group is not None or bool(self.own.answers)


@dataclass(frozen=True, slots=True)
class Budget:
    """The tokens of one day, of a user or a group. `reset_ms`: until the next one begins.

    `held` are those that running answers of the group may still use. `quota` names the limit.
    `users_left` is of a group's: what is left of the user's own; None: those are unlimited.
    """

    limit: int
    used: int
    reset_ms: int
    held: int = 0
    quota: str = USER_TOKENS
    users_left: int | None = None

    @property
    def own_left(self) -> int | None:
        """What is left of the user's own tokens, whichever these are; None: any number."""
        return self.remaining if self.quota == USER_TOKENS else self.users_left

    @property
    def remaining(self) -> int:
        """Never below 0: answers of a user that run already may go beyond the user's limit."""
        return max(0, self.limit - self.used - self.held)


@dataclass(frozen=True, slots=True)
class Room:
    """Of `limit` answers at a time so many more may begin."""

    limit: int
    left: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What a user keeps, and has used on this day (UTC)."""

    num_sessions: int
    tokens_today: int


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """What a group keeps and has used on this day; `held` may be used by answers that run."""

    num_members: int
    num_sessions: int
    tokens_today: int
    tokens_held: int
