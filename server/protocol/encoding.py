"""What every outbound frame and its objects can do: be made of stored fields, and be encoded."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import orjson
from msgspec import UNSET, Struct

S = TypeVar("S", bound=Struct)

_encode = msgspec.json.Encoder().encode


class Part(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a frame is made of."""


class ServerFrame(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag=""
):
    """Anything that the server sends."""

    def wire(self) -> dict[str, Any]:
        """As other workers get it, and as logs hold it: what may be sent on without being known."""
        frame: dict[str, Any] = msgspec.to_builtins(self)
        return frame


def of_stored(kind: type[S], stored: Mapping[str, Any]) -> S:
    """An object of what the store has: its fields that this version knows, and no more than these.

    Those that are not stored are not sent. What is nested in them is not looked at, and sent as it
    was stored.
    """
    get = stored.get
    return kind(**{name: get(name, UNSET) for name in kind.__struct_fields__})


def encode(frame: ServerFrame | Mapping[str, Any]) -> bytes:
    """One frame as its JSON: ours, or one that another worker or a log has."""
    return _encode(frame) if isinstance(frame, ServerFrame) else orjson.dumps(frame)
