"""Our outermost layer: what is refused before any route sees it, the answer to an exception that
nobody has caught, and headers for every answer.

Host names are checked against DNS rebinding, header and body sizes against memory, because neither
uvicorn nor Starlette bounds them.
"""

import asyncio
import base64
import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import structlog
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.access.auth import host_name
from server.protocol.errors import ApiError
from server.protocol.http_errors import error_response

logger = structlog.get_logger("server")

MAX_HEADER_BYTES = 16 * 1024
MAX_HEADERS = 100
MAX_BODY_BYTES = 1024 * 1024
LARGER_BODIES = {"/v1/sessions/import": 16 * 1024 * 1024}
BODY_SECONDS = 30.0

_IMPORT_MAP = re.compile(rb'<script type="importmap"[^>]*>(.*?)</script>', re.DOTALL)


class BodyRefused(Exception):
    """Raised to end a request whose body is too large or too slow."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.code)
        self.error = error


class Guard:
    """Wraps the application.

    `index` is the page whose import map the policy must allow; `count_error` gets the code of each
    refusal.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Iterable[str] | None,
        index: bytes,
        count_error: Callable[[str], None],
    ) -> None:
        self._app = app
        self._count_error = count_error
        self._hosts = None if hosts is None else frozenset(hosts)
        self._headers = security_headers(index)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        status = self._refusal(scope)
        if status is not None:
            await Response(status_code=status, headers={"Connection": "close"})(
                scope, receive, send
            )
            return
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
        else:
            await self._http(scope, receive, send)

    def _refusal(self, scope: Scope) -> int | None:
        raw: list[tuple[bytes, bytes]] = scope["headers"]
        if not scope["path"].startswith("/"):  # a whole URL, as for a proxy
            return 400
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in raw}:
            return 400  # a proxy may have read another end of the body
        if len(raw) > MAX_HEADERS or sum(len(k) + len(v) for k, v in raw) > MAX_HEADER_BYTES:
            return 431
        if self._hosts is not None:
            hosts = Headers(scope=scope).getlist("host")
            if len(hosts) != 1 or host_name(hosts[0]) not in self._hosts:
                return 421
        return None

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Ranges are for files larger than any of ours; a request for one gets all of the file
        # (RFC 9110 §14.2). Starlette would refuse wrong ones with its own texts.
        scope["headers"] = [pair for pair in scope["headers"] if pair[0] != b"range"]
        started = False
        request_id = f"req_{secrets.token_hex(16)}"
        named = [(b"x-request-id", request_id.encode())] if scope["path"].startswith("/v1/") else []
        body = BoundedBody(receive, max_body_bytes(scope))

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                present = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *(pair for pair in message["headers"] if pair[0].lower() != b"accept-ranges"),
                    *((n, v) for n, v in self._headers if n not in present),
                    *named,
                ]
            await send(message)

        try:
            check_announced_size(scope)
            await self._app(scope, body, send_with_headers)
        except ClientDisconnect:  # in the middle of its body: there is nobody to answer
            return
        except BodyRefused as refused:
            error = refused.error
        except Exception:
            logger.exception("request failed", path=scope["path"], request_id=request_id)
            error = ApiError("internal", "an internal error occurred")
        else:
            return
        self._count_error(error.code)
        if not started:  # else the connection is cut, which shows that the answer is not whole
            answer = error_response(error)
            answer.headers["connection"] = "close"
            await answer(scope, receive, send_with_headers)


def check_announced_size(scope: Scope) -> None:
    """Refuse a body that says that it is too large, whether anybody would read it or not."""
    announced = Headers(scope=scope).get("content-length", "0")
    if int(announced) > max_body_bytes(scope):
        raise BodyRefused(ApiError("payload_too_large", "the body is too large"))


def max_body_bytes(scope: Scope) -> int:
    return LARGER_BODIES.get(scope["path"], MAX_BODY_BYTES)


class BoundedBody:
    """`receive` that counts bytes and time, and trusts no `Content-Length`."""

    def __init__(self, receive: Receive, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._deadline = asyncio.get_running_loop().time() + BODY_SECONDS
        self._complete = False

    async def __call__(self) -> MutableMapping[str, Any]:
        if self._complete:
            return await self._receive()  # only the disconnect is left to come
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise BodyRefused(
                ApiError("request_timeout", "the body took too long to arrive")
            ) from None
        if message["type"] == "http.request":
            self._num_bytes += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self._num_bytes > self._max_bytes:
                raise BodyRefused(ApiError("payload_too_large", "the body is too large"))
        return message


def security_headers(index: bytes) -> list[tuple[bytes, bytes]]:
    """The page's policy and its kin; the import map is the only inline script, if there is one."""
    found = _IMPORT_MAP.search(index)
    inline = f" 'sha256-{_digest(found[1])}'" if found else ""
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self'{inline}",
            "style-src 'self'",
            "font-src 'self'",
            "img-src 'self' data: blob:",
            "connect-src 'self'",
            "worker-src 'self'",
            "frame-src 'self'",  # diagrams, which have no origin: `diagram_policy`
            "manifest-src 'self'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types dompurify parley",
        )
    )
    return [
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
    ]


def _digest(script: bytes) -> str:
    return base64.b64encode(hashlib.sha256(script).digest()).decode()
