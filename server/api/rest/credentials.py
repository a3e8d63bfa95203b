"""Short-lived credentials, made from the one that the caller has: they may stand in a URL."""

from starlette.responses import Response

from server.api.rest.objects import LoginCode, Ticket
from server.api.rest.operation import Access, ApiContext, Call, Operation, json_response
from server.protocol.errors import ApiError
from sessions.model.keys import TICKET_SECONDS


class CredentialOperations:
    """The endpoints for login codes and websocket tickets."""

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
