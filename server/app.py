"""The Starlette application of one worker: routes, and what starts and ends with it."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from engine import AsyncLLM
from server import __version__
from server.auth import BEARER_SUBPROTOCOL, Authenticator, Origins
from server.beginnings import Beginnings
from server.closing import CloseCode
from server.connection import Connection
from server.errors import ApiError
from server.frames import PROTOCOL
from server.guard import Guard, error_response
from server.health import Health
from server.hub import Hub
from server.identities import Identities
from server.intervals import Intervals
from server.limits import ConnectionCounter, Limits
from server.metrics import Metrics
from server.operations import Doors
from server.orphans import Orphans
from server.rest import routes
from server.rest_pages import Static
from server.runs import Runs
from server.sampling import ModelDefaults
from server.services import Services
from sessions.credentials import Credentials
from sessions.errors import StoreUnavailable
from sessions.follow import LiveFeed
from sessions.records import LiveFrame, LivePayload
from sessions.store import SessionStore
from sessions.users import Users

logger = structlog.get_logger("server")

STATIC = Path(__file__).resolve().parent.parent / "static"
TOO_MANY_CONNECTIONS = "too_many_connections;retry_after_ms=5000"
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class AppConfig:
    """What one worker must know of its surroundings."""

    replica: str
    model: str  # the name clients see
    model_folder: Path
    token: str
    admin_token: str
    limits: Limits
    intervals: Intervals
    allowed_origins: tuple[str, ...] = ()
    check_host: bool = True


class Worker:
    """One worker's parts, wired. `app` is what uvicorn serves."""

    def __init__(self, config: AppConfig, store: SessionStore, engine: AsyncLLM) -> None:
        self.config = config
        self.metrics = Metrics()
        self.store = store
        self.engine = engine
        self.feed = LiveFeed(store.client, store.keys)
        self.hub = Hub(store, self.feed, store.keys, config.replica)
        self.health = Health(store, engine, self.hub, self.metrics)
        self.runs = Runs(
            store=store,
            engine=engine,
            hub=self.hub,
            metrics=self.metrics,
            intervals=config.intervals,
        )
        self.beginnings = Beginnings(
            store=store,
            engine=engine,
            hub=self.hub,
            runs=self.runs,
            replica=config.replica,
            model=config.model,
            defaults=ModelDefaults.read(config.model_folder),
            max_active_per_user=config.limits.max_active_responses_per_user,
        )
        self.orphans = Orphans(
            store=store,
            hub=self.hub,
            metrics=self.metrics,
            runs=self.runs,
            replica=config.replica,
            intervals=config.intervals,
        )
        credentials = Credentials(store.client, store.keys)
        self.identities = Identities(
            credentials,
            Users(store.client, store.keys),
            token=config.token,
            admin_token=config.admin_token,
        )
        self.feed.on_resync(self.identities.on_resync)
        self.services = Services(
            store=store,
            engine=engine,
            hub=self.hub,
            runs=self.runs,
            beginnings=self.beginnings,
            orphans=self.orphans,
            health=self.health,
            identities=self.identities,
            metrics=self.metrics,
            limits=config.limits,
            connections=ConnectionCounter(config.limits),
            replica=config.replica,
            version=__version__,
            model=config.model,
        )
        self.origins = Origins(config.allowed_origins)
        self.authenticator = Authenticator(self.identities, origins=self.origins)
        doors = Doors(self.services, self.authenticator, credentials, self.health, STATIC)
        self.connections: set[Connection] = set()
        self.app = self._build(doors)

    def _build(self, doors: Doors) -> ASGIApp:
        starlette = Starlette(
            routes=[
                *routes(doors),
                WebSocketRoute("/v1/ws", self.websocket),
                Route("/v1/ws", upgrade_required, methods=["GET"]),
                Mount("/static", Static(directory=STATIC)),
            ],
            lifespan=self._lifespan,
            exception_handlers={HTTPException: http_error},
        )
        hosts = (*LOOPBACK_HOSTS, *self.origins.hosts) if self.config.check_host else None
        index = STATIC / "index.html"
        return Guard(starlette, hosts=hosts, index=index.read_bytes() if index.exists() else b"")

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        await self.feed.start()
        background = [
            asyncio.create_task(self.health.watch_forever()),
            asyncio.create_task(self.orphans.sweep_forever()),
            asyncio.create_task(self._listen_to_control()),
            asyncio.create_task(self.identities.watch_forever()),
        ]
        try:
            yield
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self.runs.close()
            await self.hub.close()
            await self.feed.close()
            await self.store.close()

    async def _listen_to_control(self) -> None:
        """Commands to this worker, and to all; the feed outlives an outage by itself."""
        keys = self.store.keys
        while True:
            try:
                await self.feed.subscribe(keys.system_channel, self.identities.on_announcement)
                await self.feed.subscribe(
                    keys.control_channel(self.config.replica), self._on_control
                )
                return
            except StoreUnavailable:
                await asyncio.sleep(1.0)

    def _on_control(self, payload: LivePayload) -> None:
        if isinstance(payload, LiveFrame):
            self.hub.spawn(self.obey(payload.data))

    async def obey(self, command: dict[str, Any]) -> None:
        """Carry out a command of another worker, or of the supervisor."""
        match command:
            case {"type": "cancel", "response_id": str(response_id)}:
                await self.runs.stop_as_stored(response_id)
            case {"type": "promote", "response_id": str(response_id)}:
                self.runs.promote(response_id)
            case {"type": "deleted", "session_id": str(session_id)}:
                self.runs.stop_deleted(session_id)
            case {"type": "exited", "replica": str(replica)}:
                await self.orphans.adopt(replica)
            case {"type": "engine_gone"}:
                self.engine.shutdown()  # there will be no other: every open answer fails
            case {"type": "store_exited"}:
                self.health.store_exited()

    async def drain(self, seconds: float) -> None:
        """Tell clients to come back elsewhere, let answers finish, close every socket with 1012."""
        self.runs.draining = True
        wait_ms = random.randint(100, 2000)
        self.hub.broadcast({"type": "connection.draining", "reconnect_after_ms": wait_ms})
        await self.runs.drain(seconds)
        for connection in list(self.connections):
            connection.close_soon()
        for _ in range(40):
            if not self.connections:
                return
            await asyncio.sleep(0.05)

    # ---- the websocket door ---------------------------------------------------------------------

    async def websocket(self, websocket: WebSocket) -> None:
        """The outermost handler: an exception behind it would break the socket off."""
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
        address = websocket.client.host if websocket.client else ""
        counter = self.services.connections
        if not counter.allow_handshake(address):
            await self._accept_and_close(websocket, CloseCode.TOO_MANY, TOO_MANY_CONNECTIONS)
            return
        try:
            user = await self.authenticator.user(websocket)
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
            await websocket.accept(PROTOCOL)
            connection = Connection(websocket, user, self.services)
            self.connections.add(connection)
            self.metrics.connections.inc()
            try:
                with self.identities.holding(user, connection.refuse):
                    await connection.serve()
            finally:
                self.connections.discard(connection)
                self.metrics.connections.dec()
        finally:
            counter.leave(user.uid, address)

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
        if error.code == "forbidden":  # a cookie from a foreign page: refused before the upgrade
            await websocket.send_denial_response(error_response(error))
        else:
            await self._accept_and_close(websocket, CloseCode.UNAUTHENTICATED, error.code)

    async def _accept_and_close(self, websocket: WebSocket, code: CloseCode, reason: str) -> None:
        self.metrics.count_close(int(code))
        await websocket.accept(PROTOCOL)
        await websocket.close(int(code), reason)


async def upgrade_required(request: Request) -> Response:
    """The websocket's address without a handshake."""
    return Response(
        status_code=426, headers={"Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    )


async def http_error(request: Request, error: Exception) -> Response:
    """Starlette's own refusals in our shape."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        answer = error_response(ApiError("method_not_allowed", "that method is not allowed here"))
        answer.headers.update(error.headers or {})
        return answer
    return error_response(ApiError("not_found", "there is nothing at this address"))
