"""`Stop`: a wish to end an answer, as it is held, stored, and sent to the owner of the answer."""

import time
from dataclasses import dataclass, field
from typing import Any, Self, cast

from server.protocol.objects import By, Reason


@dataclass(frozen=True, slots=True)
class Stop:
    """Somebody's wish to end the answer."""

    by: By = "user"
    reason: Reason = "client_cancelled"
    seen: int | None = None  # the last number that the asker had seen: the text is cut there
    at: float = field(default_factory=time.monotonic)

    @classmethod
    def stored(cls, by: str, reason: str, seen: int | None) -> Self:
        """One that the store, or another worker, tells of in the protocol's words."""
        return cls(cast(By, by), cast(Reason, reason), seen)


@dataclass(frozen=True, slots=True)
class StoredStop:
    """The stop that an answer's run hash holds, since `at_ms` by Redis' clock."""

    stop: Stop
    at_ms: int | None

    @classmethod
    def of_command(cls, command: dict[str, Any]) -> "StoredStop | None":
        """What a `cancel_command` says of it."""
        if (stop := command.get("stop")) is None:
            return None
        return cls(Stop.stored(stop["by"], stop["reason"], stop["seen"]), stop["at_ms"])


def cancel_command(response_id: str, stored: StoredStop | None = None) -> dict[str, Any]:
    """Tells an owner of a stop; without `stored` it must ask the store which one."""
    command: dict[str, Any] = {"type": "cancel", "response_id": response_id}
    if stored is not None:
        by, reason, seen = stored.stop.by, stored.stop.reason, stored.stop.seen
        command["stop"] = {"by": by, "reason": reason, "seen": seen, "at_ms": stored.at_ms}
    return command
