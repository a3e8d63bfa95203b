"""The chat page, the admin page, and their files."""

import re

from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from server.api.rest.operation import Access, ApiContext, Call, Operation

VERSIONED = re.compile(r"vendor/[^/]*[0-9]")  # such a folder's name changes with its files


class Pages:
    """The endpoints of the page."""

    def __init__(self, context: ApiContext) -> None:
        self._static = context.static

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
        ]

    async def index(self, call: Call) -> Response:
        return FileResponse(self._static / "index.html", headers={"Cache-Control": "no-cache"})

    async def admin(self, call: Call) -> Response:
        return FileResponse(self._static / "admin.html", headers={"Cache-Control": "no-cache"})


class Static(StaticFiles):
    """The page's files: vendored ones may be kept for ever, our own are asked for each time."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(405, headers={"Allow": "GET, HEAD"})
        answer = await super().get_response(path, scope)
        immutable = VERSIONED.match(path) is not None
        answer.headers["Cache-Control"] = "max-age=31536000, immutable" if immutable else "no-cache"
        return answer
