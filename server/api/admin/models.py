"""The models over HTTP, for admins: their state and memory; load one, and let one go.

Each host has its own: what is said and done here is of the host of the worker that answers.
"""

from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from server.api.admin.actions import Admin
from server.api.admin.objects import AdminModelList, AskedModel
from server.api.admin.sessions import actor_of
from server.api.rest.operation import Access, Call, Operation, json_response
from server.config.models import ModelStatus, shown
from server.engines.models import Models
from server.protocol.client_frames import to_struct
from server.protocol.errors import ApiError, invalid_field


class ModelBody(Struct, frozen=True):
    """The name of a model of this server."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]


class AdminModelOperations:
    """The endpoints."""

    def __init__(self, admin: Admin, models: Models) -> None:
        self._admin = admin
        self._models = models

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/v1/admin/models",
                access=Access.ADMIN,
                endpoint=self.listing,
                summary="The models of this worker's host, with their state and memory",
                answers={200: AdminModelList},
            ),
            Operation(
                method="POST",
                path="/v1/admin/models/load",
                access=Access.ADMIN,
                endpoint=self.load,
                summary="Have a model loaded",
                body=ModelBody,
                answers={202: AskedModel},
            ),
            Operation(
                method="POST",
                path="/v1/admin/models/unload",
                access=Access.ADMIN,
                endpoint=self.unload,
                summary="Let a model go as soon as no answer uses it; the next question loads it",
                body=ModelBody,
                answers={202: AskedModel},
            ),
        ]

    async def listing(self, call: Call) -> Response:
        models = self._models
        default = models.default.name
        listed = [_wire(status, is_default=status.name == default) for status in models.statuses]
        return json_response({"models": listed})

    async def load(self, call: Call) -> Response:
        name = await self._named(call, "model.load")
        self._models.ask(name)
        return json_response({"name": name}, 202)

    async def unload(self, call: Call) -> Response:
        if not self._models.are_many:
            raise invalid_field("name", "it is the only model of this server")
        name = await self._named(call, "model.unload")
        self._models.ask_to_unload(name)
        return json_response({"name": name}, 202)

    async def _named(self, call: Call, action: str) -> str:
        body: ModelBody = to_struct(await call.body(), ModelBody)
        if body.name not in {status.name for status in self._models.statuses}:
            raise ApiError("model_not_found", "this server does not have that model", param="name")
        await self._admin.auditor.note(actor_of(call), action, body.name)
        return body.name


def _wire(status: ModelStatus, *, is_default: bool) -> dict[str, object]:
    needs = None if status.facts is None else status.facts.needs_bytes
    fields = {"needs_bytes": needs, "memory_bytes": status.memory_bytes}
    known = {name: value for name, value in fields.items() if value is not None}
    return {"name": status.name, "default": is_default, **shown(status), **known}
