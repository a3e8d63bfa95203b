"""What tools ask: is the worker alive and ready, what does it measure, what does it serve."""

import contextlib
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from starlette.responses import Response

from server.api.rest.objects import Alive, Document, Model, ModelList, Version
from server.api.rest.operation import Access, ApiContext, Call, Operation, json_response
from server.config.models import shown
from server.engines.models import Models
from server.protocol.errors import ApiError
from server.protocol.schemas import asyncapi
from sessions.model.errors import StoreUnavailable


class Ops:
    """The endpoints for monitoring the server; `document` makes the OpenAPI document."""

    def __init__(self, context: ApiContext, document: Callable[[], Document]) -> None:
        self._document = cache(document)
        self._services = context.services
        self._health = context.health
        self._started_at = int(time.time())  # nobody knows when its models were made

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/healthz",
                access=Access.PUBLIC,
                endpoint=self.healthz,
                summary="200 while the worker runs",
                answers={200: Alive},
            ),
            self._ready("/readyz"),
            self._ready("/health"),  # where clients of vLLM and llama.cpp ask
            Operation(
                method="GET",
                path="/metrics",
                access=Access.USER,
                endpoint=self.metrics,
                summary="Figures for Prometheus",
                answers={200: "text/plain"},
            ),
            Operation(
                method="GET",
                path="/version",
                access=Access.USER,
                endpoint=self.version,
                summary="The server's version",
                answers={200: Version},
            ),
            Operation(
                method="GET",
                path="/v1/models",
                access=Access.USER,
                endpoint=self.models,
                summary="The models of this server, and what loaded adapters make of them",
                answers={200: ModelList},
            ),
            Operation(
                method="GET",
                path="/v1/models/{model}",
                access=Access.USER,
                endpoint=self.model,
                summary="One of them",
                answers={200: Model},
            ),
            Operation(
                method="GET",
                path="/openapi.json",
                access=Access.USER,
                endpoint=self.openapi,
                summary="This document",
            ),
            Operation(
                method="GET",
                path="/asyncapi.json",
                access=Access.USER,
                endpoint=self.asyncapi,
                summary="The same for the websocket",
            ),
        ]

    def _ready(self, path: str) -> Operation:
        return Operation(
            method="GET",
            path=path,
            access=Access.PUBLIC,
            endpoint=self.readyz,
            summary="200 when answers can be made, else 503 and what is wrong",
            answers={200: Alive, 503: Document},
        )

    async def healthz(self, call: Call) -> Response:
        return json_response({"status": "ok"})

    async def readyz(self, call: Call) -> Response:
        problems = self._health.problems
        if self._services.runs.draining:
            problems = {**problems, "worker": "draining"}
        return json_response(
            {"status": "unavailable" if problems else "ok", **problems}, 503 if problems else 200
        )

    async def metrics(self, call: Call) -> Response:
        metrics = self._services.metrics
        models = self._services.models
        cores = await models.metrics()
        metrics.engine.values = cores.get(models.default.name, {})  # no core, no figures
        metrics.models.statuses, metrics.models.cores = models.statuses, cores
        return Response(
            metrics.render(),
            media_type="text/plain; version=0.0.4; charset=utf-8",
            headers={"Cache-Control": "no-store"},
        )

    async def version(self, call: Call) -> Response:
        return json_response({"version": self._services.version})

    async def models(self, call: Call) -> Response:
        return json_response({"object": "list", "data": await self._listed()})

    async def model(self, call: Call) -> Response:
        """Raises `ApiError` for one that is not served."""
        name = call.path("model")
        for model in await self._listed():
            if model["id"] == name:
                return json_response(model)
        raise ApiError("model_not_found", "this server does not have that model", param="model")

    async def _listed(self) -> list[dict[str, Any]]:
        models, adapters = self._services.models, self._services.adapters
        if adapters is not None:
            with contextlib.suppress(StoreUnavailable):  # what is known stays known
                await adapters.refresh()
        known = {"object": "model", "created": self._started_at, "owned_by": "parley"}
        listed = [
            {"id": status.name, **known, **_length(models, status.name), **shown(status)}
            for status in models.statuses
        ]
        base = models.default.name
        listed += [
            {**listed[0], "id": model.name, "parent": base}
            for model in models.served.values()
            if model.lora_request is not None
        ]
        return listed

    async def openapi(self, call: Call) -> Response:
        return json_response(self._document())

    async def asyncapi(self, call: Call) -> Response:
        return json_response(asyncapi())


def _length(models: Models, name: str) -> dict[str, int]:
    """The context that it has got; nothing while its engine is away."""
    engine = models.engine(name)
    return {"max_model_len": engine.model_config.max_model_len} if engine.is_ready else {}
