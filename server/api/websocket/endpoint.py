"""`WebSocketEndpoint`: a websocket's way in, from its handshake to its `Connection`."""

import contextlib
from functools import partial
from typing import Protocol

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from server.access.auth import BEARER_SUBPROTOCOL, Authenticator, address_of
from server.access.identities import UserDisabled
from server.api.websocket.connection import Connection, wire_of
from server.commands.services import Services
from server.protocol.close_codes import CloseCode, refusal_of
from server.protocol.errors import ApiError
from server.protocol.http_errors import error_response
from server.protocol.server_frames import PROTOCOL
from sessions.model.errors import StoreUnavailable

logger = structlog.get_logger("server")

TOO_MANY_CONNECTIONS = "too_many_connections;retry_after_ms=5000"


class Open(Protocol):
    """A websocket that is open, whatever is spoken there."""

    def close_soon(self) -> None:
        """The worker restarts: the client has to come again."""


class WebSocketEndpoint:
    """Of one worker, whose open `connections` it keeps."""

    def __init__(
        self, services: Services, authenticator: Authenticator, connections: set[Open]
    ) -> None:
        self._services = services
        self._authenticator = authenticator
        self._connections = connections

    async def serve(self, websocket: WebSocket) -> None:
        """The outermost handler: an exception beyond it would break off the socket."""
        try:
            await self._open(websocket)
        except (WebSocketDisconnect, OSError):
            pass  # the client left during the handshake
        except Exception:
            logger.exception("connection failed")
            with contextlib.suppress(RuntimeError, OSError):
                if websocket.application_state is WebSocketState.CONNECTING:
                    await websocket.accept(PROTOCOL)
                await websocket.close(CloseCode.INTERNAL)

    async def _open(self, websocket: WebSocket) -> None:
        """Negotiate, authenticate, count; then the connection takes over."""
        offered = websocket.scope.get("subprotocols", [])
        ours = [p for p in offered if not p.startswith(BEARER_SUBPROTOCOL)]
        if PROTOCOL not in ours:
            await self._refuse_protocol(websocket, ours, bool(offered))
            return
        address = address_of(websocket)
        counter = self._services.connections
        if not counter.allow_handshake(address):
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
        if not counter.enter(user.uid, address):
            await self._accept_and_close(websocket, CloseCode.TOO_MANY, TOO_MANY_CONNECTIONS)
            return
        try:
            await websocket.accept(
                PROTOCOL, headers=self._authenticator.renamed_cookie(websocket, user)
            )
            connection = Connection(websocket, user, self._services)
        except BaseException:
            counter.leave(user.uid, address)
            raise
        wire_of(websocket).go_on_with(partial(self._talk, connection, address))

    async def _talk(self, connection: Connection, address: str) -> None:
        """All of a connection's life; whoever was there for the handshake is gone by now."""
        user = connection.user
        self._connections.add(connection)
        self._services.metrics.connections.inc()
        try:
            with self._services.identities.holding(user, connection.refuse):
                await connection.serve()
        finally:
            self._connections.discard(connection)
            self._services.metrics.connections.dec()
            self._services.connections.leave(user.uid, address)

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
