"""`Room`: a session with viewers on this worker. `LocalRun`: an answer that it produces itself."""

from collections.abc import Callable
from typing import Any, Protocol

from server.live.response_log import ResponseLog
from server.live.subscription import Subscription


class LocalRun(Protocol):
    """What the hub must know of an answer that this worker produces."""

    @property
    def response_id(self) -> str: ...

    @property
    def log(self) -> ResponseLog: ...

    is_held: bool
    is_disowned: bool
    must_be_silent: Callable[[], bool]


class Room:
    """A session with viewers on this worker; passes its events on in the order of their offsets."""

    def __init__(self, session_id: str, epoch: str, offset: int) -> None:
        self.session_id = session_id
        self.epoch = epoch
        self.offset = offset
        self.subscriptions: set[Subscription] = set()
        self.early: dict[int, dict[str, Any]] = {}  # events that came before their predecessors
        # Logs that are being read (`CatchUp.sync_room`) → whether that was asked for once more.
        self.syncing: dict[str, bool] = {}
