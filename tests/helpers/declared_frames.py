"""Whether what a server has sent is one of the frames that it declares."""

from collections.abc import Mapping
from typing import Any

import msgspec

from server.protocol.server_frames import TYPES


def check_server_frame(frame: Mapping[str, Any]) -> None:
    """Raise `msgspec.ValidationError` unless a frame is one of ours, with no field unknown."""
    kind = TYPES.get(str(frame.get("type")))
    if kind is None:
        raise msgspec.ValidationError(f"no such frame: {frame.get('type')}")
    msgspec.convert(frame, kind)
