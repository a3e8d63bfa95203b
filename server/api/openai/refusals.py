"""What this door says beside its answers: refusals in OpenAI's words, and what is left."""

from starlette.requests import Request
from starlette.responses import Response

from server.access.rates import budget_entry, limit_headers
from server.protocol.errors import ApiError, invalid_field
from server.protocol.http_errors import error_response
from sessions.model.quotas import Budget


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


def with_budget(answer: Response, budget: Budget | None) -> Response:
    """The answer, with what was left of the user's tokens, where they are counted."""
    if budget is not None:
        answer.raw_headers += limit_headers([budget_entry(budget)])
    return answer


def not_here(param: str, what: str = "this server cannot do that") -> ApiError:
    """A field that has a meaning elsewhere; to take it for nothing would mislead."""
    return invalid_field(param, f"{param} is not supported here: {what}")
