"""`Roster`: which engines there are, by the supervisor's word, and which still have answers to end.

One that is removed is no engine any more, and stays until its answers have gone on elsewhere.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from server.config.models import EngineStatus
from server.engines.client import CoreState, EngineClient, EngineError
from server.engines.placement.figures import EngineFigures
from server.engines.placement.member import Member
from sessions.background import Background

PARTING_SECONDS = 60.0  # in which the answers of one that was removed may go on elsewhere

OnCoreState = Callable[[CoreState, str], None]
Connect = Callable[[EngineStatus, OnCoreState], EngineClient]


class Roster:
    """`connect` joins an engine, of which `on_state` hears; `on_removal` hears who is none now.

    `until` returns when something holds.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        on_state: Callable[[Member, CoreState, str], None],
        on_removal: Callable[[Member], None],
        until: Callable[[Callable[[], bool]], Awaitable[None]],
    ) -> None:
        self.members: list[Member] = []
        self.parting: list[Member] = []  # which have answers still, and are engines no more
        self._statuses: Sequence[EngineStatus] = ()
        self._connect = connect
        self._on_state, self._on_removal, self._until = on_state, on_removal, until
        self._is_closed = False
        self._background = Background()

    def take(self, statuses: Sequence[EngineStatus]) -> None:
        """How they are now. Raises `UnsupportedModelError`."""
        self._statuses = statuses
        for status in statuses:
            member = self._member(status.name)
            if member is not None and member.status.options != status.options:
                self._remove(member)  # it is another one by now
                member = None
            if member is not None:
                member.status = status
            elif status.options is not None:
                self._join(status)
        names = {status.name for status in statuses}
        for member in [each for each in self.members if each.name not in names]:
            self._remove(member)

    def figures(self) -> list[EngineFigures]:
        """Of all of them, for those who operate them."""
        return [EngineFigures.of(status, self._member(status.name)) for status in self._statuses]

    def close(self) -> None:
        """Those that part do not wait any longer, once `until` has looked again."""
        self._is_closed = True
        for member in self.members:
            member.engine.shutdown()

    def _member(self, name: str) -> Member | None:
        return next((member for member in self.members if member.name == name), None)

    def _join(self, status: EngineStatus) -> None:
        member = Member(status, asyncio.get_running_loop().time)

        def take_state(state: CoreState, reason: str) -> None:
            member.reason = reason
            self._on_state(member, state, reason)

        member.engine = self._connect(status, take_state)
        self.members.append(member)
        self._background.spawn(_begin(member.engine))

    def _remove(self, member: Member) -> None:
        """Its answers go on elsewhere; what cannot go ends with it."""
        member.is_leaving = True
        self.members.remove(member)
        self._on_removal(member)
        self.parting.append(member)
        self._background.spawn(self._part(member))

    async def _part(self, member: Member) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PARTING_SECONDS):
                await self._until(lambda: not member.num_answers or self._is_closed)
        self.parting.remove(member)
        member.engine.shutdown()


async def _begin(engine: EngineClient) -> None:
    """Joining may begin with the first call on the event loop."""
    with contextlib.suppress(EngineError):
        await engine.wait_ready()
