"""What every outbound frame and its objects can do: be made of stored fields, and be encoded."""

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
import orjson
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import fields

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

    What is nested in them is not looked at, and sent as it was stored.
    """
    there = stored.keys() & set(kind.__struct_fields__)
    return kind(**{**_missing(kind), **{name: stored[name] for name in there}})


@cache
def _missing(kind: type[Struct]) -> dict[str, UnsetType]:
    """Stands for the fields that a kind must have: those that are not stored are not sent."""
    return {field.name: UNSET for field in fields(kind) if field.required}


def encode(frame: ServerFrame | Mapping[str, Any]) -> bytes:
    """One frame as its JSON: ours, or one that another worker or a log has."""
    return _encode(frame) if isinstance(frame, ServerFrame) else orjson.dumps(frame)
