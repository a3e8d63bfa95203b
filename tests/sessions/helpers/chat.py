"""`Chat`: a session under test, so that a test names only the arguments that it is about."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from sessions.model.events import Event, LivePayload, LiveSessionEvents, ObjectEvent, TextEvent
from sessions.model.ids import new_message_id, new_response_id
from sessions.model.records import Message
from sessions.model.replies import AppendReply, BegunResponse, Finished
from sessions.store.store import SessionStore

CREATED = {"type": "response.created"}
DONE = ObjectEvent({"type": "response.done"})


@dataclass
class Chat:
    store: SessionStore
    session_id: str
    uid: str = "alice"
    messages: dict[str, Message] = field(default_factory=dict)  # response id -> assistant message

    @classmethod
    async def create(cls, store: SessionStore, *, uid: str = "alice", **fields: Any) -> Chat:
        """A new session, which no session of a later call is as old as: lists have an order."""
        key = secrets.token_hex(8)
        created = await store.sessions.create(uid, idempotency_key=key, **fields)
        while await store.client.now_ms() <= created.session.updated_at:
            pass
        return cls(store, created.session.id, uid)

    def on(self, store: SessionStore) -> Chat:
        """The same session, seen by another worker."""
        return Chat(store, self.session_id, self.uid, self.messages)

    async def begin(self, text: str | None = "hello", **changed: Any) -> BegunResponse:
        """Begin a response; `text` None sends no user message."""
        response_id = changed.pop("response_id", None) or new_response_id(self.session_id)
        user = None if text is None else user_message(text)
        assistant = changed.pop("assistant_message", None) or assistant_message(response_id)
        self.messages[response_id] = assistant.with_parent(user.id) if user else assistant
        arguments: dict[str, Any] = {
            "uid": self.uid,
            "idempotency_key": secrets.token_hex(8),
            "body_hash": "hash",
            "owner": "w1",
            "user_message": user,
            "assistant_message": assistant,
            "created_event": CREATED,
        }
        arguments |= changed
        uid = arguments.pop("uid")
        return await self.store.responses.begin(
            uid, self.session_id, response_id=response_id, **arguments
        )

    async def append(
        self, response_id: str, first: int, *texts: str, fence: int = 1, **changed: Any
    ) -> AppendReply:
        """Append text events from `first` on, each with a token id."""
        events: list[Event] = [TextEvent(0, text) for text in texts]
        changed.setdefault("token_ids", range(len(events)))
        return await self.store.runs.append(
            response_id, fence=fence, first=first, events=events, **changed
        )

    async def finish(self, response_id: str, first: int, **changed: Any) -> Finished:
        """End a response with one entry, `response.done`."""
        arguments: dict[str, Any] = {
            "fence": 1,
            "status": "completed",
            "reason": "eos",
            "engine": "released",
            "message": self.messages.get(response_id) or assistant_message(response_id),
            "text_length": 0,
            "input_tokens": 3,
            "output_tokens": 5,
            "events": [DONE],
        }
        return await self.store.runs.finish(response_id, first=first, **(arguments | changed))

    async def keys(self) -> list[str]:
        """The session's keys without their common part, sorted."""
        base = self.store.keys.session_base(self.session_id)
        replies = await self.store.client.everywhere("KEYS", f"{self.store.keys.prefix}*")
        texts = (name.decode() for names in replies for name in names)
        return sorted(text.removeprefix(base) for text in texts if text.startswith(base))


def user_message(text: str, parent_id: str | None = None) -> Message:
    return Message(new_message_id(), parent_id, "user", text, "completed", created_at=1)


def assistant_message(response_id: str, text: str = "", **changed: Any) -> Message:
    fields: dict[str, Any] = {"status": "in_progress", "created_at": 1, "parent_id": None}
    fields |= {"response_id": response_id, "id": new_message_id()}
    return Message(role="assistant", text=text, **(fields | changed))


def is_creation(payload: LivePayload) -> bool:
    """A session's first event, which a cluster may bring to those who subscribe after it."""
    return isinstance(payload, LiveSessionEvents) and payload.offset == 1
