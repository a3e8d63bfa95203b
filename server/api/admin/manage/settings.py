"""The settings as they run, over HTTP, for admins. No secret is among them."""

from starlette.responses import Response

from server.api.admin.manage.objects import RunningSettings
from server.api.rest.operation import Access, Call, Operation, json_response
from server.config.shown import ShownSetting


class AdminSettingsOperations:
    """The endpoint: of the host of the worker that answers."""

    def __init__(self, settings: tuple[ShownSetting, ...]) -> None:
        self._settings = settings

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/v1/admin/settings",
                access=Access.ADMIN,
                endpoint=self.listing,
                summary="The settings of this worker's host as they run, secrets masked",
                answers={200: RunningSettings},
            ),
        ]

    async def listing(self, call: Call) -> Response:
        listed = [
            {"name": one.name, "value": one.value, "origin": one.origin, "about": one.about}
            for one in self._settings
        ]
        return json_response({"settings": listed})
