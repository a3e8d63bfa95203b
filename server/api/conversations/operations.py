"""`/v1/conversations`: sessions, and the messages of their branches as items."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from server.api.conversations.deleting import delete_item
from server.api.conversations.objects import (
    INCLUDABLE,
    ConversationChange,
    ConversationItemsQuery,
    ConversationObject,
    DeletedConversation,
    ItemPage,
    NewConversation,
    NewItems,
)
from server.api.conversations.reading import read_item, read_page
from server.api.items.ids import conversation_id_of, session_of_conversation
from server.api.items.input_items import messages_of, waiting_calls
from server.api.items.metadata import check_metadata
from server.api.items.output_items import items_of_path
from server.api.openai.refusals import not_here, refuse
from server.api.rest.objects import Document
from server.api.rest.operation import (
    OPTIONAL_KEY,
    Access,
    ApiContext,
    Call,
    Endpoint,
    Operation,
    json_response,
)
from server.commands.delete_session import delete_session
from server.commands.messages.add_messages import add_messages
from server.protocol.client_frames import to_struct
from server.protocol.errors import ApiError, invalid_field
from server.protocol.server_frames import SessionUpdated
from sessions.model.errors import ItemNotFound
from sessions.model.ids import is_idempotency_key
from sessions.model.records import Message
from sessions.store.copies import Draft

PATH = "/v1/conversations"
ONE = f"{PATH}/{{conversation_id}}"
ITEMS = f"{ONE}/items"
ITEM = f"{ITEMS}/{{item_id}}"


class ConversationOperations:
    """The endpoints."""

    def __init__(self, context: ApiContext) -> None:
        self._services = context.services
        self._store = context.services.store
        self._hub = context.services.hub

    def operations(self) -> list[Operation]:
        return [
            _operation(
                "POST",
                PATH,
                self.create,
                "Make a conversation: a session that is in no list",
                headers=(OPTIONAL_KEY,),
                body=NewConversation,
                answers={200: ConversationObject},
            ),
            _operation("GET", ONE, self.read, "A conversation", answers={200: ConversationObject}),
            _operation(
                "POST",
                ONE,
                self.update,
                "Replace a conversation's metadata",
                body=ConversationChange,
                answers={200: ConversationObject},
            ),
            _operation(
                "DELETE",
                ONE,
                self.delete,
                "Delete a conversation with all its messages",
                answers={200: DeletedConversation},
            ),
            _operation(
                "GET",
                ITEMS,
                self.page,
                "The items of a conversation",
                query=ConversationItemsQuery,
                answers={200: ItemPage},
            ),
            _operation(
                "POST",
                ITEMS,
                self.add,
                "Add items, all of them or none",
                body=NewItems,
                answers={200: ItemPage},
            ),
            _operation("GET", ITEM, self.read_one, "One item", answers={200: Document}),
            _operation(
                "DELETE",
                ITEM,
                self.delete_one,
                "Delete what an item says",
                answers={200: ConversationObject},
            ),
        ]

    # ---- conversations --------------------------------------------------------------------------

    async def create(self, call: Call) -> Response:
        key = call.header("Idempotency-Key")
        if key is not None and not is_idempotency_key(key):
            raise invalid_field("Idempotency-Key", "1 to 128 characters of [A-Za-z0-9_-]")
        body: NewConversation = to_struct(await call.body(), NewConversation)
        metadata = check_metadata(body.metadata)
        messages = messages_of(body.items or [], at_ms=_now_ms(), param="items")
        draft = Draft(
            title="",
            model=self._services.models.default.name,
            settings={},
            messages=messages,
            head=messages[-1].id if messages else None,
            life_seconds=self._services.limits.stored_response_seconds,
            hidden=True,
            metadata=metadata,
        )
        made = await self._store.copies.import_draft(
            call.uid, draft, idempotency_key=None if key is None else f"conversation {key}"
        )
        return _answer(ConversationObject.of(made.session))

    async def read(self, call: Call) -> Response:
        session = await self._store.sessions.get(call.uid, _session_id(call))
        return _answer(ConversationObject.of(session))

    async def update(self, call: Call) -> Response:
        session_id = _session_id(call)
        body: ConversationChange = to_struct(await call.body(), ConversationChange)
        metadata = check_metadata(body.metadata)
        session = await self._store.sessions.update(call.uid, session_id, metadata=metadata)
        # Those who watch it count its events; a list shows nothing of this.
        self._hub.publish_session(SessionUpdated.of(session, "user"))
        return _answer(ConversationObject.of(session))

    async def delete(self, call: Call) -> Response:
        session_id = _session_id(call)
        await delete_session(self._services, call.uid, session_id)
        return _answer(DeletedConversation(conversation_id_of(session_id)))

    # ---- items ----------------------------------------------------------------------------------

    async def page(self, call: Call) -> Response:
        session_id, query = _session_id(call), call.query
        _check_include(call)
        try:
            items, has_more = await read_page(
                self._store.messages,
                call.uid,
                session_id,
                after=query.after,
                limit=query.limit,
                is_newest_first=query.order == "desc",
            )
        except ItemNotFound:
            raise _no_item("after") from None
        return _answer(ItemPage.of(items, has_more=has_more))

    async def add(self, call: Call) -> Response:
        session_id = _session_id(call)
        _check_include(call)
        body: NewItems = to_struct(await call.body(), NewItems)

        def drafted(head: str | None, before: Sequence[Message]) -> list[Message]:
            return messages_of(
                body.items,
                at_ms=_now_ms(),
                parent_id=head,
                waiting=waiting_calls(before),
                param="items",
            )

        messages = await add_messages(self._store, call.uid, session_id, drafted)
        return _answer(ItemPage.of(items_of_path(messages)))

    async def read_one(self, call: Call) -> Response:
        _check_include(call)
        item_id = call.path("item_id")
        try:
            item = await read_item(self._store.messages, call.uid, _session_id(call), item_id)
        except ItemNotFound:
            raise _no_item("item_id") from None
        return json_response(item)

    async def delete_one(self, call: Call) -> Response:
        session_id = _session_id(call)
        try:
            await delete_item(self._store, call.uid, session_id, call.path("item_id"))
        except ItemNotFound:
            raise _no_item("item_id") from None
        return await self.read(call)


def refuse_conversation(request: Request, error: ApiError) -> Response:
    """In the words of these routes: what is no session of the caller's is no conversation."""
    if error.code == "session_not_found":
        error = _no_conversation()
    return refuse(request, error)


def _operation(method: str, path: str, endpoint: Endpoint, summary: str, **more: Any) -> Operation:
    return Operation(
        method=method,
        path=path,
        access=Access.USER,
        endpoint=endpoint,
        summary=summary,
        refuse=refuse_conversation,
        **more,
    )


def _session_id(call: Call) -> str:
    session_id = session_of_conversation(call.path("conversation_id"))
    if session_id is None:
        raise _no_conversation()
    return session_id


def _check_include(call: Call) -> None:
    """`include` may be there several times, as OpenAI's clients write lists."""
    params = call.request.query_params
    for name in (*params.getlist("include"), *params.getlist("include[]")):
        if name not in INCLUDABLE:
            raise not_here("include", "nothing of that is kept")


def _no_conversation() -> ApiError:
    return ApiError("session_not_found", "no such conversation", param="conversation_id")


def _no_item(param: str) -> ApiError:
    return ApiError("item_not_found", "no such item in this conversation", param=param)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _answer(body: Struct) -> Response:
    return json_response(msgspec.to_builtins(body))
