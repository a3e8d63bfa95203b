"""What callers give to the store, checked before Redis sees it: user ids, idempotency keys."""

from __future__ import annotations

import re
from typing import Final

from sessions.model.errors import SessionNotFound
from sessions.model.ids import is_idempotency_key

_UID: Final = re.compile(r"[^\s{}]{1,128}\Z")


def check_uid(uid: str) -> None:
    """Raise `ValueError` for what cannot stand in a key or in a script's reply."""
    if not _UID.match(uid):
        raise ValueError("a user id is 1 to 128 characters with no space and no brace")


def owner_argument(uid: str | None) -> str | None:
    """The uid, checked; None makes a script skip its comparison with the owner."""
    if uid is not None:
        check_uid(uid)
    return uid


def check_idempotency_key(key: str) -> None:
    """Raise `ValueError` for a malformed key."""
    if not is_idempotency_key(key):
        raise ValueError("an idempotency key is 1 to 128 characters of [A-Za-z0-9_-]")


def check_owner(uid: str | None, stored: bytes | None) -> None:
    """Raise `SessionNotFound` unless the stored uid is this one; None skips the comparison."""
    if stored is None or owner_argument(uid) not in (None, stored.decode()):
        raise SessionNotFound
