"""Sessions over HTTP; viewers and sidebars on websockets see each change, as if one had asked."""

from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace
from starlette.responses import Response

from server.api.rest.objects import SessionPage
from server.api.rest.operation import (
    IDEMPOTENCY_KEY,
    IF_MATCH,
    IF_NONE_MATCH,
    Access,
    ApiContext,
    Call,
    Operation,
    body_of,
    json_response,
)
from server.commands.create_session import create_session
from server.commands.delete_session import delete_session
from server.commands.update_session import update_session
from server.protocol.client_frames import MAX_INTEGER, CreateSession, UpdateSession, convert
from server.protocol.errors import ApiError, invalid_field
from server.protocol.objects import SessionObject
from sessions.model.errors import RevisionConflict
from sessions.model.ids import check_session_id
from sessions.model.records import Session

Limit = Annotated[int, Meta(ge=1, le=200)]
Cursor = Annotated[  # the store has the last word on it
    str,
    Meta(
        description="`next_cursor` of the page before, and nothing else.",
        extra_json_schema={"pattern": r"^[A-Za-z0-9:_.@-]{3,512}$"},
    ),
]


class ListQuery(Struct, frozen=True):
    """Which of the caller's sessions; `q` is searched for in titles."""

    limit: Limit = 50
    cursor: Cursor | None = None
    q: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    pinned: bool | None = None
    updated_after: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] | None = None


class SessionOperations:
    """The endpoints for sessions."""

    def __init__(self, context: ApiContext) -> None:
        self._services = context.services
        self._store = context.services.store

    def operations(self) -> list[Operation]:
        path = "/v1/sessions/{session_id}"
        return [
            Operation(
                method="POST",
                path="/v1/sessions",
                access=Access.USER,
                endpoint=self.create,
                summary="Make a session, or find the one that this key made",
                headers=(IDEMPOTENCY_KEY,),
                body=body_of(CreateSession, "idempotency_key"),
                answers={201: SessionObject, 200: SessionObject},
            ),
            Operation(
                method="GET",
                path="/v1/sessions",
                access=Access.USER,
                endpoint=self.page,
                summary="The caller's sessions, newest updated first",
                query=ListQuery,
                answers={200: SessionPage},
            ),
            Operation(
                method="GET",
                path=path,
                access=Access.USER,
                endpoint=self.read,
                summary="One session",
                headers=(IF_NONE_MATCH,),
                answers={200: SessionObject, 304: None},
            ),
            Operation(
                method="PATCH",
                path=path,
                access=Access.USER,
                endpoint=self.update,
                summary="Change a session's title, settings, pin or head",
                headers=(IF_MATCH,),
                body=body_of(UpdateSession, "session_id", "if_revision"),
                answers={200: SessionObject},
            ),
            Operation(
                method="DELETE",
                path=path,
                access=Access.USER,
                endpoint=self.delete,
                summary="Delete a session with all its messages",
                headers=(IF_MATCH,),
                answers={204: None},
            ),
        ]

    async def create(self, call: Call) -> Response:
        key = call.header("Idempotency-Key")
        frame = convert({**await call.body(), "type": "session.create", "idempotency_key": key})
        assert isinstance(frame, CreateSession)
        created = await create_session(self._services, call.uid, frame)
        return session_response(created.session, 200 if created.replayed else 201)

    async def page(self, call: Call) -> Response:
        query = call.query
        page = await self._store.lists.page(
            call.uid,
            limit=query.limit,
            cursor=query.cursor,
            title=query.q,
            pinned=query.pinned,
            updated_after=query.updated_after,
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
        session = await self._store.sessions.get(call.uid, session_id)
        known = _tags(call.header("If-None-Match"))
        # Messages change the object, too, and leave the revision as it is.
        if session.is_at_revision and (etag(session) in known or "*" in known):
            headers = {"ETag": etag(session), "Cache-Control": "no-store"}
            return Response(status_code=304, headers=headers)
        return session_response(session)

    async def update(self, call: Call) -> Response:
        session_id = call.path("session_id")
        check_session_id(session_id)
        if_revision = _if_revision(call)
        frame = convert({**await call.body(), "type": "session.update", "session_id": session_id})
        assert isinstance(frame, UpdateSession)
        try:
            session = await update_session(
                self._services, call.uid, replace(frame, if_revision=if_revision)
            )
        except RevisionConflict as conflict:
            raise precondition_failed() from conflict
        return session_response(session)

    async def delete(self, call: Call) -> Response:
        session_id = call.path("session_id")
        check_session_id(session_id)
        if_revision = _if_revision(call)
        try:
            await delete_session(self._services, call.uid, session_id, if_revision=if_revision)
        except RevisionConflict as conflict:
            raise precondition_failed() from conflict
        return Response(status_code=204, headers={"Cache-Control": "no-store"})


def session_response(session: Session, status: int = 200) -> Response:
    """A session with its validator and its address."""
    headers = {"ETag": etag(session)}
    if status == 201:
        headers["Location"] = f"/v1/sessions/{session.id}"
    return json_response(session.wire(), status, headers)


def etag(session: Session) -> str:
    return f'"{session.revision}"'


def precondition_failed() -> ApiError:
    """`If-Match` names another revision."""
    error = ApiError("revision_conflict", "the session was changed meanwhile")
    error.http_status = 412
    return error


def _if_revision(call: Call) -> int | None:
    """The revision that `If-Match` asks for; one that never was ours matches none."""
    tags = _tags(call.header("If-Match"))
    if not tags or "*" in tags:
        return None
    if len(tags) > 1:
        raise invalid_field("If-Match", "send one ETag")
    number = tags[0].strip('"')
    is_ours = number.isascii() and number.isdigit() and len(number) < 16
    if tags[0] != f'"{number}"' or not is_ours:
        raise precondition_failed()
    return int(number)


def _tags(header: str | None) -> list[Any]:
    return [tag.strip() for tag in (header or "").split(",") if tag.strip()]
