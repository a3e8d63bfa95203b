"""The Starlette application of one worker: routes, and what starts and ends with it."""

import asyncio
import contextlib
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.types import ASGIApp

from server import __version__
from server.access.audit import Auditor
from server.access.auth import Authenticator, Origins
from server.access.identities import BUILT_IN, Identities
from server.access.rates import ConnectionCounter, TokenBuckets
from server.api.rest.event_stream import HttpViewer
from server.api.rest.operation import ApiContext
from server.api.rest.pages import Static
from server.api.websocket.connection import Connection
from server.api.websocket.endpoint import WebSocketEndpoint, upgrade_required
from server.commands.create_response import ResponseCreator
from server.commands.services import Services
from server.config.worker import WorkerConfig
from server.engines.client import EngineClient, ServedModel
from server.generation.prompts import PromptBuilder
from server.live.health import Health
from server.live.hub import Hub
from server.protocol.errors import ApiError
from server.protocol.http_errors import error_response
from server.protocol.server_frames import ConnectionDraining
from server.runs.abandonment import Abandonment
from server.runs.active_limit import ActiveLimit
from server.runs.peers import Figures, Peers
from server.runs.runs import Runs
from server.runs.takeover import Takeover
from server.telemetry.metrics import Metrics, SpanCollector, StoreCollector
from server.telemetry.stats import Recorder
from server.telemetry.tracing import AnswerTracing
from server.worker.control import Control
from server.worker.middleware import Guard
from server.worker.routes import routes
from sessions.background import Background, start
from sessions.connection.feed import LiveFeed
from sessions.directory.audit import AuditLog
from sessions.directory.credentials import Credentials
from sessions.directory.replicas import Replicas
from sessions.directory.samples import Samples
from sessions.directory.users import Users
from sessions.indexes.sweep import IndexSweep
from sessions.model.errors import StoreRefused, StoreUnavailable
from sessions.store.store import SessionStore

if TYPE_CHECKING:
    from server.engines.tracing import Tracing

logger = structlog.get_logger("server")

STATIC = Path(__file__).resolve().parents[2] / "static"
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


