"""What a client says on this websocket."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from server.api.openai.refusals import not_here
from server.api.responses.request import ResponsesRequest
from server.protocol.client_frames import decode_object, to_struct, with_integers
from server.protocol.errors import ApiError, invalid_field

Lane = Annotated[str, Meta(min_length=1, max_length=128)]
_FRACTION = re.compile(r"[0-9][.eE]")


class Cancel(Struct, frozen=True, forbid_unknown_fields=True):
    """Stop a response: the one that is named, or the one that its lane is streaming."""

    type: Literal["response.cancel"]
    response_id: Annotated[str, Meta(max_length=64)] | None = None
    stream_id: Lane | None = None


class Steer(Struct, frozen=True, forbid_unknown_fields=True):
    """End a response, and go on with more words."""

    type: Literal["response.steer"]
    previous_response_id: Annotated[str, Meta(max_length=64)]
    input: str | list[Any]


class Create(Struct, frozen=True):
    """Answer. `body` is what `POST /v1/responses` would be given."""

    body: dict[str, Any]
    request: ResponsesRequest
    stream_id: str | None = None


ClientFrame = Create | Cancel | Steer


class Refused(Exception):
    """A frame that is refused, and of which lane it is, as far as that can be read."""

    def __init__(self, error: ApiError, stream_id: str | None) -> None:
        super().__init__(error, stream_id)
        self.error = error
        self.stream_id = stream_id


def parse(message: Mapping[str, Any]) -> ClientFrame:
    """A message of the socket. Raises `Refused`."""
    stream_id = None
    try:
        frame = _object(message)
        given = frame.get("stream_id")
        stream_id = given if isinstance(given, str) else None
        return _parse(frame)
    except ApiError as error:
        raise Refused(error, stream_id) from error


def _object(message: Mapping[str, Any]) -> dict[str, Any]:
    text = message.get("text")
    if text is None:
        try:
            text = (message.get("bytes") or b"").decode()
        except UnicodeDecodeError:
            raise ApiError("invalid_json", "JSON is UTF-8") from None
    frame = decode_object(text)
    return with_integers(frame) if _FRACTION.search(text) else frame


def _parse(frame: dict[str, Any]) -> ClientFrame:
    match frame.get("type"):
        case "response.create":
            return _create(frame)
        case "response.cancel":
            cancel: Cancel = to_struct(frame, Cancel)
            return cancel
        case "response.steer":
            steer: Steer = to_struct(frame, Steer)
            return steer
        case _:
            known = "response.create, response.cancel or response.steer"
            raise ApiError("unknown_type", f"a frame is {known}", param="type")


def _create(frame: Mapping[str, Any]) -> Create:
    """A stream is what this is; whether a body says so changes nothing."""
    own = ("type", "stream_id", "generate", "stream")
    body = {name: value for name, value in frame.items() if name not in own}
    if frame.get("generate") not in (None, True):
        raise not_here("generate", "an answer is generated, or not asked for")
    if frame.get("stream") not in (None, True):
        raise not_here("stream", "everything is streamed on a websocket")
    stream_id = frame.get("stream_id")
    if stream_id is not None and not (isinstance(stream_id, str) and 0 < len(stream_id) <= 128):
        raise invalid_field("stream_id", "a lane's name is a text of 1 to 128 characters")
    request: ResponsesRequest = to_struct(body, ResponsesRequest)
    request.check()
    return Create(body, request, stream_id)
