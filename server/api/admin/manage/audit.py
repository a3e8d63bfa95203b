"""The audit log over HTTP, for admins."""

from typing import Annotated

from msgspec import Meta
from starlette.responses import Response

from server.api.admin.actions import Admin
from server.api.admin.objects import AuditPage
from server.api.admin.users import PageQuery
from server.api.rest.operation import Access, Call, Operation, json_response
from sessions.directory.audit import AuditFilter

Word = Annotated[str, Meta(max_length=200)]
Moment = Annotated[int, Meta(ge=0, le=2**53 - 1)]


class AuditQuery(PageQuery, frozen=True):
    """Filters: `action` is whole, or begins with what stands before a `*`; `since`, `until` in ms.

    A page looks at 2,000 entries at most: it may be short, with a cursor.
    """

    actor: Word | None = None
    action: Word | None = None
    target: Word | None = None
    since: Moment | None = None
    until: Moment | None = None


class AdminAuditOperations:
    """The endpoint."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/v1/admin/audit",
                access=Access.ADMIN,
                endpoint=self.page,
                summary="Who did or read what as an admin, newest first",
                query=AuditQuery,
                answers={200: AuditPage},
            ),
        ]

    async def page(self, call: Call) -> Response:
        query: AuditQuery = call.query
        wanted = AuditFilter(query.actor, query.action, query.target, query.since, query.until)
        page = await self._admin.auditor.log.page(query.limit, query.cursor, wanted)
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
