"""Everybody's sessions and answers over HTTP, for admins: list, look, stop, evict."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from server.access.audit import TRANSCRIPTS, Actor
from server.access.auth import address_of
from server.access.identities import BUILT_IN
from server.api.admin.actions import MOMENTS, Admin, timeline_wire
from server.api.admin.objects import (
    ListedSessions,
    ResponseTimeline,
    SessionDetails,
    StoppedResponses,
)
from server.api.rest.messages import PathQuery, messages_response
from server.api.rest.objects import MessagePage
from server.api.rest.operation import Access, Call, Operation, json_response
from server.api.rest.sessions import Cursor, Limit
from server.protocol.client_frames import to_struct
from server.protocol.errors import ApiError
from server.protocol.titles import given_line, needed_line
from sessions.directory.finding.names import NamedUser
from sessions.directory.listing import Listed, Order
from sessions.model.errors import ResponseNotFound, SessionNotFound
from sessions.model.ids import (
    check_message_id,
    check_response_id,
    check_session_id,
    is_response_id,
    is_user_id,
    session_of,
)
from sessions.model.records import Message, RunRecord
from sessions.store.store import SessionStore

MAX_USERS = 20  # whose sessions are one list
NONE = Listed((), None, 0)

Reason = Annotated[str, Meta(max_length=200)]


Sought = Annotated[str, Meta(max_length=200)]


class SessionsQuery(Struct, frozen=True):
    """Filters. `active` or `replica`: those with an answer; `id`: a session's or a response's.

    `find`: an id of a session, a response or a user, or a part of a user's name; `title`: a part of
    the title. `order` is that of those with an answer; of all others only `-age` is another order,
    the longest unused first.
    """

    limit: Limit = 50
    cursor: Cursor | None = None
    active: bool = False
    user: str | None = None
    model: str | None = None
    replica: str | None = None
    id: str | None = None
    find: Sought | None = None
    title: Sought | None = None
    order: Order = "age"


class StopBody(Struct, frozen=True):
    reason: Reason = ""


class EvictBody(Struct, frozen=True):
    """`lock`: the session takes no new answer until it is unlocked."""

    reason: Annotated[str, Meta(min_length=1, max_length=200)]
    lock: bool = False


class AdminSessionOperations:
    """The endpoints."""

    def __init__(self, admin: Admin, store: SessionStore) -> None:
        self._admin = admin
        self._store = store

    def operations(self) -> list[Operation]:
        path = "/v1/admin/sessions/{session_id}"
        return [
            Operation(
                method="GET",
                path="/v1/admin/sessions",
                access=Access.ADMIN,
                endpoint=self.page,
                summary="Everybody's sessions, newest updated first, or those that are active",
                query=SessionsQuery,
                answers={200: ListedSessions},
            ),
            Operation(
                method="GET",
                path=path,
                access=Access.ADMIN,
                endpoint=self.read,
                summary="One session with its viewers and the timelines of its answers",
                answers={200: SessionDetails},
            ),
            Operation(
                method="GET",
                path=path + "/messages",
                access=Access.ADMIN,
                scope=TRANSCRIPTS,
                endpoint=self.messages,
                summary="Read a conversation; the audit log has it before the answer leaves",
                query=PathQuery,
                answers={200: MessagePage},
            ),
            Operation(
                method="POST",
                path=path + "/stop",
                access=Access.ADMIN,
                endpoint=self.stop,
                summary="Stop a session's answers",
                body=StopBody,
                answers={200: StoppedResponses, 202: StoppedResponses},
            ),
            Operation(
                method="POST",
                path=path + "/evict",
                access=Access.ADMIN,
                endpoint=self.evict,
                summary="Stop a session's answers and close its viewers' connections with 4410",
                body=EvictBody,
                answers={200: StoppedResponses, 202: StoppedResponses},
            ),
            Operation(
                method="POST",
                path=path + "/unlock",
                access=Access.ADMIN,
                endpoint=self.unlock,
                summary="Let a locked session take answers again",
                body=StopBody,
                answers={204: None},
            ),
            Operation(
                method="GET",
                path="/v1/admin/responses/{response_id}",
                access=Access.ADMIN,
                endpoint=self.response,
                summary="The timeline of one answer",
                answers={200: ResponseTimeline},
            ),
        ]

    async def page(self, call: Call) -> Response:
        query: SessionsQuery = call.query
        if query.id is not None:
            return json_response(self._listed(await self._by_id(query.id), call))
        if query.title:
            if not actor_of(call).sees_transcripts:
                raise ApiError("forbidden", f"titles need the scope {TRANSCRIPTS}", param="title")
            listed = await self._admin.listing.titled(query.title, query.limit, query.cursor)
            return json_response(self._listed(listed, call))
        if not query.find:
            uids = None if query.user is None else [query.user]
            return json_response(self._listed(await self._filtered(query, uids), call))
        if (listed := await self._by_id(query.find)).sessions:
            return json_response(self._listed(listed, call))
        users = await self._named(query.find)
        listed = await self._filtered(query, [user.uid for user in users]) if users else NONE
        found = [{"id": user.uid, "name": user.name} for user in users]
        return json_response({**self._listed(listed, call), "users": found})

    async def _filtered(self, query: SessionsQuery, uids: Sequence[str] | None) -> Listed:
        listing = self._admin.listing
        if not query.active and query.replica is None:
            return await listing.sessions(
                query.limit,
                query.cursor,
                uids=uids,
                model=query.model,
                oldest_first=query.order == "-age",
            )
        return await listing.live(
            query.limit,
            query.cursor,
            uids=uids,
            model=query.model,
            replica=query.replica,
            order=query.order,
        )

    async def _named(self, text: str) -> list[NamedUser]:
        """The user with this id, or those with such a name."""
        if text in BUILT_IN or is_user_id(text):
            known = await self._admin.users.users([text])
            name = known[text].name if text in known else text
            return [NamedUser(text, name)]
        return await self._admin.names.find(text, MAX_USERS)

    async def _by_id(self, name: str) -> Listed:
        """The one session that has this id, or that holds the answer with this id."""
        session_id = session_of(name) if is_response_id(name) else name
        try:
            listed, _, now_ms = await self._admin.listing.session(session_id)
        except SessionNotFound:
            return NONE
        return Listed((listed,), None, now_ms)

    def _listed(self, listed: Listed, call: Call) -> dict[str, object]:
        actor = actor_of(call)
        return {
            "sessions": [
                self._admin.session_wire(one, actor, listed.now_ms) for one in listed.sessions
            ],
            "next_cursor": listed.next_cursor,
            **({} if listed.examined is None else {"examined": listed.examined}),
        }

    async def read(self, call: Call) -> Response:
        session_id = call.path("session_id")
        listed, runs, now_ms = await self._admin.listing.session(session_id)
        return json_response(
            {
                "session": self._admin.session_wire(listed, actor_of(call), now_ms),
                "viewers": dict(listed.viewers),
                "responses": [timeline_wire(run) for run in runs],
            }
        )

    async def messages(self, call: Call) -> Response:
        session_id = call.path("session_id")
        check_session_id(session_id)
        query: PathQuery = call.query
        for message_id in (query.leaf, query.before):
            check_message_id(message_id)
        page = await self._store.messages.path(
            None, session_id, limit=query.limit, leaf=query.leaf, before=query.before
        )
        await self._admin.auditor.note(actor_of(call), "session.read", session_id)
        return messages_response(page)

    async def stop(self, call: Call) -> Response:
        session_id = call.path("session_id")
        reason = await reason_of(call)
        await self._store.sessions.get(None, session_id)
        await self._admin.auditor.note(actor_of(call), "session.stop", session_id, reason)
        return stopped_response(await self._admin.stop(session_id))

    async def evict(self, call: Call) -> Response:
        session_id = call.path("session_id")
        body: EvictBody = to_struct(await call.body(), EvictBody)
        reason = needed_line("reason", body.reason, "say why")
        await self._store.sessions.get(None, session_id)
        action = "session.evict_and_lock" if body.lock else "session.evict"
        await self._admin.auditor.note(actor_of(call), action, session_id, reason)
        return stopped_response(await self._admin.evict(session_id, reason, lock=body.lock))

    async def unlock(self, call: Call) -> Response:
        session_id = call.path("session_id")
        reason = await reason_of(call)
        await self._store.sessions.get(None, session_id)
        await self._admin.auditor.note(actor_of(call), "session.unlock", session_id, reason)
        await self._admin.unlock(session_id)
        return Response(status_code=204)

    async def response(self, call: Call) -> Response:
        response_id = call.path("response_id")
        check_response_id(response_id)
        try:
            return json_response(timeline_wire(await self._store.runs.get(None, response_id)))
        except ResponseNotFound:
            message = await self._admin.listing.answer(response_id)
        return json_response(message_timeline(response_id, message))


def message_timeline(response_id: str, message: Message) -> dict[str, object]:
    """One answer's way, from the message that it wrote: it outlives the run's own keys."""
    timings = message.timings or {}
    return {
        "id": response_id,
        "session_id": session_of(response_id),
        "message_id": message.id,
        "model": message.model,
        "status": message.status,
        "reason": (message.status_details or {}).get("reason"),
        "tokens": (message.usage or {}).get("output_tokens"),
        "text_length": message.text_length,
        "timeline": {name: timings[name] for name in MOMENTS if name in timings},
    }


def stopped_response(runs: list[RunRecord]) -> Response:
    """200 when all have ended; 202 while an owner is silent."""
    body = {
        "responses": [
            {"id": run.response_id, "status": run.status, "reason": run.reason or None}
            for run in runs
        ]
    }
    return json_response(body, 202 if any(run.is_live for run in runs) else 200)


async def reason_of(call: Call) -> str:
    """Why, if the body says so. Raises `ApiError`."""
    body: StopBody = to_struct(await call.body(), StopBody)
    return given_line("reason", body.reason)


def actor_of(call: Call) -> Actor:
    """Who asks, and from where."""
    return Actor(call.user, address_of(call.request))
