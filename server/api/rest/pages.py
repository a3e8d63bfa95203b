"""The chat page, the admin page, the frame of a diagram, and their files.

In a checkout these are the sources, in a wheel what `static/bundler/` has made of them.
"""

import asyncio
import base64
import gzip
import hashlib
import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from server.api.rest.operation import Access, ApiContext, Call, Operation

COMPRESSIBLE = (".js", ".css", ".svg", ".html", ".map")
INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
SUFFIXES = {"br": ".br", "gzip": ".gz"}  # of the forms that a bundle brings, the smaller first
# Such a name changes with what it names: the version of a library, the hash of a bundle.
VERSIONED = re.compile(r"vendor/[^/]*[0-9]|.*-[0-9A-Z]{8}\.(js|css)(\.map)?$")


class Pages:
    """The endpoints of the pages."""

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
            Operation(
                method="GET",
                path="/diagram",
                access=Access.PUBLIC,
                endpoint=self.diagram,
                summary="The frame without an origin in which the chat page draws a diagram",
                answers={200: "text/html"},
            ),
        ]

    async def index(self, call: Call) -> Response:
        return await self._static.get_response("index.html", call.request.scope)

    async def admin(self, call: Call) -> Response:
        return await self._static.get_response("admin.html", call.request.scope)

    async def diagram(self, call: Call) -> Response:
        response = await self._static.get_response("diagram.html", call.request.scope)
        response.headers["Content-Security-Policy"] = self._diagram_policy
        return response

    @cached_property
    def _diagram_policy(self) -> str:
        folder = Path(str(self._static.directory))
        manifest = json.loads((folder / "vendor" / "manifest.json").read_bytes())
        document = (folder / "diagram.html").read_bytes()
        return diagram_policy(document, manifest)


def diagram_policy(document: bytes, manifest: dict[str, Any]) -> str:
    """The policy of the document that draws a diagram: two scripts by their digests, nothing else.

    Mermaid makes markup of a model's text, so it runs where there is nothing to take. The document
    has no origin, even where somebody opens it by itself. docs/security.md says more.
    """
    found = INLINE_SCRIPT.search(document)
    assert found is not None
    own = base64.b64encode(hashlib.sha256(found[1]).digest()).decode()
    (library,) = (
        digest
        for package in manifest["packages"]
        for name, digest in package["files"].items()
        if package["name"] == "mermaid" and name.endswith(".js")
    )
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'sha256-{own}' '{library}'",
            "style-src 'unsafe-inline'",  # each picture of Mermaid's brings its own style sheet
            "connect-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'self'",
            "sandbox allow-scripts",
        )
    )


class Static(StaticFiles):
    """The page's files: what has a versioned name may be kept for ever, the rest is checked.

    What is text is sent compressed to those who take that. In a wheel the compressed forms lie
    beside the files. Else a file is compressed once and then held, beside the loop: a middleware
    would do it for each request, while answers wait.
    """

    def __init__(self, *, directory: Path) -> None:
        super().__init__(directory=directory)
        suffixes = tuple(SUFFIXES.values())
        paths = (path.relative_to(directory).as_posix() for path in directory.rglob("*"))
        self._forms = frozenset(path for path in paths if path.endswith(suffixes))
        self._compressed: dict[str, tuple[str, bytes]] = {}  # path -> etag of the file, its gzip

    async def get_response(self, path: str, scope: Scope) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(405, headers={"Allow": "GET, HEAD"})
        if path in self._forms:
            raise HTTPException(404)  # a form of a file has no address of its own
        if path.endswith(COMPRESSIBLE):
            answer = await self._smallest(path, scope)
            answer.headers["Vary"] = "Accept-Encoding"
        else:
            answer = await super().get_response(path, scope)
        immutable = VERSIONED.match(path) is not None
        kept = "public, max-age=31536000, immutable" if immutable else "no-cache"
        answer.headers["Cache-Control"] = kept
        return answer

    async def _smallest(self, path: str, scope: Scope) -> Response:
        """The file in the smallest form that the client takes."""
        headers = Headers(scope=scope)
        accepted = accepted_encodings(headers.get("accept-encoding", ""))
        for encoding, suffix in SUFFIXES.items():
            if encoding in accepted and path + suffix in self._forms:
                answer = await super().get_response(path + suffix, scope)
                if answer.status_code == 200:
                    answer.headers["Content-Encoding"] = encoding
                return answer
        if "gzip" in accepted:
            return await self._gzipped(path, scope, headers.get("if-none-match", ""))
        return await super().get_response(path, scope)

    async def _gzipped(self, path: str, scope: Scope, known: str) -> Response:
        """The file in gzip, or 304 where this form of it is `known`."""
        # The tags decide: a file that has changed may have an older date.
        ours = (b"if-none-match", b"if-modified-since")
        plain = [(name, value) for name, value in scope["headers"] if name not in ours]
        answer = await super().get_response(path, {**scope, "headers": plain})
        if not isinstance(answer, FileResponse):
            return answer
        file_tag = answer.headers["etag"]
        held = self._compressed.get(path)
        if held is None or held[0] != file_tag:
            held = (file_tag, await asyncio.to_thread(_compressed, Path(answer.path)))
            self._compressed[path] = held
        headers = {
            "ETag": file_tag[:-1] + '-gzip"',
            "Last-Modified": answer.headers["last-modified"],
            "Content-Encoding": "gzip",
        }
        if headers["ETag"] in known:
            del headers["Content-Encoding"]
            return Response(status_code=304, headers=headers)
        return Response(held[1], headers=headers, media_type=answer.media_type)


def accepted_encodings(header: str) -> set[str]:
    """The encodings that an `Accept-Encoding` names and does not refuse by `q=0`."""
    accepted = set()
    for one in header.lower().split(","):
        name, _, weight = one.partition(";")
        if not re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", weight):
            accepted.add(name.strip())
    return accepted


def _compressed(path: Path) -> bytes:
    return gzip.compress(path.read_bytes(), 9, mtime=0)
