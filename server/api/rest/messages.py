"""Messages over HTTP: pages of one path through a session's tree."""

from msgspec import Struct
from starlette.responses import Response

from server.api.rest.objects import MessagePage
from server.api.rest.operation import Access, ApiContext, Call, Operation, json_response
from server.api.rest.sessions import Limit
from server.protocol.objects import MessageObject
from sessions.model.ids import check_message_id, check_session_id
from sessions.model.replies import MessagePage as Page

MAX_PAGE_BYTES = 2 * 1024 * 1024  # of texts: a larger answer would hold up the others' frames


class PathQuery(Struct, frozen=True):
    """Which messages: the newest on the way to `leaf`, or those before `before`."""

    limit: Limit = 50
    leaf: str | None = None
    before: str | None = None


class MessageOperations:
    """The endpoints for messages."""

    def __init__(self, context: ApiContext) -> None:
        self._store = context.services.store

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/v1/sessions/{session_id}/messages",
                access=Access.USER,
                endpoint=self.page,
                summary="Messages on the way to the session's head, oldest first",
                query=PathQuery,
                answers={200: MessagePage},
            ),
            Operation(
                method="GET",
                path="/v1/sessions/{session_id}/messages/{message_id}",
                access=Access.USER,
                endpoint=self.read,
                summary="One message with its whole text",
                answers={200: MessageObject},
            ),
        ]

    async def page(self, call: Call) -> Response:
        session_id, query = call.path("session_id"), call.query
        check_session_id(session_id)
        for message_id in (query.leaf, query.before):
            check_message_id(message_id)
        page = await self._store.messages.path(
            call.uid, session_id, limit=query.limit, leaf=query.leaf, before=query.before
        )
        return messages_response(page)

    async def read(self, call: Call) -> Response:
        session_id, message_id = call.path("session_id"), call.path("message_id")
        check_session_id(session_id)
        message = await self._store.messages.get(call.uid, session_id, message_id)
        return json_response(message.wire())


def messages_response(page: Page) -> Response:
    """The newest of these messages that fit into one answer."""
    shown = page.cut(MAX_PAGE_BYTES)
    return json_response(
        {"messages": [message.wire() for message in shown.messages], "has_more": shown.has_more}
    )
