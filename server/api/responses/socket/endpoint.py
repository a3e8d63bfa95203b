"""`ResponsesSocket`: the way in to OpenAI's Responses over a websocket.

Its clients send their credential as a header and know no subprotocol. Who may not come in is
refused by HTTP, before the upgrade, in the words of the other routes.
"""

import contextlib
from functools import partial

import structlog
from starlette.requests import Request
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from server.access.auth import Authenticator, address_of
from server.access.identities import User
from server.api.openai.refusals import refuse
from server.api.responses.socket.connection import SocketConnection
from server.api.websocket.connection import wire_of
from server.api.websocket.endpoint import Open
from server.commands.services import Services
from server.protocol.close_codes import CloseCode
from server.protocol.errors import ApiError
from server.protocol.store_errors import translate_store_errors
from sessions.model.errors import StoreUnavailable

logger = structlog.get_logger("server")

TOO_MANY = "too many connections are open"
RETRY_MS = 5000


class ResponsesSocket:
    """Of one worker, whose open `connections` it keeps beside those of the other websocket."""

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
        except ApiError as error:
            self._services.metrics.count_error(error.code)
            request = Request({**websocket.scope, "type": "http", "method": "GET"})
            with contextlib.suppress(RuntimeError, OSError):
                await websocket.send_denial_response(refuse(request, error))
        except (WebSocketDisconnect, OSError):
            pass  # the client left during the handshake
        except Exception:
            logger.exception("connection failed")
            with contextlib.suppress(RuntimeError, OSError):
                if websocket.application_state is WebSocketState.CONNECTING:
                    await websocket.accept()
                await websocket.close(CloseCode.INTERNAL)

    async def _open(self, websocket: WebSocket) -> None:
        """Authenticate, count; then the connection takes over. Raises `ApiError`."""
        address, counter = address_of(websocket), self._services.connections
        if not counter.allow_handshake(address):
            raise ApiError("rate_limited", TOO_MANY, retry_after_ms=RETRY_MS)
        with translate_store_errors(only_reads=True):
            if not self._services.store.is_verified:
                raise StoreUnavailable
            user = await self._authenticator.user(websocket)
        if not counter.enter(user.uid, address):
            raise ApiError("rate_limited", TOO_MANY, retry_after_ms=RETRY_MS)
        try:
            await websocket.accept()
            connection = SocketConnection(websocket, user, self._services)
        except BaseException:
            counter.leave(user.uid, address)
            raise
        wire_of(websocket).go_on_with(partial(self._talk, connection, user, address))

    async def _talk(self, connection: SocketConnection, user: User, address: str) -> None:
        """All of a connection's life; whoever was there for the handshake is gone by now."""
        self._connections.add(connection)
        self._services.metrics.connections.inc()
        try:
            with self._services.identities.holding(user, connection.refuse):
                await connection.serve()
        finally:
            self._connections.discard(connection)
            self._services.metrics.connections.dec()
            self._services.connections.leave(user.uid, address)
