"""`Auditor`: notes what admins do and read, before it happens. What cannot be noted does not.

`Actor` is the admin as the audit log knows them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from server.access.identities import User
from server.protocol.errors import ApiError
from server.protocol.titles import clean_title
from sessions.directory.audit import AuditLog

TRANSCRIPTS = "admin:transcripts"  # the scope for users' words
OPERATE = "admin:operate"  # the scope for how workers run
MAX_CHARACTERS = 1000  # of what an entry says; the routes have closer bounds


@dataclass(frozen=True, slots=True)
class Actor:
    """An admin, and where from."""

    user: User
    address: str

    @property
    def sees_transcripts(self) -> bool:
        return self.user.may(TRANSCRIPTS)


class Auditor:
    """One worker's pen. Any method may raise `StoreUnavailable`."""

    def __init__(self, log: AuditLog) -> None:
        self.log = log

    async def note(self, actor: Actor, action: str, target: str, reason: str = "") -> None:
        """Return when the entry is stored, in one line; the deed comes after."""
        await self.log.write(
            actor=actor.user.uid,
            action=action,
            target=clean_title(target)[:MAX_CHARACTERS],
            reason=clean_title(reason)[:MAX_CHARACTERS],
            address=actor.address,
        )

    async def observe(self, actor: Actor, session_id: str) -> None:
        """Let an admin watch a session. Raises `ApiError` `forbidden` without the scope."""
        if not actor.sees_transcripts:
            raise ApiError("forbidden", f"observing needs the scope {TRANSCRIPTS}", param="observe")
        await self.note(actor, "session.observe", session_id)


def changes(given: Mapping[str, Any]) -> str:
    """What was changed to what, for an entry: `name="Ada" roles=["user"]`. None is no change."""
    return " ".join(
        f"{name}={orjson.dumps(value).decode()}"
        for name, value in given.items()
        if value is not None
    )
