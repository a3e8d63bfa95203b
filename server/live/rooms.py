"""`Rooms`: which sessions are watched on this worker, and which answers it tells of itself.

A room is a session with at least one viewer here. The answers that this worker produces, or is
about to, are beside them, because what others publish of those is dropped. Only the methods of
`Room` and `Rooms` change either; everybody may read.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Set
from typing import Any, Protocol

from server.engines.client import EngineError
from server.live.response_log import ResponseLog
from server.live.subscription import Subscription
from server.protocol.entries import SessionFrame
from server.protocol.errors import ApiError
from sessions.background import Background
from sessions.model.events import Event
from sessions.model.ids import session_of


class LocalRun(Protocol):
    """What the hub must know of an answer that this worker produces."""

    @property
    def response_id(self) -> str: ...

    @property
    def ids(self) -> dict[str, str]: ...

    @property
    def sequence_number(self) -> int: ...

    @property
    def log(self) -> ResponseLog: ...

    @property
    def is_disowned(self) -> bool: ...

    fence: int
    must_be_silent: Callable[[], bool]


class BegunRun(Protocol):
    """What the viewers of an answer get when it begins."""

    response_id: str
    session_id: str
    uid: str
    fence: int
    events: list[Event]
    is_hidden: bool  # its session is in no sidebar


class Room:
    """A session with viewers on this worker; passes its events on in the order of their offsets."""

    def __init__(self, session_id: str, epoch: str, offset: int) -> None:
        self.session_id = session_id
        self.epoch = epoch
        self.offset = offset
        self._subscriptions: set[Subscription] = set()
        self.subscriptions: Set[Subscription] = self._subscriptions  # to read
        self._early: dict[int, SessionFrame] = {}  # events that came before their predecessors
        # Whose logs are being read, the session's id or an answer's → whether that was asked for
        # once more. See `CatchUp`.
        self._syncing: dict[str, bool] = {}

    def add(self, subscription: Subscription) -> None:
        self._subscriptions.add(subscription)

    def remove(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)

    # ---- the events of the session --------------------------------------------------------------

    def in_order(self, offset: int, frame: SessionFrame) -> Iterator[tuple[int, SessionFrame]]:
        """Take an event that is new: those whose turn has come by that, with their offsets."""
        self._early[offset] = frame
        while (due := self._early.pop(self.offset + 1, None)) is not None:
            self.offset += 1
            yield self.offset, due

    @property
    def has_gap(self) -> bool:
        """Whether events have come whose predecessors have not."""
        return bool(self._early)

    def begin_anew(self, epoch: str, offset: int) -> None:
        """The session's log does not go on: what had come early is of the lost one."""
        self.epoch, self.offset = epoch, offset
        self._early.clear()

    # ---- whose logs are being read --------------------------------------------------------------

    def begin_sync(self, log_of: str) -> bool:
        """False if that log is being read already, which may be too early: then once more."""
        is_first = log_of not in self._syncing
        self._syncing[log_of] = not is_first
        return is_first

    def note_reading(self, log_of: str) -> None:
        """What was asked for until now is in what is read from now on."""
        self._syncing[log_of] = False

    def must_read_again(self, log_of: str) -> bool:
        return self._syncing[log_of]

    def end_sync(self, log_of: str) -> None:
        del self._syncing[log_of]


class Rooms(Mapping[str, Room]):
    """The rooms by session id, to read; and the answers of this worker."""

    def __init__(self) -> None:
        self._rooms: dict[str, Room] = {}
        self._runs: dict[str, LocalRun] = {}  # by response id
        self._claimed: set[str] = set()  # response ids
        self._held: set[str] = set()  # response ids: nothing is shown of them for the moment
        self._background = Background(ApiError, EngineError)

    def __getitem__(self, session_id: str) -> Room:
        return self._rooms[session_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rooms)

    def __len__(self) -> int:
        return len(self._rooms)

    def of_response(self, response_id: str) -> Room | None:
        """The room of the session that the answer belongs to."""
        return self._rooms.get(session_of(response_id))

    def open(self, session_id: str, epoch: str, offset: int) -> Room:
        """A new room, for a session whose last event has this offset."""
        room = self._rooms[session_id] = Room(session_id, epoch, offset)
        return room

    def close(self, room: Room) -> None:
        del self._rooms[room.session_id]

    # ---- the answers of this worker -------------------------------------------------------------

    def claim(self, response_id: str) -> None:
        """This worker tells of the answer from now on, before there is a run as after its end."""
        self._claimed.add(response_id)

    def unclaim(self, response_id: str) -> None:
        """The answer was not begun here after all."""
        self._claimed.discard(response_id)

    def add_run(self, response_id: str, run: LocalRun) -> None:
        self._runs[response_id] = run

    def release(self, response_id: str) -> None:
        """The answer has ended, or is another worker's: what others publish of it counts again."""
        self.unclaim(response_id)
        self._runs.pop(response_id, None)
        self._held.discard(response_id)

    def is_claimed(self, response_id: str | None) -> bool:
        return response_id in self._claimed

    def run(self, response_id: str) -> LocalRun | None:
        """The answer, if this worker produces it."""
        return self._runs.get(response_id)

    def hold(self, response_id: str) -> None:
        """Show nothing more of this worker's answer until its lease is renewed."""
        if response_id in self._runs:
            self._held.add(response_id)

    def is_held(self, response_id: str) -> bool:
        return response_id in self._held

    def end_hold(self, response_id: str) -> bool:
        """Show the answer again; False if it was not held."""
        if response_id not in self._held:
            return False
        self._held.remove(response_id)
        return True

    def must_withhold(self, response_id: str) -> bool:
        """Asked for each entry just before it is sent: whether the answer may be another's by now.

        The queue may be slow, or this process was stopped: what was in time then, is late now.
        """
        run = self._runs.get(response_id)
        return run is not None and run.must_be_silent()

    def withholds(self, response_id: str) -> bool:
        """The same, for an entry that has waited; what else waits of that answer is taken back."""
        if not self.must_withhold(response_id):
            return False
        self.hold(response_id)
        room = self.of_response(response_id)
        for subscription in room.subscriptions if room else ():
            if subscription.outbox.withhold(response_id):
                subscription.doubt(response_id)
        return True

    def unanswered(self) -> set[str]:
        """Sessions that are watched here, and in which this worker produces no answer."""
        return self._rooms.keys() - {session_of(response_id) for response_id in self._runs}

    # ---- tasks ----------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that nobody waits for; `end_tasks` cancels what is left."""
        self._background.spawn(work)

    async def end_tasks(self) -> None:
        await self._background.close()
