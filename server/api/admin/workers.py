"""The workers and the figures of all, over HTTP, for admins."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from starlette.responses import Response

from server.api.admin.actions import Admin
from server.api.admin.objects import Draining, Replicas, Stats
from server.api.admin.sessions import StopBody, actor_of, reason_of
from server.api.rest.operation import Access, Call, Operation, json_response
from server.protocol.errors import ApiError
from server.telemetry.past import Past
from sessions.directory.replicas import Replica, Roll
from sessions.directory.samples import Span
from sessions.store.store import SessionStore

# Of the workers; an engine's figures are one core's.
SUMMED = ("connections", "active_responses", "queued_responses")


class StatsQuery(Struct, frozen=True):
    range: Span = "15m"


class AdminReplicaOperations:
    """The endpoints."""

    def __init__(self, admin: Admin, store: SessionStore) -> None:
        self._admin = admin
        self._store = store
        self._past = Past(admin.samples)

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/v1/admin/replicas",
                access=Access.ADMIN,
                endpoint=self.replicas,
                summary="Every worker, with what it said of itself a few seconds ago",
                answers={200: Replicas},
            ),
            Operation(
                method="POST",
                path="/v1/admin/replicas/{replica}/drain",
                access=Access.ADMIN,
                endpoint=self.drain,
                summary="Let a worker finish what it runs, hand over the rest, and restart",
                body=StopBody,
                answers={202: Draining},
            ),
            Operation(
                method="GET",
                path="/v1/admin/stats",
                access=Access.ADMIN,
                endpoint=self.stats,
                summary="The figures of all workers, as they are now and as they were",
                query=StatsQuery,
                answers={200: Stats},
            ),
        ]

    async def replicas(self, call: Call) -> Response:
        return json_response(roll_wire(await self._admin.replicas.roll()))

    async def drain(self, call: Call) -> Response:
        reason, name = await reason_of(call), call.path("replica")
        if name not in {replica.id for replica in await self._admin.replicas.all()}:
            raise ApiError("not_found", "no such worker")
        await self._admin.auditor.note(actor_of(call), "replica.drain", name, reason)
        if not await self._store.publish_control(name, {"type": "drain"}):
            raise ApiError("not_found", "that worker hears nothing any more")
        return json_response({"id": name, "draining": True}, 202)

    async def stats(self, call: Call) -> Response:
        roll = roll_wire(await self._admin.replicas.roll())
        replicas = roll["replicas"]
        live = {
            "replicas": len(replicas),
            "sessions": await self._admin.listing.num_sessions(),
            **{name: sum(one.get(name, 0) for one in replicas) for name in SUMMED},
        }
        moments, series = await self._past.read(call.query.range)
        past = {"range": call.query.range, "at": moments, "series": series}
        return json_response({**past, "live": live, **roll})


def roll_wire(roll: Roll) -> dict[str, Any]:
    """Who is there, and who is missing."""
    missing = [one for one in roll.missing if not is_replaced(one, roll.present)]
    return {
        "now": roll.now_ms,
        "replicas": [replica_wire(replica) for replica in roll.present],
        "missing": [replica_wire(replica) for replica in missing],
    }


def is_replaced(missing: Replica, present: Iterable[Replica]) -> bool:
    """Whether its server has started again since its last report, say after a power cut."""
    return any(
        one.figures.get("host") == missing.figures.get("host")
        and int(one.figures.get("server_started_at", 0)) > missing.seen_at
        for one in present
    )


def replica_wire(replica: Replica) -> dict[str, Any]:
    """A worker and its figures; what looks like a number is one."""
    return {"id": replica.id, "seen_at": replica.seen_at, **_numbers(replica.figures)}


def _numbers(figures: Mapping[str, str]) -> dict[str, str | int]:
    return {
        name: int(text) if text.isdecimal() else text
        for name, text in figures.items()
        if name != "busiest"  # which has a route of its own
    }
