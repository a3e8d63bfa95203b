"""Settings under names: what the page offers for chats, and begins new ones with."""

from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.responses import Response

from server.api.rest.operation import Access, ApiContext, Call, Operation, json_response
from server.protocol.client_frames import Settings, check_system, to_struct
from server.protocol.errors import ApiError
from server.protocol.objects import SettingsObject
from sessions.directory.presets import PresetBook

# No control characters, and something to see.
Name = Annotated[str, Meta(pattern=r"^(?=.*\S)[^\x00-\x1f\x7f]{1,60}\Z")]


class PresetBody(Struct, frozen=True):
    """`default`: new chats begin with it; then no other one is that."""

    name: Name
    settings: Settings
    default: bool = False


class PresetQuery(Struct, frozen=True):
    name: Name


class Preset(Struct, frozen=True):
    name: str
    settings: SettingsObject


class Presets(Struct, frozen=True):
    """All of the user's, and which one new chats begin with."""

    presets: list[Preset]
    default: str | None


class PresetOperations:
    """The endpoints for presets."""

    def __init__(self, context: ApiContext) -> None:
        store = context.services.store
        self._book = PresetBook(store.client, store.keys)

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/v1/presets",
                access=Access.USER,
                endpoint=self.listing,
                summary="The caller's presets",
                answers={200: Presets},
            ),
            Operation(
                method="PUT",
                path="/v1/presets",
                access=Access.USER,
                endpoint=self.put,
                summary="Make a preset, or replace the one of this name",
                body=PresetBody,
                answers={200: Presets},
            ),
            Operation(
                method="DELETE",
                path="/v1/presets",
                access=Access.USER,
                endpoint=self.delete,
                summary="Delete a preset; chats keep what they have of it",
                query=PresetQuery,
                answers={204: None},
            ),
        ]

    async def listing(self, call: Call) -> Response:
        return json_response(await self._wire(call.uid))

    async def put(self, call: Call) -> Response:
        body: PresetBody = to_struct(await call.body(), PresetBody)
        check_system(body.settings)
        given = body.settings.given()
        await self._book.put(call.uid, body.name.strip(), given, is_default=body.default)
        return json_response(await self._wire(call.uid))

    async def delete(self, call: Call) -> Response:
        if not await self._book.remove(call.uid, call.query.name.strip()):
            raise ApiError("not_found", "there is no preset of that name")
        return Response(status_code=204, headers={"Cache-Control": "no-store"})

    async def _wire(self, uid: str) -> dict[str, Any]:
        found = await self._book.of_user(uid)
        presets = [{"name": name, "settings": found.settings[name]} for name in found.settings]
        return {"presets": presets, "default": found.default}
