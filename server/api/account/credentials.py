"""Short-lived credentials, made from the one that the caller has, and the end of a browser's login.

What is made may stand in a URL.
"""

from msgspec import Struct
from starlette.responses import Response

from server.access.auth import clear_cookie
from server.api.rest.objects import LoginCode, Ticket
from server.api.rest.operation import Access, ApiContext, Call, Operation, json_response
from server.protocol.errors import ApiError
from sessions.model.keys import TICKET_SECONDS


class LogoutQuery(Struct, frozen=True):
    """`everywhere`: in every browser, not in this one alone."""

    everywhere: bool = False


class CredentialOperations:
    """The endpoints for login codes, websocket tickets and logging out."""

    def __init__(self, context: ApiContext) -> None:
        self._credentials = context.credentials

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="POST",
                path="/v1/login-codes",
                access=Access.USER,
                endpoint=self.create_login_code,
                summary="A one-time code for a login URL",
                answers={201: LoginCode},
            ),
            Operation(
                method="POST",
                path="/v1/ws-ticket",
                access=Access.USER,
                endpoint=self.create_ticket,
                summary="A ticket for one websocket handshake, as `?ticket=`",
                answers={201: Ticket},
            ),
            Operation(
                method="POST",
                path="/v1/logout",
                access=Access.USER,
                endpoint=self.log_out,
                summary="End the login of this browser, or of all of the user's",
                query=LogoutQuery,
                answers={204: None},
            ),
        ]

    async def create_login_code(self, call: Call) -> Response:
        """Only for a bearer token's user: a cookie must not be able to multiply itself."""
        if not call.request.headers.getlist("authorization"):
            raise ApiError("forbidden", "send the bearer token")
        assert call.user.credential is not None
        code = await self._credentials.create_login_code(call.uid, call.user.credential)
        return json_response({"code": code, "path": f"/login?code={code}"}, 201)

    async def create_ticket(self, call: Call) -> Response:
        """It stands for the caller's credential: what ends that one ends the ticket's socket."""
        assert call.user.credential is not None
        ticket = await self._credentials.create_ticket(call.user.credential)
        return json_response({"ticket": ticket, "expires_in_s": int(TICKET_SECONDS)}, 201)

    async def log_out(self, call: Call) -> Response:
        """The cookie works no more, and its websockets end; tokens are for others to revoke."""
        credential = call.user.credential
        assert credential is not None
        if credential.kind != "cookie":
            raise ApiError("forbidden", "only the cookie of a browser can log out")
        if call.query.everywhere:
            await self._credentials.revoke_cookies(call.uid)
        await self._credentials.revoke_digest(credential.digest)
        answer = Response(status_code=204, headers={"Cache-Control": "no-store"})
        clear_cookie(answer, call.request)
        return answer
