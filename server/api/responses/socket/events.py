"""What is said on this websocket that is no event of an answer: refusals, and what becomes of words
that steer. And how an answer's events get the name of their lane.
"""

from typing import Any, Literal

import msgspec
import orjson
from msgspec import UNSET, Struct, UnsetType

from server.protocol.errors import ApiError


class Event(Struct, frozen=True, kw_only=True, tag_field="type", tag=""):
    """Of any type; its lane has a name, or none."""

    stream_id: str | UnsetType = UNSET


class ErrorFields(Struct, frozen=True, kw_only=True):
    type: str
    code: str
    message: str
    param: str | None
    headers: dict[str, str] | UnsetType = UNSET


class ErrorEvent(Event, frozen=True, kw_only=True, tag="error"):
    """A refusal. With a number, it is of an answer that had begun."""

    status: int
    error: ErrorFields
    sequence_number: int | UnsetType = UNSET


class SteerEvent(Event, frozen=True, kw_only=True, tag=""):
    """These are events of no answer, whose numbers they leave alone: theirs is always 0."""

    sequence_number: int = 0


class AcceptedSteer(Struct, frozen=True, kw_only=True):
    id: str
    previous_response_id: str


class SteerAccepted(SteerEvent, frozen=True, kw_only=True, tag="response.steer.accepted"):
    """The words are kept, and will be asked."""

    steer: AcceptedSteer


class SteerError(Struct, frozen=True, kw_only=True):
    code: str
    message: str
    type: Literal["invalid_request_error"] = "invalid_request_error"


class FailedSteer(Struct, frozen=True, kw_only=True):
    input: Any  # as it was given
    previous_response_id: str
    id: str | UnsetType = UNSET


class SteerFailed(SteerEvent, frozen=True, kw_only=True, tag="response.steer.failed"):
    """The words come back."""

    error: SteerError
    steer: FailedSteer


def encode(event: Event, stream_id: str | None) -> bytes:
    """The event as it is sent in that lane."""
    if stream_id is not None:
        event = msgspec.structs.replace(event, stream_id=stream_id)
    return msgspec.json.encode(event)


def refusal(
    error: ApiError, stream_id: str | None = None, sequence_number: int | None = None
) -> bytes:
    """With a number, of an answer that had begun: it is the next one."""
    headers: dict[str, str] | UnsetType = UNSET
    if error.retry_after_ms is not None:
        headers = {"retry-after-ms": str(error.retry_after_ms)}
    fields = ErrorFields(
        type=error.type,
        code=error.code,
        message=error.message,
        param=error.param,
        headers=headers,
    )
    number = UNSET if sequence_number is None else sequence_number
    event = ErrorEvent(status=error.http_status, error=fields, sequence_number=number)
    return encode(event, stream_id)


def on_lane(data: bytes, stream_id: str | None) -> bytes:
    """An answer's event with the name of its lane, if that has one."""
    if stream_id is None:
        return data
    return data[:-1] + b',"stream_id":' + orjson.dumps(stream_id) + b"}"
