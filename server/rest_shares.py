"""Share links: the owner makes and takes back, whoever has the link reads."""

import asyncio
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.http_objects import SharedSession, ShareLink
from server.operations import Access, Call, Doors, Operation, json_response
from server.translate import check_session_id
from sessions.shares import Share

HEADERS = {"Cache-Control": "no-store", "X-Robots-Tag": "noindex, nofollow", "Vary": "Accept"}


class ShareOperations:
    """The endpoints for share links."""

    def __init__(self, doors: Doors) -> None:
        self._store = doors.services.store

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
            ),
        ]

    async def share(self, call: Call) -> Response:
        session_id = call.path("session_id")
        check_session_id(session_id)
        session = await self._store.session(call.uid, session_id)
        messages = [
            message
            async for message in self._store.messages_of(call.uid, session_id, whole_tree=False)
            if message.status != "in_progress"
        ]
        share = await self._store.share_session(call.uid, session_id, session.title, messages)
        body = {"id": share.id, "path": f"/s/{share.id}", "shared_at": share.shared_at}
        return json_response(body, 201)

    async def unshare(self, call: Call) -> Response:
        session_id = call.path("session_id")
        check_session_id(session_id)
        await self._store.unshare_session(call.uid, session_id)
        return Response(status_code=204, headers={"Cache-Control": "no-store"})

    async def read(self, call: Call) -> Response:
        share = await self._store.share(call.path("share_id"))
        if not _wants_page(call.request):
            answer = await asyncio.to_thread(json_response, share.wire())
            answer.headers.update(HEADERS)
            return answer
        html = await asyncio.to_thread(page, share)  # megabytes, perhaps
        return Response(html, media_type="text/html; charset=utf-8", headers=HEADERS)


def _wants_page(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "").lower()


def page(share: Share) -> str:
    """A page without a script; everything that users wrote is escaped text."""
    title = escape(share.title or "A conversation")
    messages = "\n".join(_article(message) for message in share.messages)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>{title}</title>
<link rel="stylesheet" href="/static/css/share.css">
<main>
<h1>{title}</h1>
{messages}
</main>
</html>
"""


def _article(message: dict[str, Any]) -> str:
    text = escape("".join(part["text"] for part in message["content"]))
    role = "user" if message["role"] == "user" else "assistant"
    note = "" if message["status"] == "completed" else f" ({escape(message['status'])})"
    return f'<article class="{role}"><h2>{role}{note}</h2><p dir="auto">{text}</p></article>'
