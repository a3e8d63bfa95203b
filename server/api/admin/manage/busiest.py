"""Who asks most of the server at this moment, over HTTP, for admins who look for a flood."""

from starlette.responses import Response

from server.access.busiest import decoded, summed
from server.access.identities import BUILT_IN
from server.api.admin.actions import Admin
from server.api.admin.manage.objects import BusiestObject
from server.api.rest.operation import Access, Call, Operation, json_response

FIGURE = "busiest"  # of a worker's report


class AdminBusiestOperations:
    """The endpoint."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/v1/admin/busiest",
                access=Access.ADMIN,
                endpoint=self.read,
                summary="Who has most connections and answers now, by user and by address",
                answers={200: BusiestObject},
            ),
        ]

    async def read(self, call: Call) -> Response:
        workers = await self._admin.replicas.all()
        found = summed(decoded(worker.figures.get(FIGURE)) for worker in workers)
        users = await self._admin.users.users(found.users)
        names = {uid: user.name for uid, user in (BUILT_IN | users).items()}
        return json_response(
            {
                "users": [
                    {
                        "user": {"id": uid, "name": names.get(uid)},
                        "connections": connections,
                        "answers": answers,
                    }
                    for uid, (connections, answers) in _ordered(found.users)
                ],
                "addresses": [
                    {"address": address, "connections": connections, "refused": refused}
                    for address, (connections, refused) in _ordered(found.addresses)
                ],
            }
        )


def _ordered(counts: dict[str, tuple[int, int]]) -> list[tuple[str, tuple[int, int]]]:
    """Whoever is most first."""
    return sorted(counts.items(), key=lambda pair: (-sum(pair[1]), pair[0]))
