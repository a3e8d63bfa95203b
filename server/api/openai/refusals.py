"""How this door refuses: in OpenAI's words, so that its clients ask again only if it helps."""

from starlette.requests import Request
from starlette.responses import Response

from server.protocol.errors import ApiError, invalid_field
from server.protocol.http_errors import error_response


def refuse(request: Request, error: ApiError) -> Response:
    """The error object, with what OpenAI's clients read of its headers.

    They repeat a call on 408, 409, 429 and 5xx. A conflict is none that passes, and a day's tokens
    come back when nobody waits any more.
    """
    answer = error_response(error)
    if error.http_status == 409 or error.code == "quota_exceeded":
        answer.headers["x-should-retry"] = "false"
    if error.retry_after_ms is not None:
        answer.headers["retry-after-ms"] = str(error.retry_after_ms)
    return answer


def not_here(param: str, what: str = "this server cannot do that") -> ApiError:
    """A field that has a meaning elsewhere; to take it for nothing would mislead."""
    return invalid_field(param, f"{param} is not supported here: {what}")
