"""The notice to all users over HTTP, for admins: every open page shows it at once."""

from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from server.api.admin.actions import Admin
from server.api.admin.manage.objects import ShownNotice
from server.api.admin.sessions import actor_of
from server.api.rest.operation import Access, Call, Operation, json_response
from server.protocol.client_frames import to_struct
from server.protocol.errors import ApiError, invalid_field
from server.protocol.titles import VISIBLE, needed_line
from sessions.directory.notices import LEVELS, Level, Notice

MAX_TEXT_CHARACTERS = 500
MAX_LIFE_SECONDS = 30 * 86_400

Text = Annotated[
    str,
    Meta(max_length=MAX_TEXT_CHARACTERS, extra_json_schema={"minLength": 1, "pattern": VISIBLE}),
]
NoticeLevel = Annotated[str, Meta(max_length=16, extra_json_schema={"enum": list(LEVELS)})]


class NoticeBody(Struct, frozen=True):
    """One line of text; `expires_in_s`: it is shown for so long."""

    text: Text
    expires_in_s: Annotated[int, Meta(ge=1, le=MAX_LIFE_SECONDS)]
    level: NoticeLevel = "info"


class AdminNoticeOperations:
    """The endpoints."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._notices = admin.notices

    def operations(self) -> list[Operation]:
        path = "/v1/admin/notice"
        return [
            Operation(
                method="GET",
                path=path,
                access=Access.ADMIN,
                endpoint=self.read,
                summary="The notice that users are shown now",
                answers={200: ShownNotice},
            ),
            Operation(
                method="PUT",
                path=path,
                access=Access.ADMIN,
                endpoint=self.put,
                summary="Show all users a notice, in the place of another",
                body=NoticeBody,
                answers={200: ShownNotice},
            ),
            Operation(
                method="DELETE",
                path=path,
                access=Access.ADMIN,
                endpoint=self.remove,
                summary="Show the notice no more",
                answers={204: None},
            ),
        ]

    async def read(self, call: Call) -> Response:
        return _answer(await self._notices.current())

    async def put(self, call: Call) -> Response:
        body: NoticeBody = to_struct(await call.body(), NoticeBody)
        if body.level not in LEVELS:
            raise invalid_field("level", f"one of {', '.join(LEVELS)}")
        text = needed_line("text", body.text, "say something")
        actor = actor_of(call)
        await self._admin.auditor.note(actor, "notice.put", "", f"{body.level}: {text}")
        level: Level = "warning" if body.level == "warning" else "info"
        notice = await self._notices.put(level, text, body.expires_in_s, actor.user.uid)
        return _answer(notice)

    async def remove(self, call: Call) -> Response:
        await self._admin.auditor.note(actor_of(call), "notice.delete", "")
        if not await self._notices.remove():
            raise ApiError("not_found", "no notice is shown")
        return Response(status_code=204)


def _answer(notice: Notice | None) -> Response:
    shown = None if notice is None else {**notice.wire(), "by": notice.by}
    return json_response({"notice": shown})
