"""The page, its files, and the way into it: a one-time code becomes a cookie."""

import re

from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from server.auth import COOKIE_SECONDS, cookie_name
from server.operations import Access, Call, Doors, Operation

MAX_CODE_CHARACTERS = 128
VERSIONED = re.compile(r"vendor/[^/]*[0-9]")  # such a folder's name changes with its files


class Pages:
    """The endpoints of the page."""

    def __init__(self, doors: Doors) -> None:
        self._credentials = doors.credentials
        self._identities = doors.authenticator.identities
        self._static = doors.static

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/",
                access=Access.PUBLIC,
                endpoint=self.index,
                summary="The chat page",
                answers={200: "text/html"},
            ),
            Operation(
                method="GET",
                path="/admin",
                access=Access.PUBLIC,
                endpoint=self.admin,
                summary="The admin page, which asks for a token itself",
                answers={200: "text/html"},
            ),
            Operation(
                method="GET",
                path="/login",
                access=Access.PUBLIC,
                endpoint=self.login,
                summary="Exchange a one-time code for a cookie",
                answers={303: None},
            ),
        ]

    async def index(self, call: Call) -> Response:
        return FileResponse(self._static / "index.html", headers={"Cache-Control": "no-cache"})

    async def admin(self, call: Call) -> Response:
        return FileResponse(self._static / "admin.html", headers={"Cache-Control": "no-cache"})

    async def login(self, call: Call) -> Response:
        """Exchange a one-time code for a cookie, and show the page without the code in its URL."""
        code = call.request.query_params.get("code", "")[:MAX_CODE_CHARACTERS]
        cookie = await self._new_cookie(code)
        if cookie is None:
            return Response(
                "This login link was used already or is too old.\n"
                "Run `parley login` to get another one.\n",
                status_code=401,
                media_type="text/plain; charset=utf-8",
                headers={"Cache-Control": "no-store"},
            )
        answer = RedirectResponse("/", status_code=303, headers={"Cache-Control": "no-store"})
        secure = call.request.url.scheme == "https"
        answer.set_cookie(
            cookie_name(secure),
            cookie,
            max_age=COOKIE_SECONDS,
            path="/",
            secure=secure,
            httponly=True,
            samesite="lax",
        )
        return answer

    async def _new_cookie(self, code: str) -> str | None:
        """What the code is exchanged for; None if it, or its user, is no more."""
        uid = await self._credentials.redeem_login_code(code)
        if uid is None or not await self._identities.is_known(uid):
            return None
        cookie = await self._credentials.create_cookie(uid, COOKIE_SECONDS)
        if await self._identities.is_known(uid):
            return cookie
        await self._credentials.revoke(cookie)  # its user went meanwhile, and nothing of them stays
        return None


class Static(StaticFiles):
    """The page's files: vendored ones may be kept for ever, our own are asked for each time."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(405, headers={"Allow": "GET, HEAD"})
        answer = await super().get_response(path, scope)
        immutable = VERSIONED.match(path) is not None
        answer.headers["Cache-Control"] = "max-age=31536000, immutable" if immutable else "no-cache"
        return answer
