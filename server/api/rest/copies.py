"""Copies over HTTP: a fork of a session, a session as a file, and a file as a session."""

import asyncio
from typing import Literal

from msgspec import Struct
from starlette.responses import Response, StreamingResponse

from server.access.rates import Places
from server.api.rest.operation import (
    OPTIONAL_KEY,
    Access,
    ApiContext,
    Call,
    Operation,
    optional_key,
)
from server.api.rest.sessions import session_response
from server.commands.exports import as_json, as_markdown, attachment, breathing
from server.commands.imports import ImportBody, parse_import
from server.protocol.client_frames import to_struct
from server.protocol.objects import SessionObject
from sessions.model.ids import check_message_id, check_session_id
from sessions.model.replies import CreatedSession

# Of one worker. A file has up to 16 MiB and may take half a minute to arrive, so arriving files
# take no place from those in work: 128 MiB of files at most, 32 of one user.
MAX_FILES = 8
MAX_FILES_PER_USER = 2
MAX_IMPORTS = 2  # parsed and stored at once, which takes several times the file


class ForkBody(Struct, frozen=True):
    """The newest message of the new session."""

    message_id: str


class ExportQuery(Struct, frozen=True):
    """`json` has every branch and can be imported; `md` has the current one, to read."""

    format: Literal["json", "md"] = "json"


class CopyOperations:
    """The endpoints for copies."""

    def __init__(self, context: ApiContext) -> None:
        self._services = context.services
        self._store = context.services.store
        self._hub = context.services.hub
        self._files = Places("imports", per_owner=MAX_FILES_PER_USER, in_all=MAX_FILES)
        self._importing = asyncio.Semaphore(MAX_IMPORTS)

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="POST",
                path="/v1/sessions/{session_id}/fork",
                access=Access.USER,
                endpoint=self.fork,
                summary="A new session with the messages up to this one",
                headers=(OPTIONAL_KEY,),
                body=ForkBody,
                answers={201: SessionObject, 200: SessionObject},
            ),
            Operation(
                method="GET",
                path="/v1/sessions/{session_id}/export",
                access=Access.USER,
                endpoint=self.export,
                summary="The session as a file",
                query=ExportQuery,
                answers={200: (ImportBody, "text/markdown")},
            ),
            Operation(
                method="POST",
                path="/v1/sessions/import",
                access=Access.USER,
                endpoint=self.import_,
                summary="A new session from an exported file",
                headers=(OPTIONAL_KEY,),
                body=ImportBody,
                answers={201: SessionObject, 200: SessionObject},
            ),
        ]

    async def fork(self, call: Call) -> Response:
        session_id, key = call.path("session_id"), optional_key(call)
        check_session_id(session_id)
        body: ForkBody = to_struct(await call.body(), ForkBody)
        await self._store.sessions.get(call.uid, session_id)
        check_message_id(body.message_id)
        return await self._made(
            await self._store.copies.fork(
                call.uid, session_id, body.message_id, idempotency_key=key
            )
        )

    async def export(self, call: Call) -> Response:
        session_id = call.path("session_id")
        check_session_id(session_id)
        session = await self._store.sessions.get(call.uid, session_id)
        is_json = call.query.format == "json"
        messages = self._store.messages.each(call.uid, session_id, whole_tree=is_json)
        parts = as_json(session, messages) if is_json else as_markdown(session, messages)
        return StreamingResponse(
            breathing(parts),
            media_type="application/json" if is_json else "text/markdown; charset=utf-8",
            headers={
                "Content-Disposition": attachment(session.title, call.query.format),
                "Cache-Control": "no-store",
            },
        )

    async def import_(self, call: Call) -> Response:
        key = optional_key(call)
        with self._files.one(call.uid):
            data = await call.data()
            async with self._importing:
                await call.confirm()  # it may have waited for others' files
                draft = await asyncio.to_thread(
                    parse_import, data, self._services.models.default.name
                )
                del data
                made = await self._store.copies.import_draft(call.uid, draft, idempotency_key=key)
        return await self._made(made)

    async def _made(self, made: CreatedSession) -> Response:
        if not made.replayed:
            await self._hub.publish_created(made.session)
        return session_response(made.session, 200 if made.replayed else 201)
