"""The store's refusals → the protocol's: one table, used by every door."""

import contextlib
from collections.abc import Iterator

from server.protocol.errors import ApiError
from sessions.model import errors

_CODES: dict[type[Exception], tuple[str, str, str | None]] = {
    errors.SessionNotFound: ("session_not_found", "no such session", "session_id"),
    errors.MessageNotFound: ("message_not_found", "no such message", None),
    errors.ResponseNotFound: ("response_not_found", "no such response", "response_id"),
    errors.ItemNotFound: ("item_not_found", "nothing of that id waits there", "item_id"),
    errors.ShareNotFound: ("not_found", "there is nothing at this address", None),
    errors.UserNotFound: ("not_found", "no such user", None),
    errors.GroupNotFound: ("not_found", "no such group", None),
    errors.UserGone: ("forbidden", "an admin has disabled or removed this user", None),
    errors.InvalidCursor: ("invalid_field", "this is not a cursor of ours", "cursor"),
    errors.ResponseInProgress: (
        "response_in_progress",
        "an answer is being written in this session",
        None,
    ),
    errors.QueueFull: ("queue_full", "too many messages wait in this session", None),
    errors.SessionLocked: ("session_locked", "this session is locked", None),
    errors.IdempotencyKeyReused: (
        "idempotency_key_reused",
        "this key was used for another request",
        "idempotency_key",
    ),
    errors.TokenEnded: ("idempotency_key_reused", "the token of this user has ended", None),
    errors.MessageChanged: ("revision_conflict", "the message was changed meanwhile", None),
    errors.HeadMoved: ("revision_conflict", "messages were added meanwhile", None),
    errors.RevisionConflict: ("revision_conflict", "the session was changed meanwhile", None),
    errors.StoreUnavailable: (
        "store_unavailable",
        "the session store does not answer; whether this was stored is not known",
        None,
    ),
}


@contextlib.contextmanager
def translate_store_errors(*, only_reads: bool = False) -> Iterator[None]:
    """Turn the store's exceptions into `ApiError`s. `only_reads`: nothing was to be stored."""
    try:
        yield
    except errors.SessionError as error:
        refusal = translated(error, only_reads=only_reads)
        if refusal is None:
            raise
        raise refusal from error


def translated(error: errors.SessionError, *, only_reads: bool = False) -> ApiError | None:
    """The refusal that a client gets; None where the protocol has no word for it."""
    if isinstance(error, errors.QuotaExceeded):
        message = f"no more than {error.limit:,} {error.what}"
        retry_after_ms, quota = error.retry_after_ms, error.quota
        return ApiError("quota_exceeded", message, retry_after_ms=retry_after_ms, quota=quota)
    if type(error) not in _CODES:
        return None
    code, message, param = _CODES[type(error)]
    if only_reads and code == "store_unavailable":
        message = "the session store does not answer"
    return ApiError(code, message, param=param)
