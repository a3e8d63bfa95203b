"""`ResponsesSocket`: the way in to OpenAI's Responses over a websocket.

Its clients send their credential as a header and know no subprotocol. Who may not come in is
refused by HTTP, before the upgrade, in the words of the other routes.
"""

import contextlib

from starlette.requests import Request
from starlette.websockets import WebSocket

from server.access.auth import address_of
from server.api.openai.refusals import refuse
from server.api.responses.socket.connection import SocketConnection
from server.api.websocket.entrance import Entrance
from server.protocol.errors import ApiError
from server.protocol.store_errors import translate_store_errors
from sessions.model.errors import StoreUnavailable

TOO_MANY = "too many connections are open"
RETRY_MS = 5000


class ResponsesSocket(Entrance):
    """That of OpenAI's Responses."""

    async def _open(self, websocket: WebSocket) -> None:
        try:
            await self._admit(websocket)
        except ApiError as error:
            self._services.metrics.count_error(error.code)
            request = Request({**websocket.scope, "type": "http", "method": "GET"})
            with contextlib.suppress(RuntimeError, OSError):
                await websocket.send_denial_response(refuse(request, error))

    async def _admit(self, websocket: WebSocket) -> None:
        """Authenticate; then the connection takes over. Raises `ApiError`."""
        address = address_of(websocket)
        if not self._services.connections.allow_handshake(address):
            raise ApiError("rate_limited", TOO_MANY, retry_after_ms=RETRY_MS)
        with translate_store_errors(only_reads=True):
            if not self._services.store.is_verified:
                raise StoreUnavailable
            user = await self._authenticator.user(websocket)
        if not await self._let_in(websocket, user, address, SocketConnection):
            raise ApiError("rate_limited", TOO_MANY, retry_after_ms=RETRY_MS)
