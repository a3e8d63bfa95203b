"""Sessions over HTTP."""

from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from server.operations import Access, Call, Doors, Operation, json_response
from server.translate import check_session_id

Limit = Annotated[int, Meta(ge=1, le=200)]


class ListQuery(Struct, frozen=True):
    """Which of the caller's sessions."""

    limit: Limit = 50
    cursor: str | None = None


class SessionOperations:
    """The endpoints for sessions."""

    def __init__(self, doors: Doors) -> None:
        self._store = doors.services.store

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/v1/sessions",
                access=Access.USER,
                endpoint=self.page,
                summary="The caller's sessions, newest updated first",
                query=ListQuery,
            ),
            Operation(
                method="GET",
                path="/v1/sessions/{session_id}",
                access=Access.USER,
                endpoint=self.read,
                summary="One session",
            ),
        ]

    async def page(self, call: Call) -> Response:
        page = await self._store.sessions(
            call.uid, limit=call.query.limit, cursor=call.query.cursor
        )
        return json_response(
            {
                "sessions": [session.wire() for session in page.sessions],
                "next_cursor": page.next_cursor,
            }
        )

    async def read(self, call: Call) -> Response:
        session_id = call.path("session_id")
        check_session_id(session_id)
        session = await self._store.session(call.uid, session_id)
        return json_response(session.wire(), headers={"ETag": f'"{session.revision}"'})
