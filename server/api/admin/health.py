"""How the server is at this moment, over HTTP, for a console that asks each second.

It answers at once whatever is away: what Redis cannot say in time is told as it was, with its age.
"""

import asyncio
import time
from typing import Any

from msgspec import Struct
from starlette.responses import Response

from server.api.admin.actions import Admin
from server.api.admin.objects import ReplicaObject
from server.api.admin.workers import SUMMED, roll_wire
from server.api.rest.operation import Access, ApiContext, Call, Operation, json_response
from server.config.models import ModelState, ModelStatus
from server.engines.client import CoreState, EngineClient
from server.engines.models import Models
from server.engines.placement.figures import EngineFigures
from server.protocol.objects import Count, Milliseconds
from sessions.model.errors import StoreUnavailable

STORE_SECONDS = 0.4  # that Redis has to answer
NOBODY: dict[str, Any] = {"now": 0, "replicas": [], "missing": []}


class StoreHealth(Struct, frozen=True):
    """`state`: ok or unavailable, `since` that moment. `heard_ms`: since it was last found well.

    `problems` are for who runs it: why it is not ok, what would lose data, or will.
    """

    state: str
    since: Milliseconds
    heard_ms: Count
    problems: list[str]


class EngineHealth(Struct, frozen=True, omit_defaults=True):
    """An engine of this host. `heard_ms`: since its last sign of life, if it gives any.

    `state` is that of `/v1/admin/engines`, or `asleep` of a model that is loaded when it is asked.
    One without a `url` is ours. `incarnation` is another number when it has started again.
    """

    name: str
    model: str
    state: str
    kind: str
    url: str | None = None
    draining: bool = False
    heard_ms: Count | None = None
    incarnation: int | None = None


class HealthObject(Struct, frozen=True):
    """`now`, `replicas` and `missing` are those of `/v1/admin/replicas`, `roll_age_ms` ago.

    `replica` is the worker that answers, `scopes` are those of the token that asks. `live` sums
    over the workers.
    """

    replica: str
    scopes: list[str]
    redis: StoreHealth
    engines: list[EngineHealth]
    roll_age_ms: Count
    live: dict[str, int]
    now: Milliseconds
    replicas: list[ReplicaObject]
    missing: list[ReplicaObject]


class AdminHealthOperations:
    """The endpoint."""

    def __init__(self, context: ApiContext, admin: Admin) -> None:
        self._admin = admin
        self._health = context.health
        self._models = context.services.models
        self._replica = context.services.replica
        self._roll, self._roll_at = NOBODY, time.monotonic()
        self._num_sessions = 0

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/v1/admin/health",
                access=Access.ADMIN,
                endpoint=self.read,
                summary="How Redis, the engines and every worker are, answered whatever is away",
                answers={200: HealthObject},
            )
        ]

    async def read(self, call: Call) -> Response:
        await self._read_roll()
        now = time.monotonic()
        replicas = self._roll["replicas"]
        return json_response(
            {
                "replica": self._replica,
                "scopes": list(call.user.scopes),
                "redis": self._store_wire(now),
                "engines": engines_wire(self._models, now),
                "roll_age_ms": milliseconds(now - self._roll_at),
                "live": {
                    "replicas": len(replicas),
                    "sessions": self._num_sessions,
                    **{name: sum(one.get(name, 0) for one in replicas) for name in SUMMED},
                },
                **self._roll,
            }
        )

    async def _read_roll(self) -> None:
        try:
            async with asyncio.timeout(STORE_SECONDS):
                roll, self._num_sessions = await asyncio.gather(
                    self._admin.replicas.roll(), self._admin.listing.num_sessions()
                )
        except (TimeoutError, StoreUnavailable):
            return  # what is known stays known
        self._roll, self._roll_at = roll_wire(roll), time.monotonic()

    def _store_wire(self, now: float) -> dict[str, Any]:
        return {
            "state": self._health.state["store"],
            "since": self._health.since["store"],
            "heard_ms": milliseconds(now - self._health.store_heard_at),
            "problems": self._health.store_problems,
        }


def engines_wire(models: Models, now: float) -> list[dict[str, Any]]:
    """The engines of this host: those of each model, or the one that it has."""
    listed = []
    for status in models.statuses:
        engine = models.engine(status.name)
        figures = models.engine_figures().get(status.name)
        if figures is not None:
            for one in figures:
                wire = _wire(status.name, one, one.state, one, now)
                listed.append({**wire, "draining": one.is_draining})
        elif models.are_many and status.state is not ModelState.LOADED:
            listed.append(_wire(status.name, status, "asleep", None, now))
        else:
            listed.append(_wire(status.name, status, engine.core_state.value, engine, now))
    return listed


def _wire(
    model: str,
    named: EngineFigures | ModelStatus,
    state: str,
    signs: EngineFigures | EngineClient | None,
    now: float,
) -> dict[str, Any]:
    wire: dict[str, Any] = {"name": named.name, "model": model, "state": state, "kind": named.kind}
    if named.url is not None:
        wire["url"] = named.url
    if signs is not None and signs.incarnation is not None:
        wire["incarnation"] = signs.incarnation
    speaks = state in (CoreState.READY.value, CoreState.STALLED.value, "paused")
    if signs is not None and signs.heard_at is not None and speaks:
        wire["heard_ms"] = milliseconds(now - signs.heard_at)
    return wire


def milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))
