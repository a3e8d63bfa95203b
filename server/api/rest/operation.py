"""`Operation`: one thing that can be done over HTTP, declared once.

Its declaration says whom it lets in, what it reads and what it answers; the routes, the checks in
front of each endpoint and `/openapi.json` are all made from it.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

import msgspec
import orjson
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from server.access.auth import Authenticator
from server.access.identities import Identities, User
from server.access.rates import TokenBuckets, limit_headers
from server.api.rest.event_stream import HttpViewer
from server.commands.services import Services
from server.live.health import Health
from server.protocol.client_frames import decode_object, to_struct, with_integers
from server.protocol.errors import ApiError, invalid_field
from server.protocol.http_errors import error_response
from server.protocol.store_errors import translate_store_errors
from sessions.directory.credentials import Credentials
from sessions.model.ids import is_idempotency_key

MAX_PARAMETER_CHARACTERS = 1024  # of one query parameter
NOBODY = User("", "nobody", ())


class Access(Enum):
    """Whom an operation lets in."""

    PUBLIC = "anybody"
    USER = "user"
    ADMIN = "admin"


class ApiContext(NamedTuple):
    """What the HTTP operations need."""

    services: Services
    authenticator: Authenticator
    credentials: Credentials
    health: Health
    static: StaticFiles  # what the pages are made of
    streams: set[HttpViewer]  # who follows an answer over HTTP now
    rates: TokenBuckets  # requests by user


@dataclass(frozen=True, slots=True)
class Call:
    """One request that was let in; `query` is the struct that its operation declares."""

    request: Request
    user: User
    query: Any
    identities: Identities

    @property
    def uid(self) -> str:
        return self.user.uid

    def path(self, name: str) -> str:
        """A parameter of the path, as it came."""
        return str(self.request.path_params[name])

    def header(self, name: str) -> str | None:
        """A header that may be sent once. Raises `ApiError`."""
        values = self.request.headers.getlist(name)
        if len(values) > 1:
            raise invalid_field(name, f"send one header {name}")
        return values[0] if values else None

    async def confirm(self) -> None:
        """Check the caller's rights again, after a wait. Raises `ApiError`."""
        await self.identities.confirm(self.user)

    async def data(self) -> bytes:
        """The bytes of a JSON body. Raises `ApiError`.

        A body may take half a minute, and its sender may have lost their rights by then. So the
        rights are checked again after every body. After one that came at once this finds what the
        first check has read, and costs nothing.
        """
        data = await read_json(self.request)
        await self.confirm()
        return data

    async def body(self) -> dict[str, Any]:
        """The JSON object of the body; an empty body is an empty object. Raises `ApiError`."""
        return read_object(await self.data())


Endpoint = Callable[[Call], Awaitable[Response]]


def error_object(request: Request, error: ApiError) -> Response:
    """How an operation refuses unless it says otherwise."""
    return error_response(error)


class Header(NamedTuple):
    """A request header that an operation reads."""

    name: str
    required: bool = False
    pattern: str | None = None


