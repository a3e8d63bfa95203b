"""`EngineFigures`: what a worker knows of one of several engines, for those who operate it."""

from dataclasses import dataclass
from typing import Literal, Self

from server.config.models import EngineStatus
from server.engines.client import Exactness
from server.engines.placement.member import Member

# The last four: it has failed too often of late; it is made ready; it cannot be; its model is
# loaded when somebody asks it.
_Joined = Literal["ready", "connecting", "stalled", "dead", "paused"]
EngineState = _Joined | Literal["preparing", "failed", "not_loaded"]


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """At a moment. What it runs is of all workers, answers and sessions are of this one."""

    name: str
    kind: str
    url: str | None
    weight: float
    state: EngineState
    is_draining: bool
    problem: str | None = None  # why there is none, or why it is not ready
    num_answers: int = 0
    num_sessions: int = 0  # whose keys and values are there
    num_moved: int = 0  # answers that went on elsewhere
    num_running: int | None = None
    num_waiting: int | None = None
    num_blocks: int | None = None
    num_blocks_free: int | None = None
    exactness: Exactness | None = None  # of what it has begun, when it dies
    heard_at: float | None = None  # `EngineClient.heard_at`
    incarnation: int | None = None  # `EngineClient.incarnation`

    @classmethod
    def of_unloaded(cls, status: EngineStatus) -> Self:
        """Of a model that no worker has joined."""
        fields = (status.name, status.kind, status.url, status.weight)
        return cls(*fields, "not_loaded", status.is_draining, status.problem)

    @classmethod
    def of(cls, status: EngineStatus, member: Member | None) -> Self:
        """Without a member it was not joined yet."""
        fields = (status.name, status.kind, status.url, status.weight)
        if member is None:
            state: EngineState = "preparing" if status.problem is None else "failed"
            return cls(*fields, state, status.is_draining, status.problem)
        stats = member.engine.stats
        return cls(
            *fields,
            _state(member),
            status.is_draining,
            status.problem or (None if member.engine.is_ready else member.reason or None),
            num_answers=member.num_answers,
            num_sessions=member.num_sessions,
            num_moved=member.num_moved,
            num_running=None if stats is None else stats.num_running,
            num_waiting=None if stats is None else stats.num_waiting,
            num_blocks=None if stats is None else stats.num_blocks_total,
            num_blocks_free=None if stats is None else stats.num_blocks_free,
            exactness=member.engine.exactness,
            heard_at=member.engine.heard_at,
            incarnation=member.engine.incarnation,
        )


def _state(member: Member) -> EngineState:
    if member.engine.is_ready and member.is_paused:
        return "paused"
    return member.engine.core_state.value
