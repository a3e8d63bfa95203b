"""One worker: the Starlette application of its doors, and what starts and ends with it."""

import asyncio
import contextlib
import os
import random
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.types import ASGIApp

from server.access.busiest import busiest, encoded
from server.access.rates import TokenBuckets
from server.api.responses.socket.endpoint import ResponsesSocket
from server.api.rest.event_stream import HttpViewer
from server.api.rest.operation import ApiContext
from server.api.rest.pages import Static
from server.api.websocket.endpoint import WebSocketEndpoint, upgrade_required
from server.api.websocket.entrance import Open
from server.config.worker import WorkerConfig
from server.engines.models import Models
from server.protocol.errors import ApiError
from server.protocol.http_errors import error_response
from server.protocol.server_frames import ConnectionDraining
from server.runs.peers import Figures
from server.telemetry.engine_figures import EnginesCollector
from server.telemetry.logs import Losses, log_level
from server.telemetry.tracing import AnswerTracing
from server.worker.control import Control
from server.worker.middleware import Guard
from server.worker.parts import (
    Given,
    build_access,
    build_adapters,
    build_answers,
    build_live,
    build_metrics,
    build_others,
    build_services,
    build_tools,
)
from server.worker.routes import routes
from sessions.background import Background, first_of
from sessions.model.errors import StoreRefused, StoreUnavailable
from sessions.store.store import SessionStore

if TYPE_CHECKING:
    from server.engines.tracing import Tracing

logger = structlog.get_logger("server")

STATIC = Path(__file__).resolve().parents[2] / "static"
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


