"""Share links and what users store, over HTTP, for admins.

A share link is a permission to read: its id is told to nobody here. A link is taken back by its
session.
"""

from typing import Any

from starlette.responses import Response

from server.access.identities import BUILT_IN
from server.api.admin.actions import Admin
from server.api.admin.manage.objects import ShareList, Storage
from server.api.admin.sessions import actor_of
from server.api.admin.users import PageQuery
from server.api.rest.operation import Access, Call, Operation, json_response
from sessions.model.errors import UserNotFound
from sessions.model.ids import check_session_id, is_user_id
from sessions.store.store import SessionStore


class AdminShareOperations:
    """The endpoints."""

    def __init__(self, admin: Admin, store: SessionStore) -> None:
        self._admin = admin
        self._store = store

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/v1/admin/shares",
                access=Access.ADMIN,
                endpoint=self.page,
                summary="Every share link with its owner and date, the newest first",
                query=PageQuery,
                answers={200: ShareList},
            ),
            Operation(
                method="DELETE",
                path="/v1/admin/shares/{session_id}",
                access=Access.ADMIN,
                endpoint=self.revoke,
                summary="Take back the share link of a session",
                answers={204: None},
            ),
            Operation(
                method="GET",
                path="/v1/admin/users/{uid}/storage",
                access=Access.ADMIN,
                endpoint=self.storage,
                summary="How many sessions, messages and bytes a user stores",
                answers={200: Storage},
            ),
        ]

    async def page(self, call: Call) -> Response:
        page = await self._store.shares.page(call.query.limit, call.query.cursor)
        users = await self._admin.users.users({share.uid for share in page.shares})
        names = {uid: user.name for uid, user in BUILT_IN.items()}
        names |= {uid: user.name for uid, user in users.items()}
        sees_titles = actor_of(call).sees_transcripts
        shares: list[dict[str, Any]] = [
            {
                "session_id": share.session_id,
                "user": {"id": share.uid, "name": names.get(share.uid)},
                "title": share.title if sees_titles else None,
                "shared_at": share.shared_at,
            }
            for share in page.shares
        ]
        return json_response({"shares": shares, "next_cursor": page.next_cursor})

    async def revoke(self, call: Call) -> Response:
        session_id = call.path("session_id")
        check_session_id(session_id)
        session = await self._store.sessions.get(None, session_id)
        await self._admin.auditor.note(actor_of(call), "share.revoke", session_id)
        await self._store.shares.remove(session.uid, session_id)
        return Response(status_code=204)

    async def storage(self, call: Call) -> Response:
        uid = call.path("uid")
        if uid not in BUILT_IN:
            if not is_user_id(uid):
                raise UserNotFound
            await self._admin.users.user(uid)
        stored = await self._store.lists.storage(uid)
        (usage,) = await self._store.budgets.usage([uid])
        return json_response(
            {
                "user_id": uid,
                "sessions": stored.num_sessions,
                "counted": stored.num_counted,
                "messages": stored.num_messages,
                "bytes": stored.num_bytes,
                "tokens_today": usage.tokens_today,
            }
        )
