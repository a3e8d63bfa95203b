"""What the routes of conversations take and answer."""

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from server.api.items.ids import conversation_id_of
from server.api.items.metadata import Metadata
from server.api.items.output_items import Item
from sessions.model.records import Session

MAX_ADDED: Final = 100  # items of one call: viewers get them all at once, as they are stored
MAX_LIMIT: Final = 100
# What a client may want to see of items that there are none of here, and of thoughts, which are
# shown whole.
INCLUDABLE: Final = (
    "web_search_call.action.sources",
    "web_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
)


class NewConversation(Struct, frozen=True, forbid_unknown_fields=True):
    """The body that makes one."""

    items: Annotated[list[Any], Meta(max_length=MAX_ADDED)] | None = None
    metadata: Metadata | None = None


class ConversationChange(Struct, frozen=True, forbid_unknown_fields=True):
    """The body that changes one: all of its metadata is replaced."""

    metadata: Metadata | None


class NewItems(Struct, frozen=True, forbid_unknown_fields=True):
    """The body that adds items."""

    items: Annotated[list[Any], Meta(min_length=1, max_length=MAX_ADDED)]


class ConversationItemsQuery(Struct, frozen=True):
    """Which items: the newest or the oldest, or those that come `after` one in that order."""

    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT)] = 20
    order: Literal["asc", "desc"] = "desc"


class ConversationObject(Struct, frozen=True):
    """A session, for OpenAI's clients. `created_at` is in seconds since 1970."""

    id: Annotated[str, Meta(pattern=r"^conv_[A-Za-z0-9_-]{22}$")]
    object: Literal["conversation"]
    created_at: Annotated[int, Meta(ge=0)]
    metadata: dict[str, str]

    @classmethod
    def of(cls, session: Session) -> "ConversationObject":
        return cls(
            id=conversation_id_of(session.id),
            object="conversation",
            created_at=session.created_at // 1000,
            metadata=session.metadata,
        )


class DeletedConversation(Struct, frozen=True):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True


class ItemPage(Struct, frozen=True):
    """`first_id` and `last_id` are empty where `data` is."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool

    @classmethod
    def of(cls, items: list[Item], *, has_more: bool = False) -> "ItemPage":
        return cls(
            object="list",
            data=items,
            first_id=items[0]["id"] if items else "",
            last_id=items[-1]["id"] if items else "",
            has_more=has_more,
        )
