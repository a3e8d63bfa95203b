"""`WebSocketEndpoint`: a websocket's way in, from its handshake to its `Connection`."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from server.access.auth import BEARER_SUBPROTOCOL, address_of
from server.access.identities import UserDisabled
from server.api.websocket.connection import Connection
from server.api.websocket.entrance import Entrance
from server.protocol.close_codes import CloseCode, refusal_of
from server.protocol.errors import ApiError
from server.protocol.http_errors import error_response
from server.protocol.server_frames import PROTOCOL
from sessions.model.errors import StoreUnavailable

TOO_MANY_CONNECTIONS = "too_many_connections;retry_after_ms=5000"


class WebSocketEndpoint(Entrance):
    """That of `chat.v1`."""

    protocol = PROTOCOL

    async def _open(self, websocket: WebSocket) -> None:
        """Negotiate and authenticate; then the connection takes over."""
        offered = websocket.scope.get("subprotocols", [])
        ours = [p for p in offered if not p.startswith(BEARER_SUBPROTOCOL)]
        if PROTOCOL not in ours:
            await self._refuse_protocol(websocket, ours, bool(offered))
            return
        address = address_of(websocket)
        if not self._services.connections.allow_handshake(address):
            await self._accept_and_close(websocket, CloseCode.TOO_MANY, TOO_MANY_CONNECTIONS)
            return
        try:
            if not self._services.store.is_verified:
                raise StoreUnavailable
            user = await self._authenticator.user(websocket)
        except ApiError as error:
            await self._refuse(websocket, error)
            return
        except StoreUnavailable:
            await self._accept_and_close(
                websocket, CloseCode.TRY_LATER, "store_unavailable;retry_after_ms=1000"
            )
            return
        cookie = self._authenticator.renamed_cookie(websocket, user)
        if not await self._let_in(websocket, user, address, Connection, cookie):
            await self._accept_and_close(websocket, CloseCode.TOO_MANY, TOO_MANY_CONNECTIONS)

    async def _refuse_protocol(
        self, websocket: WebSocket, ours: list[str], offered_any: bool
    ) -> None:
        """Chromium reports 1006 unless one of its offers is selected before the close."""
        if offered_any and not ours:
            await websocket.send_denial_response(Response(status_code=400))
            return
        await websocket.accept(ours[0] if ours else None)
        await websocket.close(CloseCode.NO_COMMON_PROTOCOL, f"supported: {PROTOCOL}")

    async def _refuse(self, websocket: WebSocket, error: ApiError) -> None:
        if error.code == "forbidden" and not isinstance(error, UserDisabled):
            # A cookie from a foreign page: refused before the upgrade.
            await websocket.send_denial_response(error_response(error))
        else:
            closing = refusal_of(error)
            await self._accept_and_close(websocket, closing.code, closing.reason)

    async def _accept_and_close(self, websocket: WebSocket, code: CloseCode, reason: str) -> None:
        self._services.metrics.count_close(int(code))
        await websocket.accept(PROTOCOL)
        await websocket.close(int(code), reason)


async def upgrade_required(request: Request) -> Response:
    """The websocket's address without a handshake."""
    return Response(
        status_code=426, headers={"Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    )
