"""The workers, the audit log and the figures of all, over HTTP, for admins."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from starlette.responses import Response

from server.admin import Admin
from server.admin_objects import (
    AuditPage,
    Draining,
    Replicas,
    Stats,
)
from server.admin_sessions import StopBody, actor_of
from server.admin_users import PageQuery
from server.errors import ApiError
from server.operations import Access, Call, Operation, json_response
from server.protocol import to_struct
from server.stats import read_series
from sessions.replicas import Replica
from sessions.samples import Span
from sessions.store import SessionStore

SUMMED = ("connections", "active_responses")  # of the workers; an engine's figures are one core's


class StatsQuery(Struct, frozen=True):
    range: Span = "15m"


class AdminReplicaOperations:
    """The endpoints."""

    def __init__(self, admin: Admin, store: SessionStore) -> None:
        self._admin = admin
        self._store = store

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
                path="/v1/admin/audit",
                access=Access.ADMIN,
                endpoint=self.audit,
                summary="Who did or read what as an admin, newest first",
                query=PageQuery,
                answers={200: AuditPage},
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
        replicas = await self._admin.replicas.all()
        return json_response({"replicas": [replica_wire(replica) for replica in replicas]})

    async def drain(self, call: Call) -> Response:
        body: StopBody = to_struct(await call.body(), StopBody)
        name = call.path("replica")
        if name not in {replica.id for replica in await self._admin.replicas.all()}:
            raise ApiError("not_found", "no such worker")
        await self._admin.auditor.note(actor_of(call), "replica.drain", name, body.reason)
        if not await self._store.publish_control(name, {"type": "drain"}):
            raise ApiError("not_found", "that worker hears nothing any more")
        return json_response({"id": name, "draining": True}, 202)

    async def audit(self, call: Call) -> Response:
        page = await self._admin.auditor.log.page(call.query.limit, call.query.cursor)
        entries = [
            {
                "id": entry.id,
                "at": entry.at,
                "actor": entry.actor,
                "action": entry.action,
                "target": entry.target,
                "reason": entry.reason,
                "address": entry.address,
            }
            for entry in page.entries
        ]
        return json_response({"entries": entries, "next_cursor": page.next_cursor})

    async def stats(self, call: Call) -> Response:
        replicas = [replica_wire(replica) for replica in await self._admin.replicas.all()]
        listing = self._admin.listing
        runs = await listing.live_runs()
        live = {
            "replicas": len(replicas),
            "sessions": await listing.num_sessions(),
            "queued_responses": sum(run.status == "queued" for run in runs),
            **{name: sum(one.get(name, 0) for one in replicas) for name in SUMMED},
        }
        moments, series = await read_series(self._admin.samples, call.query.range)
        past = {"range": call.query.range, "at": moments, "series": series}
        return json_response({**past, "live": live, "replicas": replicas})


def replica_wire(replica: Replica) -> dict[str, Any]:
    """A worker and its figures; what looks like a number is one."""
    return {"id": replica.id, "seen_at": replica.seen_at, **_numbers(replica.figures)}


def _numbers(figures: Mapping[str, str]) -> dict[str, str | int]:
    return {name: int(text) if text.isdecimal() else text for name, text in figures.items()}