class Worker:
    """One worker's parts, wired, each made from those before it. `app` is what uvicorn serves."""

    def __init__(
        self,
        config: WorkerConfig,
        store: SessionStore,
        engine: EngineClient,
        model: ServedModel,
        tracing: "Tracing | None" = None,
    ) -> None:
        self.config = config
        self._started_at = time.time_ns() // 1_000_000
        self.store = store
        self.engine = engine
        self.model = model
        self.refusal: StoreRefused | None = None  # why this worker stops, if that is why
        self.stop_asked = asyncio.Event()
        self.metrics = Metrics()
        self.metrics.registry.register(StoreCollector(lambda: store.client.num_calls))
        self.tracing: AnswerTracing | None = None
        if tracing is not None:
            self.metrics.registry.register(SpanCollector(tracing))
            self.tracing = AnswerTracing(tracing, model.name)
        self._listen()
        self._join_peers()
        self._make_answers()
        self._admit_users()
        self._open_doors()

    def _listen(self) -> None:
        """What is heard and sent: the feed, the hub, the health of store and engine."""
        config, store, engine = self.config, self.store, self.engine
        self.feed = LiveFeed(store.client, store.keys)
        hides = config.settings.hide_observers
        self.hub = Hub(store, self.feed, store.keys, config.replica, hides_observers=hides)
        self.health = Health(
            store,
            engine,
            self.hub,
            self.metrics,
            config.settings.intervals,
            self._on_refused,
            on_change=lambda: self.peers.beat_soon(),
        )

    def _join_peers(self) -> None:
        """The other workers: this one's sign of life, and its figures."""
        config, store, engine = self.config, self.store, self.engine
        self.peers = Peers(
            Replicas(
                store.client,
                store.keys,
                life_seconds=config.settings.intervals.heartbeat_life,
                late_seconds=config.settings.intervals.heartbeat_late,
            ),
            config.replica,
            self._figures,
            interval_seconds=config.settings.intervals.heartbeat,
        )
        samples = Samples(store.client, store.keys)
        self.recorder = Recorder(samples, self.metrics, engine, self._figures, config.replica)

    def _make_answers(self) -> None:
        """Who makes answers, ends those that nobody watches, and takes over those of the dead."""
        config, store, engine = self.config, self.store, self.engine
        max_active = config.settings.limits.max_active_responses_per_user
        self.active_limit = ActiveLimit(store, self.hub, max_active) if max_active else None
        prompts = PromptBuilder(store.messages, engine)
        self.runs = Runs(
            limit=self.active_limit,
            prompts=prompts,
            store=store,
            engine=engine,
            hub=self.hub,
            metrics=self.metrics,
            intervals=config.settings.intervals,
            model_fingerprint=self.model.fingerprint,
            has_peers=self.peers.are_known,
            cache_secret=config.token,
            answer_seconds=config.settings.limits.answer_seconds,
        )
        self.abandonment = Abandonment(store, self.hub, self.runs)
        self.creator = ResponseCreator(
            store=store,
            engine=engine,
            hub=self.hub,
            runs=self.runs,
            prompts=prompts,
            replica=config.replica,
            model=self.model,
            limit=self.active_limit,
            tracing=self.tracing,
        )
        self.takeover = Takeover(
            store=store,
            hub=self.hub,
            metrics=self.metrics,
            runs=self.runs,
            peers=self.peers,
            replica=config.replica,
            model=self.model.name,
            intervals=config.settings.intervals,
            index_sweep=IndexSweep(
                store.client,
                store.keys,
                idle_seconds=config.settings.limits.session_idle_seconds,
                uids=BUILT_IN,
            ),
            tracing=self.tracing,
        )

    def _admit_users(self) -> None:
        """Who may come in."""
        config, store = self.config, self.store
        self.credentials = Credentials(store.client, store.keys)
        self.identities = Identities(
            self.credentials,
            Users(store.client, store.keys),
            token=config.token,
            admin_token=config.admin_token,
        )
        self.feed.on_resync(self.identities.on_resync)

    def _open_doors(self) -> None:
        """The websocket, HTTP and the control channel, on what they share."""
        config, store, engine = self.config, self.store, self.engine
        self.services = Services(
            store=store,
            engine=engine,
            hub=self.hub,
            runs=self.runs,
            creator=self.creator,
            peers=self.peers,
            takeover=self.takeover,
            health=self.health,
            identities=self.identities,
            auditor=Auditor(AuditLog(store.client, store.keys)),
            metrics=self.metrics,
            limits=config.settings.limits,
            connections=ConnectionCounter(config.settings.limits),
            replica=config.replica,
            version=__version__,
            model=self.model.name,
        )
        self.control = Control(config.replica, self.services, self.feed, stop_asked=self.stop_asked)
        self.origins = Origins(config.settings.origins)
        self.authenticator = Authenticator(self.identities, origins=self.origins)
        self.streams: set[HttpViewer] = set()
        context = ApiContext(
            self.services,
            self.authenticator,
            self.credentials,
            self.health,
            STATIC,
            self.streams,
            TokenBuckets(config.settings.limits.messages_per_s),
        )
        self.connections: set[Connection] = set()
        websocket = WebSocketEndpoint(self.services, self.authenticator, self.connections)
        self.app = self._build(context, websocket)

    def _build(self, context: ApiContext, websocket: WebSocketEndpoint) -> ASGIApp:
        index = STATIC / "index.html"
        guard = Middleware(
            Guard,
            hosts=(*LOOPBACK_HOSTS, *self.origins.hosts)
            if self.config.settings.is_loopback
            else None,
            index=index.read_bytes() if index.exists() else b"",
            count_error=self.metrics.count_error,
        )
        return Starlette(
            routes=[
                *routes(context),
                WebSocketRoute("/v1/ws", websocket.serve),
                Route("/v1/ws", upgrade_required, methods=["GET"]),
                Mount("/static", Static(directory=STATIC)),
            ],
            lifespan=self._lifespan,
            # Inside of Starlette, whose own handler would answer for what nobody has caught.
            middleware=[guard],
            exception_handlers={HTTPException: http_error},
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        await self.feed.start()
        background = Background()
        for work in (
            self.health.watch_forever(),
            self.peers.beat_forever(),
            self.recorder.record_forever(),
            self.takeover.sweep_forever(),
            self.control.listen(),
            self.hub.viewers.refresh_forever(),
            self.abandonment.sweep_forever(),
            self.identities.watch_forever(),
        ):
            background.spawn(work)
        if self.active_limit is not None:
            background.spawn(self.active_limit.renew_forever(self.runs.all))
        try:
            yield
        finally:
            await background.close()
            await self.runs.close()
            await self.hub.close()
            await self.feed.close()
            await self.store.close()

    def _on_refused(self, error: StoreRefused) -> None:
        self.refusal = error
        self.stop_asked.set()

    def _figures(self) -> Figures:
        """What this worker says of itself in its sign of life."""
        stats = self.engine.stats
        return {
            "version": __version__,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "model": self.model.name,
            "model_fingerprint": self.runs.model_fingerprint,
            "started_at": self._started_at,
            "server_started_at": self.config.server_started_at,
            "draining": int(self.runs.draining),
            "connections": len(self.connections),
            "active_responses": self.runs.num_active,
            "queued_responses": sum(run.status == "queued" for run in self.runs.all()),
            "engine": self.health.state["engine"],
            "engine_since": self.health.since["engine"],
            "engine_running": stats.num_running if stats else 0,
            "engine_waiting": stats.num_waiting if stats else 0,
            "kv_blocks_total": stats.num_blocks_total if stats else 0,
            "kv_blocks_free": stats.num_blocks_free if stats else 0,
            "engine_sleeping": int(stats.is_sleeping) if stats else 0,
        }

    async def drain(self, seconds: float, hurry: asyncio.Event, *, is_crash: bool) -> None:
        """Tell clients to come back elsewhere, let answers finish, close every socket with 1012.

        What is not done in time, or when `hurry` is set, goes on at another worker. Where there is
        none, it ends as `incomplete`; unless it is a crash: then the next start goes on with it.
        """
        self.runs.draining = True
        await self._tell_peers()
        wait_ms = random.randint(100, 2000)
        self.hub.broadcast(ConnectionDraining(reconnect_after_ms=wait_ms))
        await first_of(self.runs.wait_idle(seconds), hurry.wait())
        await self._tell_peers()
        successor = self.peers.successor(self.runs.model_fingerprint)
        await self.runs.leave(successor, or_nobody=is_crash)
        with contextlib.suppress(StoreUnavailable):
            await self.peers.forget(self.config.replica)
        viewers: list[Connection | HttpViewer] = [*self.connections, *self.streams]
        for viewer in viewers:
            viewer.close_soon()
        for _ in range(40):
            if not self.connections and not self.streams:
                return
            await asyncio.sleep(0.05)

    async def _tell_peers(self) -> None:
        """That this worker leaves; and hear who does not."""
        with contextlib.suppress(StoreUnavailable):
            await self.peers.beat()


async def first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Return when one is done; the others are cancelled."""
    tasks = [start(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def http_error(request: Request, error: Exception) -> Response:
    """Starlette's own refusals in our shape."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        answer = error_response(ApiError("method_not_allowed", "that method is not allowed here"))
        answer.headers.update(error.headers or {})
        return answer
    return error_response(ApiError("not_found", "there is nothing at this address"))
