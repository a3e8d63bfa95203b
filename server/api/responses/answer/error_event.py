"""How a stream says that it cannot go on: an event that is none of the answer's own."""

import msgspec
from msgspec import Struct

from server.api.responses.answer.emitter import AnswerEvent
from server.protocol.errors import ApiError


class ErrorEvent(Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """OpenAI's, in a stream over HTTP."""

    code: str
    message: str
    param: str | None
    sequence_number: int


def error_event(error: ApiError, number: int) -> AnswerEvent:
    """`number` is the next one of the answer's events."""
    event = ErrorEvent(
        code=error.code, message=error.message, param=error.param, sequence_number=number
    )
    return AnswerEvent(number, "error", msgspec.json.encode(event))
