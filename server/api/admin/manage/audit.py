"""The audit log over HTTP, for admins."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from msgspec import Meta
from starlette.responses import Response

from server.access.identities import BUILT_IN
from server.api.admin.actions import Admin
from server.api.admin.objects import AuditPage
from server.api.admin.users import PageQuery
from server.api.rest.operation import Access, Call, Operation, json_response
from sessions.directory.audit import AuditEntry, AuditFilter
from sessions.model.ids import is_group_id, is_session_id, is_user_id

Word = Annotated[str, Meta(max_length=200)]
MEMBERSHIPS = ("group.join", "group.leave")  # whose reason is the member's id
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
        entries = await self._named(page.entries)
        return json_response({"entries": entries, "next_cursor": page.next_cursor})

    async def _named(self, entries: Sequence[AuditEntry]) -> list[dict[str, Any]]:
        """With the names of now beside the ids, as far as they still stand for somebody."""
        called, targets = self._admin.called, [entry.target for entry in entries]
        groups, owners = await asyncio.gather(
            called.groups(filter(is_group_id, targets)),
            called.owners(filter(is_session_id, targets)),
        )
        about = {
            entry.id: entry.reason if entry.action in MEMBERSHIPS else owners.get(entry.target)
            for entry in entries
        }
        users = {*(entry.actor for entry in entries), *targets, *about.values()}
        names = {uid: one.name for uid, one in BUILT_IN.items()} | groups
        names |= await called.users(uid for uid in users if uid and is_user_id(uid))
        return [
            {
                **asdict(entry),
                "actor_name": names.get(entry.actor),
                "target_name": names.get(entry.target),
                "user": (uid := about[entry.id]) and {"id": uid, "name": names.get(uid)},
            }
            for entry in entries
        ]
