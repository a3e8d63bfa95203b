"""The HTTP doors: sessions and messages, login, health, metrics, the page itself."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from engine.errors import EngineError
from server.auth import COOKIE_SECONDS, Authenticator, cookie_name
from server.errors import ApiError, invalid_field
from server.guard import error_response
from server.health import Health
from server.services import Services, User
from server.translate import check_message_id, check_session_id, translate_store_errors
from sessions.credentials import Credentials
from sessions.errors import StoreUnavailable

MAX_LIMIT = 200
DEFAULT_LIMIT = 50
MAX_CODE_CHARACTERS = 128
VERSIONED = re.compile(r"vendor/[^/]*[0-9]")  # such a folder's name changes with its files

Endpoint = Callable[[Request, User], Awaitable[Response]]


class Doors(NamedTuple):
    """What the HTTP routes need."""

    services: Services
    authenticator: Authenticator
    credentials: Credentials
    health: Health
    static: Path


def json_response(body: Any, status: int = 200) -> Response:
    return Response(
        orjson.dumps(body),
        status_code=status,
        media_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def routes(doors: Doors) -> list[Route]:
    """Every HTTP route; each says whom it lets in."""
    rest = Rest(doors)
    return [
        Route("/", rest.index, methods=["GET"]),
        Route("/login", rest.login, methods=["GET"]),
        Route("/healthz", rest.healthz, methods=["GET"]),
        Route("/readyz", rest.readyz, methods=["GET"]),
        Route("/metrics", rest.for_user(rest.metrics), methods=["GET"]),
        Route("/version", rest.for_user(rest.version), methods=["GET"]),
        Route("/v1/models", rest.for_user(rest.models), methods=["GET"]),
        Route("/v1/login-codes", rest.for_user(rest.create_login_code), methods=["POST"]),
        Route("/v1/sessions", rest.for_user(rest.sessions), methods=["GET"]),
        Route("/v1/sessions/{session_id}", rest.for_user(rest.session), methods=["GET"]),
        Route("/v1/sessions/{session_id}/messages", rest.for_user(rest.messages), methods=["GET"]),
    ]


class Rest:
    """The endpoints. Those without a `user` argument are public."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors
        self._services = doors.services
        self._store = doors.services.store

    def for_user(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        """Let in whoever has a credential; errors become the protocol's error object."""

        async def guarded(request: Request) -> Response:
            try:
                with translate_store_errors():
                    user = await self._doors.authenticator.user(request)
                    return await endpoint(request, user)
            except ApiError as error:
                self._services.metrics.count_error(error.code)
                return error_response(error)

        return guarded

    # ---- public ---------------------------------------------------------------------------------

    async def index(self, request: Request) -> Response:
        return FileResponse(
            self._doors.static / "index.html", headers={"Cache-Control": "no-cache"}
        )

    async def login(self, request: Request) -> Response:
        """Exchange a one-time code for a cookie, and show the page without the code in its URL."""
        code = request.query_params.get("code", "")[:MAX_CODE_CHARACTERS]
        try:
            uid = await self._doors.credentials.redeem_login_code(code)
        except StoreUnavailable:
            return error_response(ApiError("store_unavailable", "try again in a moment"))
        if uid is None:
            return Response(
                "This login link was used already or is too old.\n"
                "Run `parley login` to get another one.\n",
                status_code=401,
                media_type="text/plain; charset=utf-8",
                headers={"Cache-Control": "no-store"},
            )
        cookie = await self._doors.credentials.create_cookie(uid, COOKIE_SECONDS)
        answer = RedirectResponse("/", status_code=303, headers={"Cache-Control": "no-store"})
        secure = request.url.scheme == "https"
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

    async def healthz(self, request: Request) -> Response:
        return json_response({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        problems = self._doors.health.problems
        if self._services.runs.draining:
            problems = {**problems, "worker": "draining"}
        return json_response(
            {"status": "unavailable" if problems else "ok", **problems}, 503 if problems else 200
        )

    # ---- for users ------------------------------------------------------------------------------

    async def metrics(self, request: Request, user: User) -> Response:
        metrics = self._services.metrics
        try:
            metrics.engine.values = await self._services.engine.metrics()
        except (EngineError, TimeoutError):
            metrics.engine.values = {}  # no core, no figures: better than old ones
        return Response(
            metrics.render(),
            media_type="text/plain; version=0.0.4; charset=utf-8",
            headers={"Cache-Control": "no-store"},
        )

    async def version(self, request: Request, user: User) -> Response:
        return json_response({"version": self._services.version})

    async def models(self, request: Request, user: User) -> Response:
        engine = self._services.engine
        model: dict[str, Any] = {"id": self._services.model, "object": "model"}
        if engine.is_ready:
            model["max_model_len"] = engine.model_config.max_model_len
        return json_response({"object": "list", "data": [model]})

    async def create_login_code(self, request: Request, user: User) -> Response:
        """Only for a bearer token: a cookie must not be able to multiply itself."""
        if not request.headers.getlist("authorization"):
            raise ApiError("forbidden", "send the bearer token")
        code = await self._doors.credentials.create_login_code("local")
        return json_response({"code": code, "path": f"/login?code={code}"}, 201)

    async def sessions(self, request: Request, user: User) -> Response:
        page = await self._store.sessions(
            user.uid, limit=_limit(request), cursor=request.query_params.get("cursor")
        )
        return json_response(
            {
                "sessions": [session.wire() for session in page.sessions],
                "next_cursor": page.next_cursor,
            }
        )

    async def session(self, request: Request, user: User) -> Response:
        session_id = request.path_params["session_id"]
        check_session_id(session_id)
        session = await self._store.session(user.uid, session_id)
        answer = json_response(session.wire())
        answer.headers["ETag"] = f'"{session.revision}"'
        return answer

    async def messages(self, request: Request, user: User) -> Response:
        session_id = request.path_params["session_id"]
        check_session_id(session_id)
        places = {name: request.query_params.get(name) for name in ("leaf", "before")}
        for message_id in places.values():
            check_message_id(message_id)
        page = await self._store.path(user.uid, session_id, limit=_limit(request), **places)
        return json_response(
            {"messages": [message.wire() for message in page.messages], "has_more": page.has_more}
        )


def _limit(request: Request) -> int:
    raw = request.query_params.get("limit", str(DEFAULT_LIMIT))
    if not (raw.isascii() and raw.isdigit() and len(raw) < 5 and 1 <= int(raw) <= MAX_LIMIT):
        raise invalid_field("limit", f"limit is a number from 1 to {MAX_LIMIT}")
    return int(raw)


class Static(StaticFiles):
    """The page's files: vendored ones may be kept for ever, our own are asked for each time."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(405, headers={"Allow": "GET, HEAD"})
        answer = await super().get_response(path, scope)
        immutable = VERSIONED.match(path) is not None
        answer.headers["Cache-Control"] = "max-age=31536000, immutable" if immutable else "no-cache"
        return answer
