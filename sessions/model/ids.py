"""The ids of sessions, messages and responses, and the keys that clients choose.

They are made here and checked here by shape, so that a malformed one never reaches Redis; an id is
never a permission.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets

from sessions.model.errors import MessageNotFound, ResponseNotFound, SessionNotFound

_USER_ID = re.compile(r"usr_[A-Za-z0-9_-]{22}\Z")


def is_user_id(value: str) -> bool:
    """Whether `value` has the shape of an id that `Users.create` gives."""
    return _USER_ID.match(value) is not None


def derived_user_id(actor: str, idempotency_key: str) -> str:
    """The id that this admin and key always give, so that a repeat finds the user it has made."""
    return "usr_" + _derived("user", actor, idempotency_key)


_GROUP_ID = re.compile(r"grp_[A-Za-z0-9_-]{22}\Z")


def is_group_id(value: str) -> bool:
    """Whether `value` has the shape of an id that `Groups.create` gives."""
    return _GROUP_ID.match(value) is not None


_SESSION_ID = re.compile(r"ses_[A-Za-z0-9_-]{22}\Z")
_MESSAGE_ID = re.compile(r"msg_[A-Za-z0-9_-]{22}\Z")
_RESPONSE_ID = re.compile(r"resp_[A-Za-z0-9_-]{33}\Z")
_IDEMPOTENCY_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")


def new_session_id() -> str:
    """A fresh random session id, for imports and forks; `Sessions.create` derives its own."""
    return "ses_" + secrets.token_urlsafe(16)


def derived_session_id(uid: str, idempotency_key: str) -> str:
    """The id that this user and key always give, so that a repeated create finds its session."""
    return "ses_" + _derived("session", uid, idempotency_key)


def _derived(*words: str) -> str:
    digest = hashlib.sha256("\0".join(words).encode()).digest()[:16]
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def new_message_id() -> str:
    """A fresh random message id."""
    return "msg_" + secrets.token_urlsafe(16)


def new_response_id(session_id: str) -> str:
    """A fresh response id that carries its session's, so that any worker finds it with no index."""
    return "resp_" + session_id.removeprefix("ses_") + secrets.token_urlsafe(9)[:11]


def session_of(response_id: str) -> str:
    """The session id inside a well-formed response id."""
    return "ses_" + response_id[5:27]


def is_session_id(value: object) -> bool:
    """Whether `value` has the shape of a session id."""
    return isinstance(value, str) and _SESSION_ID.match(value) is not None


def is_message_id(value: object) -> bool:
    """Whether `value` has the shape of a message id."""
    return isinstance(value, str) and _MESSAGE_ID.match(value) is not None


def is_response_id(value: object) -> bool:
    """Whether `value` has the shape of a response id."""
    return isinstance(value, str) and _RESPONSE_ID.match(value) is not None


def check_session_id(session_id: str) -> None:
    """Raise `SessionNotFound` for an id that was never ours: it is answered like an unknown one."""
    if not is_session_id(session_id):
        raise SessionNotFound


def check_message_id(message_id: str | None) -> None:
    """Likewise `MessageNotFound`; None names no message, and passes."""
    if message_id is not None and not is_message_id(message_id):
        raise MessageNotFound


def check_response_id(response_id: str) -> None:
    """Likewise `ResponseNotFound`."""
    if not is_response_id(response_id):
        raise ResponseNotFound


def is_idempotency_key(value: object) -> bool:
    """Whether `value` may be used as an idempotency key."""
    return isinstance(value, str) and _IDEMPOTENCY_KEY.match(value) is not None
