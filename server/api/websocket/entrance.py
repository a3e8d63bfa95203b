"""`Entrance`: a websocket's way in, from its handshake to its connection, in any protocol.

Nothing that fails here breaks off the socket, and who is let in counts until they are gone.
"""

import abc
import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import structlog
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from server.access.auth import Authenticator
from server.access.identities import User
from server.api.websocket.wire import wire_of
from server.commands.services import Services
from server.protocol.close_codes import CloseCode
from server.protocol.errors import ApiError

logger = structlog.get_logger("server")


class Open(Protocol):
    """Something that is open, and that the end of its worker closes."""

    def close_soon(self) -> None:
        """The worker restarts: the client has to come again."""


class OpenSocket(Open, Protocol):
    """A websocket that is open."""

    user: User

    async def serve(self) -> None:
        """Talk until either side ends it."""

    def refuse(self, error: ApiError) -> None:
        """The user's rights have ended."""


class Entrance(abc.ABC):
    """Of one worker, whose open `connections` it keeps."""

    protocol: str | None = None  # that is accepted

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
                    await websocket.accept(self.protocol)
                await websocket.close(CloseCode.INTERNAL)

    @abc.abstractmethod
    async def _open(self, websocket: WebSocket) -> None:
        """Let the client in by `_let_in`, or refuse it."""

    async def _let_in(
        self,
        websocket: WebSocket,
        user: User,
        address: str,
        kind: Callable[[WebSocket, User, Services], OpenSocket],
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> bool:
        """Count the client and accept the websocket; False, and nothing is done, if it is too many.

        The connection of this `kind` takes over when the application has returned.
        """
        counter = self._services.connections
        if not counter.enter(user.uid, address):
            return False
        try:
            await websocket.accept(self.protocol, headers=headers)
            connection = kind(websocket, user, self._services)
        except BaseException:
            counter.leave(user.uid, address)
            raise
        wire_of(websocket).go_on_with(partial(self._talk, connection, address))
        return True

    async def _talk(self, connection: OpenSocket, address: str) -> None:
        """All of a connection's life; the objects of the handshake are gone by now."""
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