class Worker:
    """One worker. `app` is what uvicorn serves; `services` are the parts that the doors share."""

    def __init__(
        self,
        config: WorkerConfig,
        store: SessionStore,
        models: Models,
        tracing: "Tracing | None" = None,
    ) -> None:
        self.config, self.store, self.models = config, store, models
        self.refusal: StoreRefused | None = None  # why this worker stops, if that is why
        self.stop_asked = asyncio.Event()
        self.hurry = asyncio.Event()  # it is not to wait for its answers then
        self.connections: set[Open] = set()
        self.streams: set[HttpViewer] = set()
        self._started_at = time.time_ns() // 1_000_000
        traces = None if tracing is None else AnswerTracing(tracing, models.default.name)
        metrics = build_metrics(store, tracing)
        metrics.registry.register(EnginesCollector(models.engine_figures))
        given = Given(config, store, models, metrics, traces)
        self._others = others = build_others(given, self._figures)
        self._live = live = build_live(given, others.peers, self._on_refused)
        self._adapters = adapters = build_adapters(given, others.peers)
        self._tools = tools = build_tools(config)
        self._answers = answers = build_answers(given, live, others.peers, adapters, tools)
        self.access = build_access(given, live.feed)
        self.services = build_services(
            given, others, live, answers, self.access.identities, adapters
        )
        self.metrics, self.peers = given.metrics, others.peers
        self.hub, self.health = live.hub, live.health
        self.runs, self.takeover = answers.runs, answers.takeover
        models.on_change = self.runs.tell_loading
        self.control = Control(
            config.replica,
            self.services,
            live.feed,
            stop_asked=self.stop_asked,
            hurry=self.hurry,
            on_change=others.peers.beat_soon,
        )
        self.app = self._build()

    def _build(self) -> ASGIApp:
        services, authenticator = self.services, self.access.authenticator
        static = Static(directory=STATIC)
        context = ApiContext(
            services,
            authenticator,
            self.access.credentials,
            self.health,
            static,
            self.streams,
            TokenBuckets(services.limits.messages_per_s),
        )
        websocket = WebSocketEndpoint(services, authenticator, self.connections)
        responses = ResponsesSocket(services, authenticator, self.connections)
        index = STATIC / "index.html"
        ours = (*LOOPBACK_HOSTS, *authenticator.origins.hosts)
        guard = Middleware(
            Guard,
            hosts=ours if self.config.settings.is_loopback else None,
            index=index.read_bytes() if index.exists() else b"",
            count_error=self.metrics.count_error,
        )
        return Starlette(
            routes=[
                *routes(context),
                WebSocketRoute("/v1/ws", websocket.serve),
                WebSocketRoute("/v1/responses", responses.serve),
                Route("/v1/ws", upgrade_required, methods=["GET"]),
                Mount("/static", static),
            ],
            lifespan=self._lifespan,
            # Inside of Starlette, whose own handler would answer for what nobody has caught.
            middleware=[guard],
            exception_handlers={HTTPException: http_error},
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        feed = self._live.feed
        await feed.start()
        background = Background()
        for work in (
            self.health.watch_forever(),
            self._live.notices.watch_forever(),
            self.peers.beat_forever(),
            self._others.recorder.record_forever(),
            self.takeover.sweep_forever(),
            self.control.listen(),
            self.hub.viewers.refresh_forever(),
            self._answers.abandonment.sweep_forever(),
            self._answers.queue_runner.sweep_forever(),
            self.access.identities.watch_forever(),
            self.services.names.keep_forever(),
            self._answers.limit.renew_forever(self._slots),
        ):
            background.spawn(work)
        if self._adapters is not None:
            background.spawn(self._adapters.watch_forever())
        try:
            yield
        finally:
            await background.close()
            await self.runs.close()
            await self.services.stateless.repeats.close()
            await self.services.stateless.entry.close()
            await self.hub.close()
            if self._tools is not None:
                await self._tools.close()
            await feed.close()
            await self.store.close()

    def _on_refused(self, error: StoreRefused) -> None:
        self.refusal = error
        self.stop_asked.set()

    def _slots(self) -> list[tuple[str, str]]:
        return [*self.runs.slots(), *self.services.stateless.entry.slots()]

    def _figures(self) -> Figures:
        """What this worker says of itself in its sign of life."""
        stats = self.models.default_engine.stats
        return {
            "version": self.services.version,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "model": self.models.default.name,
            "model_fingerprint": self.models.default.fingerprint,
            "fingerprints": " ".join(model.fingerprint for model in self.models.bases()),
            "started_at": self._started_at,
            "server_started_at": self.config.server_started_at,
            "draining": int(self.runs.draining),
            "log_level": log_level(),
            "log_lines_lost": Losses.now,
            "busiest": encoded(
                busiest(self.services.connections, (uid for uid, _ in self._slots()))
            ),
            "connections": len(self.connections),
            "active_responses": self.runs.num_active,
            "queued_responses": sum(run.status == "queued" for run in self.runs.all()),
            "engine": self.health.state["engine"],
            "engine_since": self.health.since["engine"],
            "engine_heard_ms": self._engine_heard_ms(),
            "engine_running": stats.num_running if stats else 0,
            "engine_waiting": stats.num_waiting if stats else 0,
            "kv_blocks_total": stats.num_blocks_total if stats else 0,
            "kv_blocks_free": stats.num_blocks_free if stats else 0,
            "engine_sleeping": int(stats.is_sleeping) if stats else 0,
        }

    def _engine_heard_ms(self) -> int:
        """Since the last sign of life of the default model's engine; 0 if it gives none unasked."""
        heard_at = self.models.default_engine.heard_at
        return 0 if heard_at is None else int((time.monotonic() - heard_at) * 1000)

    async def drain(self, seconds: float, hurry: asyncio.Event, *, is_crash: bool) -> None:
        """Tell clients to come back elsewhere, let answers finish, close every socket with 1012.

        What is not done in time, or when `hurry` is set, goes on at another worker. Where there is
        none, it ends as `incomplete`; unless it is a crash: then the next start goes on with it.
        """
        self.runs.draining = True
        await self._tell_peers()
        wait_ms = random.randint(100, 2000)
        self.hub.broadcast(ConnectionDraining(reconnect_after_ms=wait_ms))
        await first_of(self._wait_idle(seconds), hurry.wait())
        self.services.stateless.answers.end_all()
        await self._tell_peers()
        await self.runs.leave(self.peers.successor, or_nobody=is_crash)
        with contextlib.suppress(StoreUnavailable):
            await self.peers.forget(self.config.replica)
        viewers: list[Open] = [*self.connections, *self.streams]
        for viewer in viewers:
            viewer.close_soon()
        for _ in range(40):
            if not self.connections and not self.streams:
                return
            await asyncio.sleep(0.05)

    async def _wait_idle(self, seconds: float) -> None:
        await asyncio.gather(
            self.runs.wait_idle(seconds), self.services.stateless.entry.wait_empty(seconds)
        )

    async def _tell_peers(self) -> None:
        """That this worker leaves; and hear who does not."""
        with contextlib.suppress(StoreUnavailable):
            await self.peers.beat()


async def http_error(request: Request, error: Exception) -> Response:
    """Starlette's own refusals in our shape."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        answer = error_response(ApiError("method_not_allowed", "that method is not allowed here"))
        answer.headers.update(error.headers or {})
        return answer
    return error_response(ApiError("not_found", "there is nothing at this address"))