_FRACTION = re.compile(rb"[0-9][.eE]")
_KEY = r"^[A-Za-z0-9_-]{1,128}$"
IDEMPOTENCY_KEY = Header("Idempotency-Key", required=True, pattern=_KEY)
OPTIONAL_KEY = Header("Idempotency-Key", pattern=_KEY)
IF_MATCH = Header("If-Match")
IF_NONE_MATCH = Header("If-None-Match")
LAST_EVENT_ID = Header("Last-Event-ID", pattern=r"^[0-9]{1,15}\.[0-9]{1,15}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path.

    `query`, `body` and `form` are structs; `answers` maps the statuses of success to the struct of
    its JSON body, to a media type, to several of them, or to None where there is no body.
    """

    method: str
    path: str
    access: Access
    endpoint: Endpoint
    summary: str
    query: type[Struct] | None = None
    headers: tuple[Header, ...] = ()
    body: Any = None
    form: type[Struct] | None = None  # of an HTML page, in place of a JSON body
    refuse: Callable[[Request, ApiError], Response] = error_object
    scope: str = "admin"  # that an admin's credential must carry
    answers: Mapping[int, Any] = field(default_factory=dict)

    async def __call__(self, context: ApiContext, request: Request) -> Response:
        """Let the caller in or not; every refusal is answered by `refuse`.

        Other exceptions are the guard's to answer.
        """
        user = NOBODY
        try:
            with translate_store_errors(only_reads=self.method == "GET"):
                user = await self._user(context, request)
                if user is not NOBODY:
                    context.rates.check(user.uid)
                query = None if self.query is None else read_query(request, self.query)
                identities = context.services.identities
                answer = await self.endpoint(Call(request, user, query, identities))
                answer.raw_headers += context.authenticator.renamed_cookie(request, user)
        except ApiError as error:
            context.services.metrics.count_error(error.code)
            answer = self.refuse(request, error)
        if user is not NOBODY and context.rates.rate:
            answer.raw_headers += limit_headers([context.rates.of(user.uid).entry()])
        return answer

    async def _user(self, context: ApiContext, request: Request) -> User:
        if self.access is Access.PUBLIC:
            return NOBODY
        if self.access is Access.ADMIN:
            return await context.authenticator.admin(request, self.scope)
        return await context.authenticator.user(request)


def admin_operation(
    method: str, path: str, endpoint: Endpoint, summary: str, **rest: Any
) -> Operation:
    """One that lets admins in alone; `rest` is what else an `Operation` declares."""
    return Operation(
        method=method, path=path, access=Access.ADMIN, endpoint=endpoint, summary=summary, **rest
    )


def body_of(frame: type[Struct], *without: str) -> type[Struct]:
    """The body that stands for a frame: its fields, but those that come in path and headers."""
    left_out = {*without, "event_id"}
    fields = [
        (field.name, field.type, _default(field))
        for field in msgspec.structs.fields(frame)
        if field.name not in left_out
    ]
    body: type[Struct] = msgspec.defstruct(f"{frame.__name__}Body", fields, kw_only=True)
    return body


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=field.default_factory)
    return msgspec.field(default=field.default)


def routes_of(operations: Iterable[Operation], context: ApiContext) -> list[Route]:
    """One route for each path, so that a wrong method gets the list of the right ones."""
    paths: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = operation
    ordered = sorted(paths, key=lambda path: "{" in path)  # the first that fits is taken
    return [Route(path, Resource(paths[path], context)) for path in ordered]


class Resource:
    """One path, as an application that knows all its methods.

    Starlette would go on to the next path that fits when it does not know a method of this one.
    """

    def __init__(self, operations: dict[str, Operation], context: ApiContext) -> None:
        self.operations = operations
        self._context = context

    @property
    def methods(self) -> list[str]:
        """What may be asked: HEAD is a GET without its body."""
        return sorted({*self.operations, *(["HEAD"] if "GET" in self.operations else [])})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        operation = self.operations.get("GET" if request.method == "HEAD" else request.method)
        if operation is None:
            answer = error_response(ApiError("method_not_allowed", "that method is not allowed"))
            answer.headers["Allow"] = ", ".join(self.methods)
        else:
            answer = await operation(self._context, request)
        await answer(scope, receive, send)


def json_response(
    body: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON answer that no cache keeps."""
    return Response(
        orjson.dumps(body),
        status_code=status,
        media_type="application/json",
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


async def read_json(request: Request) -> bytes:
    """The body, if it claims to be JSON in plain bytes. Raises `ApiError`."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError("unsupported_media_type", "send the body without a content encoding")
    # Not `request.body()`, which would keep megabytes for as long as the request lasts.
    data = b"".join([part async for part in request.stream()])
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.replace(" ", "").replace('"', "").lower()
    if data and (
        kind.strip().lower() != "application/json" or charset not in ("", "charset=utf-8")
    ):
        raise ApiError("unsupported_media_type", "send application/json in UTF-8")
    return data


def read_object(data: bytes) -> dict[str, Any]:
    """The JSON object of these bytes; nothing is an empty object. Raises `ApiError`."""
    if not data:
        return {}
    try:
        body = decode_object(data.decode())
    except UnicodeDecodeError:
        raise ApiError("invalid_json", "JSON is UTF-8") from None
    return with_integers(body) if _FRACTION.search(data) else body


def read_query(request: Request, kind: type[Struct]) -> Any:
    """The query parameters that `kind` names; others are ignored. Raises `ApiError`."""
    values: dict[str, str] = {}
    is_integer = _integers(kind)
    for name, value in request.query_params.multi_items():
        if name not in is_integer:
            continue
        if name in values:
            raise invalid_field(name, f"{name} is given twice")
        if len(value) > MAX_PARAMETER_CHARACTERS:
            raise invalid_field(name, f"{name} is too long")
        if is_integer[name] and not (value.isascii() and value.isdigit()):
            raise invalid_field(name, f"{name} is a number")
        values[name] = value
    return to_struct(values, kind, strict=False)


@cache
def _integers(kind: type[Struct]) -> dict[str, bool]:
    """Each parameter's name, and whether it is an integer: msgspec would read `1.0` as one."""
    found = {}
    for declared in msgspec.structs.fields(kind):
        info = msgspec.inspect.type_info(declared.type)
        kinds = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
        found[declared.encode_name] = any(isinstance(k, msgspec.inspect.IntType) for k in kinds)
    return found


def optional_key(call: Call) -> str | None:
    """With a key, what is asked for again is made once. Raises `ApiError`."""
    key = call.header("Idempotency-Key")
    if key is not None and not is_idempotency_key(key):
        raise invalid_field("Idempotency-Key", "1 to 128 characters of [A-Za-z0-9_-]")
    return key
