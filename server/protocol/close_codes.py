"""Close codes of the websocket, and which of them a client answers by reconnecting.

Rule for clients: 1000, 1009 and 44xx stay closed, except 4401 (once, with a new token) and 4429
(after the wait in its reason); every other code reconnects with back-off, 4500 five times at most.
"""

from enum import IntEnum

from server.protocol.errors import ApiError

MAX_REASON_BYTES = 123  # RFC 6455 §5.5: a control frame carries 125 bytes, two of them the code


class CloseCode(IntEnum):
    NORMAL = 1000
    INTERNAL = 1011
    RESTART = 1012
    TRY_LATER = 1013
    SLOW_CONSUMER = 4008
    BAD_FRAMES = 4400
    UNAUTHENTICATED = 4401
    FORBIDDEN = 4403  # known, and not let in
    NO_COMMON_PROTOCOL = 4406
    NO_FIRST_FRAME = 4408
    EVICTED = 4410
    TOO_MANY = 4429
    SERVER_BUG = 4500  # one that does not go away: 1011 is for the first time


class CloseConnection(Exception):
    """Raised inside a connection's tasks to end it with a code and a reason (`code;key=value`)."""

    def __init__(self, code: CloseCode, reason: str = "") -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")


def refusal_of(error: ApiError) -> CloseConnection:
    """How a connection ends whose user may not be here, or has to wait."""
    if error.retry_after_ms is not None:
        reason = f"{error.code};retry_after_ms={error.retry_after_ms}"
        return CloseConnection(CloseCode.TOO_MANY, reason)
    is_known = error.code == "forbidden"
    code = CloseCode.FORBIDDEN if is_known else CloseCode.UNAUTHENTICATED
    return CloseConnection(code, error.code)
