"""The way in for browsers: a login link shows a page, and its form exchanges the code for a cookie.

A link may come from anybody, and may be followed by machines. So opening one changes nothing:
neither is its code used up, nor a cookie set. Only the form does that, which the browser must send
from our own page (`Origin`); where another user is logged in, only after that was shown and agreed
to. Otherwise a stranger's link would make others write into the stranger's account.
"""

from typing import Annotated
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from server.access.auth import COOKIE_SECONDS, address_of, set_cookie
from server.access.identities import BUILT_IN, User
from server.api.login.page import login_page, refusal_page
from server.api.rest.openapi import FORM
from server.api.rest.operation import MAX_PARAMETER_CHARACTERS, Access, ApiContext, Call, Operation
from server.protocol.errors import ApiError
from server.protocol.http_errors import error_response

MAX_FORM_BYTES = 4096
HEADERS = {
    "Cache-Control": "no-store",
    "X-Robots-Tag": "noindex, nofollow",
    "Vary": "Accept, Cookie",
    # Under the `no-referrer` of other pages a browser would send its form with `Origin: null`.
    "Referrer-Policy": "strict-origin",
}


class LoginQuery(Struct, frozen=True):
    code: Annotated[str, Meta(max_length=MAX_PARAMETER_CHARACTERS)] = ""


class LoginForm(Struct, frozen=True):
    """`instead_of` is the id of the user who is logged in and whom the page has shown."""

    code: str = ""
    instead_of: str = ""


class LoginOperations:
    """The endpoints of `/login`."""

    def __init__(self, context: ApiContext) -> None:
        self._authenticator = context.authenticator
        self._identities = context.authenticator.identities

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/login",
                access=Access.PUBLIC,
                endpoint=self.show,
                summary="The page of a login link; it changes nothing",
                query=LoginQuery,
                answers={200: "text/html"},
                refuse=refuse,
            ),
            Operation(
                method="POST",
                path="/login",
                access=Access.PUBLIC,
                endpoint=self.log_in,
                summary="Exchange a one-time code for a cookie, from the page of its link",
                form=LoginForm,
                answers={303: None, 200: "text/html"},
                refuse=refuse,
            ),
        ]

    async def show(self, call: Call) -> Response:
        code = call.query.code
        user = await self._owner(call.request, code)
        here = await self._who_is_here(call.request)
        is_at_home = here is None or here.uid == user.uid
        posts_itself = is_at_home and _is_operators_own(call, user)
        return HTMLResponse(
            login_page(code, user, here, posts_itself=posts_itself), headers=HEADERS
        )

    async def log_in(self, call: Call) -> Response:
        """Exchange the code, and show the chat page without the code in its URL."""
        if not self._authenticator.origins.allows(call.request):
            raise ApiError("forbidden", "logging in needs our own Origin: open the login link")
        form = await read_form(call.request)
        user = await self._owner(call.request, form.code)
        here = await self._who_is_here(call.request)
        if here is not None and here.uid not in (user.uid, form.instead_of):
            return HTMLResponse(login_page(form.code, user, here), headers=HEADERS)
        cookie, seconds = await self._identities.redeem_login_code(form.code, COOKIE_SECONDS)
        answer = RedirectResponse("/", status_code=303, headers=HEADERS)
        set_cookie(answer, call.request, cookie, seconds)
        return answer

    async def _owner(self, request: Request, code: str) -> User:
        """Whom the code lets in. Raises `ApiError`, also for an address that keeps guessing."""
        with self._authenticator.attempts.attempt(address_of(request), code):
            return await self._identities.of_login_code(code)

    async def _who_is_here(self, request: Request) -> User | None:
        """Whose browser this is now."""
        try:
            return await self._authenticator.cookie_user(request)
        except ApiError:
            return None


def _is_operators_own(call: Call, user: User) -> bool:
    """Whether the link is one of the operator's, opened by hand: no second click is needed then.

    Nobody else can make a code for a built-in user, and the operator can read everything anyway, so
    a planted link gains nothing. `none` says that no other page has led here.
    """
    opened_by = call.request.headers.getlist("sec-fetch-site")
    return user.uid in BUILT_IN and opened_by == ["none"]


async def read_form(request: Request) -> LoginForm:
    """The form of the page. Raises `ApiError`."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise ApiError("unsupported_media_type", f"send the form as {FORM}")
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > MAX_FORM_BYTES:
            raise ApiError("payload_too_large", "the form is too large")
    pairs = parse_qsl(data.decode("latin-1"), keep_blank_values=True)
    return msgspec.convert(dict(pairs), LoginForm)


def refuse(request: Request, error: ApiError) -> Response:
    """A page for people, the error object for programs."""
    answer = error_response(error)
    if "text/html" not in request.headers.get("accept", "").lower():
        return answer
    headers = {name: answer.headers[name] for name in ("retry-after",) if name in answer.headers}
    return HTMLResponse(refusal_page(error), error.http_status, headers={**HEADERS, **headers})
