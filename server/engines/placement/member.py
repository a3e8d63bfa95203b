"""`Member`: one of several engines, as a worker has it."""

from collections.abc import Callable

from server.config.models import EngineStatus
from server.engines.client import CoreState, EngineClient, Exactness
from server.engines.placement.breaker import Breaker
from server.engines.placement.rendezvous import stamp

MIN_FREE_KV = 0.05  # the share of blocks below which further answers would push others out


class Member:
    """One engine. `now` is the event loop's clock."""

    def __init__(self, status: EngineStatus, now: Callable[[], float]) -> None:
        self.status = status
        self.stamp = stamp(status.name)
        self.num_answers = 0  # of this worker
        self.num_sessions = 0  # that are remembered to be here
        self.num_moved = 0  # answers that went on elsewhere
        self.breaker = Breaker()
        self.reason = ""  # of its state, in its own words
        self.is_leaving = False  # it is no engine of ours any more
        self.engine: EngineClient  # which is joined a moment later
        self._now = now

    @property
    def name(self) -> str:
        return self.status.name

    @property
    def takes_new(self) -> bool:
        """Whether an answer may be begun, or go on, here."""
        if self.status.is_draining or self.is_leaving or not self.engine.is_ready:
            return False
        return not self.is_paused

    @property
    def is_paused(self) -> bool:
        """It has failed too often of late."""
        return not self.breaker.may_ask(self._now())

    @property
    def is_lost(self) -> bool:
        """Its answers do not go on, as long as it stays so."""
        return self.engine.core_state is CoreState.DEAD

    @property
    def has_lost_all(self) -> bool:
        """Nothing more comes of its answers. Each of a text engine has a connection of its own,
        which may be well while the engine says that it is not.
        """
        return self.is_lost and self.engine.exactness in (Exactness.EXACT, Exactness.TOKENS)

    @property
    def gives_up(self) -> bool:
        """Its answers are to go on elsewhere."""
        return self.num_answers > 0 and (self.is_lost or self.is_leaving or self.status.must_move)

    @property
    def is_full(self) -> bool:
        """A further answer would wait there, or push others out of memory."""
        stats = self.engine.stats
        if stats is None:
            return False
        has_room = stats.num_blocks_free > MIN_FREE_KV * stats.num_blocks_total
        return stats.num_waiting > 0 or (stats.num_blocks_total > 0 and not has_room)

    @property
    def load(self) -> tuple[float, float]:
        """The less, the sooner it gets an answer: what it has to do, and the memory that it has."""
        stats, num_here = self.engine.stats, self.num_answers
        if stats is None:
            return num_here / self.status.weight, 0.0
        num_known = stats.num_running + stats.num_waiting  # of all workers, some moments ago
        used = 1 - stats.num_blocks_free / max(1, stats.num_blocks_total)
        return max(num_here, num_known) / self.status.weight, used
