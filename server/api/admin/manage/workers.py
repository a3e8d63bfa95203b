"""How a worker runs, over HTTP, for admins with the scope for it: its log level, its restart."""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.responses import Response

from server.access.audit import OPERATE
from server.api.admin.actions import Admin
from server.api.admin.manage.objects import Restarting, WorkerLogLevel
from server.api.admin.sessions import Reason, StopBody, actor_of, reason_of
from server.api.rest.operation import Access, Call, Operation, json_response
from server.protocol.client_frames import to_struct
from server.protocol.errors import ApiError, invalid_field
from server.protocol.titles import given_line
from server.telemetry.logs import LEVELS
from sessions.store.store import SessionStore


class LogLevelBody(Struct, frozen=True):
    """It holds until the worker ends."""

    level: Annotated[str, Meta(max_length=16, extra_json_schema={"enum": list(LEVELS)})]
    reason: Reason = ""


class AdminWorkerOperations:
    """The endpoints."""

    def __init__(self, admin: Admin, store: SessionStore) -> None:
        self._admin = admin
        self._store = store

    def operations(self) -> list[Operation]:
        one = "/v1/admin/replicas/{replica}"
        return [
            Operation(
                method="POST",
                path=one + "/log-level",
                access=Access.ADMIN,
                scope=OPERATE,
                endpoint=self.set_log_level,
                summary="Have a worker log more, or less, until it ends",
                body=LogLevelBody,
                answers={202: WorkerLogLevel},
            ),
            Operation(
                method="POST",
                path=one + "/restart",
                access=Access.ADMIN,
                scope=OPERATE,
                endpoint=self.restart,
                summary="Have a worker hand over what it runs at once, and restart",
                body=StopBody,
                answers={202: Restarting},
            ),
        ]

    async def set_log_level(self, call: Call) -> Response:
        body: LogLevelBody = to_struct(await call.body(), LogLevelBody)
        if body.level not in LEVELS:
            raise invalid_field("level", f"one of {', '.join(LEVELS)}")
        reason = f"{body.level} {given_line('reason', body.reason)}".strip()
        command = {"type": "log_level", "level": body.level}
        name = await self._tell(call, "replica.log_level", reason, command)
        return json_response({"id": name, "level": body.level}, 202)

    async def restart(self, call: Call) -> Response:
        reason = await reason_of(call)
        name = await self._tell(call, "replica.restart", reason, {"type": "restart"})
        return json_response({"id": name}, 202)

    async def _tell(self, call: Call, action: str, reason: str, command: Mapping[str, Any]) -> str:
        """Send a worker a command; which one. Raises `ApiError`."""
        name = call.path("replica")
        if name not in {replica.id for replica in await self._admin.replicas.all()}:
            raise ApiError("not_found", "no such worker")
        await self._admin.auditor.note(actor_of(call), action, name, reason)
        if not await self._store.publish_control(name, command):
            raise ApiError("not_found", "that worker hears nothing any more")
        return name
