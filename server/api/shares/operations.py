"""Share links: the owner creates and deletes them, anyone who has the link reads."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from server.access.auth import address_of
from server.access.rates import Places, TokenBuckets
from server.api.rest.objects import SharedSession, ShareLink
from server.api.rest.operation import Access, ApiContext, Call, Operation, json_response
from server.api.shares.page import RefusalPage, SharePage
from server.commands.exports import breathing
from server.protocol.errors import ApiError
from server.protocol.http_errors import error_response
from sessions.model.errors import QuotaExceeded, ShareNotFound
from sessions.model.ids import check_session_id
from sessions.store.shares import Share

MAX_SHARED_BYTES = 2 * 1024 * 1024  # of text; on a page it may be six times that
# Of one worker. A reader holds a packed snapshot and a message, some megabytes at worst.
MAX_READERS = 16
MAX_READERS_PER_ADDRESS = 4
READS_PER_S = 10  # of one address
READ_SECONDS = 120.0  # for the whole, or a slow reader would keep a place for hours
HEADERS = {"Cache-Control": "no-store", "X-Robots-Tag": "noindex, nofollow", "Vary": "Accept"}


class ShareOperations:
    """The endpoints for share links."""

    def __init__(self, context: ApiContext) -> None:
        self._store = context.services.store
        self._identities = context.authenticator.identities
        self._readers = Places(
            "readers of links", per_owner=MAX_READERS_PER_ADDRESS, in_all=MAX_READERS
        )
        self._rates = TokenBuckets(READS_PER_S)
        self._static = Path(str(context.static.directory))

    @cached_property
    def _page(self) -> SharePage:
        return SharePage(self._static)

    @cached_property
    def _refusal_page(self) -> RefusalPage:
        return RefusalPage(self._static)

    def operations(self) -> list[Operation]:
        path = "/v1/sessions/{session_id}/share"
        return [
            Operation(
                method="POST",
                path=path,
                access=Access.USER,
                endpoint=self.share,
                summary="Show the session's messages of now under its link",
                answers={201: ShareLink},
            ),
            Operation(
                method="DELETE",
                path=path,
                access=Access.USER,
                endpoint=self.unshare,
                summary="Take the session's link back",
                answers={204: None},
            ),
            Operation(
                method="GET",
                path="/s/{share_id}",
                access=Access.PUBLIC,
                endpoint=self.read,
                summary="What a link shows: a page for browsers, JSON for programs",
                answers={200: (SharedSession, "text/html")},
                refuse=self.refuse,
            ),
        ]

    async def share(self, call: Call) -> Response:
        session_id = call.path("session_id")
        check_session_id(session_id)
        session = await self._store.sessions.get(call.uid, session_id)
        messages = []
        num_bytes = 0
        async for message in self._store.messages.each(call.uid, session_id, whole_tree=False):
            if message.status == "in_progress":
                continue
            messages.append(message)
            num_bytes += len(message.text.encode())
            if num_bytes > MAX_SHARED_BYTES:
                raise QuotaExceeded("bytes in a shared conversation", MAX_SHARED_BYTES)
        share = await self._store.shares.create(call.uid, session_id, session.title, messages)
        body = {"id": share.id, "path": f"/s/{share.id}", "shared_at": share.shared_at}
        return json_response(body, 201)

    async def unshare(self, call: Call) -> Response:
        session_id = call.path("session_id")
        check_session_id(session_id)
        await self._store.shares.remove(call.uid, session_id)
        return Response(status_code=204, headers={"Cache-Control": "no-store"})

    async def read(self, call: Call) -> Response:
        """Anybody may ask, and guess: each address so often, and so many times at once."""
        address = address_of(call.request)
        self._rates.check(address)
        with contextlib.ExitStack() as place:
            place.enter_context(self._readers.one(address))
            share = await self._store.shares.get(call.path("share_id"))
            if not await self._identities.is_known(share.owner):
                raise ShareNotFound  # as long as an admin keeps its owner out
            is_page = _wants_page(call.request)
            return HeldStream(
                breathing(self._page.of(share) if is_page else as_json(share)),
                media_type="text/html; charset=utf-8" if is_page else "application/json",
                headers=HEADERS,
                place=place.pop_all(),
            )

    def refuse(self, request: Request, error: ApiError) -> Response:
        """A page for people, the error object for programs."""
        answer = error_response(error)
        if not _wants_page(request):
            return answer
        retry = {n: answer.headers[n] for n in ("retry-after",) if n in answer.headers}
        page = self._refusal_page.of(error)
        return HTMLResponse(page, error.http_status, headers={**HEADERS, **retry})


class HeldStream(StreamingResponse):
    """Gives its place back when it has been sent, or can be sent no more."""

    def __init__(self, *args: Any, place: contextlib.ExitStack, **options: Any) -> None:
        super().__init__(*args, **options)
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._place:
            try:
                async with asyncio.timeout(READ_SECONDS):
                    await super().__call__(scope, receive, send)
            except TimeoutError:  # half of it is out: only the cut can show that it is incomplete
                raise ClientDisconnect from None


def _wants_page(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "").lower()


async def as_json(share: Share) -> AsyncIterator[bytes]:
    """A `SharedSession`, in parts."""
    head = {"id": share.id, "title": share.title, "shared_at": share.shared_at}
    yield orjson.dumps(head)[:-1] + b',"messages":['
    separator = b""
    for message in share.messages():
        yield separator + message
        separator = b","
    yield b"]}"
