"""LoRA adapters over HTTP, for admins: what there is, what is loaded; load, and unload."""

from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from server.api.admin.actions import Admin
from server.api.admin.objects import AdapterList, AdapterObject, Unloaded
from server.api.admin.sessions import actor_of
from server.api.rest.operation import Access, Call, Operation, json_response
from server.commands.adapters import Adapters, Offer
from server.protocol.client_frames import to_struct
from server.protocol.errors import ApiError
from sessions.directory.adapters import Adapter


class LoadAdapterBody(Struct, frozen=True):
    """The name of a folder in `PARLEY_LORA_DIR`."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]


class AdminAdapterOperations:
    """The endpoints. Without `PARLEY_LORA_DIR` there are no adapters to speak of."""

    def __init__(self, admin: Admin, adapters: Adapters | None) -> None:
        self._admin = admin
        self._adapters = adapters

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/v1/admin/adapters",
                access=Access.ADMIN,
                endpoint=self.listing,
                summary="The adapters of this worker's folder, and which are loaded",
                answers={200: AdapterList},
            ),
            Operation(
                method="POST",
                path="/v1/admin/adapters",
                access=Access.ADMIN,
                endpoint=self.load,
                summary="Load an adapter, for sessions to choose as their model",
                body=LoadAdapterBody,
                answers={201: AdapterObject},
            ),
            Operation(
                method="DELETE",
                path="/v1/admin/adapters/{name}",
                access=Access.ADMIN,
                endpoint=self.unload,
                summary="Offer an adapter no more; answers that have it go on",
                answers={200: Unloaded},
            ),
        ]

    async def listing(self, call: Call) -> Response:
        offers = [] if self._adapters is None else await self._adapters.listing()
        return json_response({"adapters": [_wire(offer) for offer in offers]})

    async def load(self, call: Call) -> Response:
        body: LoadAdapterBody = to_struct(await call.body(), LoadAdapterBody)
        adapters = self._known()
        await self._admin.auditor.note(actor_of(call), "adapter.load", body.name)
        loaded = await adapters.load(body.name, call.uid)
        return json_response(_wire(Offer(loaded.name, loaded, None)), 201)

    async def unload(self, call: Call) -> Response:
        name, adapters = call.path("name"), self._known()
        await self._admin.auditor.note(actor_of(call), "adapter.unload", name)
        await adapters.unload(name)
        return json_response({"name": name, "loaded": False})

    def _known(self) -> Adapters:
        if self._adapters is None:
            raise ApiError("not_found", "this server was started without PARLEY_LORA_DIR")
        return self._adapters


def _wire(offer: Offer) -> dict[str, object]:
    wire: dict[str, object] = {"name": offer.name, "loaded": offer.loaded is not None}
    if offer.loaded is not None:
        wire |= _loaded_wire(offer.loaded)
    if offer.problem is not None:
        wire["problem"] = offer.problem
    return wire


def _loaded_wire(adapter: Adapter) -> dict[str, object]:
    return {
        "content_hash": adapter.content_hash,
        "loaded_at": adapter.loaded_at,
        "loaded_by": adapter.loaded_by,
    }
