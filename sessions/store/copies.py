"""The store's part for copies: conversations that are written whole, as new sessions.

A copy is written in parts under an id that nobody knows yet, with an expiry; the script that makes
the session around them takes the expiry away. So a copy exists whole or not at all, and one that
was broken off expires. One call at a time writes the parts of an id: a repeat that comes too soon
has to wait.

Messages are read, encoded and written a part at a time, and a part is bounded by its messages and
by their bytes: neither Redis nor the loop is held for longer than a part takes, and however long a
session is, a fork keeps no more than one part of it in memory.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import orjson

from sessions.connection.client import Argument
from sessions.model.arguments import check_uid
from sessions.model.codec import MAX_COUNT, encode_body, size_of_body
from sessions.model.errors import (
    MessageNotFound,
    QuotaExceeded,
    ResponseInProgress,
    SessionNotFound,
    StoreUnavailable,
)
from sessions.model.ids import derived_session_id, is_message_id, new_message_id, new_session_id
from sessions.model.keys import COPY_LEASE_MS, PART_MS
from sessions.model.records import Message
from sessions.model.replies import CreatedSession
from sessions.store.context import StoreContext
from sessions.store.messages import PART_BYTES, PART_MESSAGES, Messages
from sessions.store.sessions import Sessions, door_pairs

_PART_KEYS: Final = ("m", "msg", "tree", "ids", "copy")


@dataclass(frozen=True, slots=True)
class Draft:
    """A conversation to be written; parents come before their children."""

    title: str
    model: str
    settings: Mapping[str, Any]
    messages: Sequence[Message]
    head: str | None
    life_seconds: float | None = None  # these as of `Sessions.create`
    hidden: bool = False
    metadata: Mapping[str, str] | None = None


class _Stored(NamedTuple):
    """A message, its token ids if they are kept, and its body as it is stored."""

    message: Message
    token_ids: bytes | None
    body: bytes


class Copies:
    """Copies of sessions."""

    def __init__(self, context: StoreContext, sessions: Sessions, messages: Messages) -> None:
        self._context = context
        self._client = context.client
        self._indexes = context.indexes
        self._sessions = sessions
        self._messages = messages

    async def fork(
        self, uid: str, session_id: str, message_id: str, *, idempotency_key: str | None = None
    ) -> CreatedSession:
        """A new session with the messages from the root to this one, under fresh ids.

        With a key, a repeat returns the session that it made. Raises `SessionNotFound`,
        `MessageNotFound`, `ResponseInProgress` for a message that is still being written,
        `QuotaExceeded`, `UserGone`, and `StoreUnavailable` while another call with this key is at
        work.
        """
        if not is_message_id(message_id):
            raise MessageNotFound
        session = await self._sessions.get(uid, session_id)
        new_id = _copy_id(uid, "fork", idempotency_key)
        if (known := await self._known_copy(uid, new_id, idempotency_key)) is not None:
            return known
        path = await self._messages.ids_to(session_id, message_id)
        new_ids = {old: new_message_id() for old in path}
        head = Draft(session.title, session.model, session.settings, (), new_ids[message_id])
        return await self._write(uid, new_id, head, self._copied(session_id, new_ids), len(path))

    async def import_draft(
        self, uid: str, draft: Draft, *, idempotency_key: str | None = None
    ) -> CreatedSession:
        """A new session of this user with these messages. Raises `QuotaExceeded` and `UserGone`.

        With a key, a repeat returns the session that it made. The caller has checked that the
        messages are a tree, with parents first.
        """
        check_uid(uid)
        new_id = _copy_id(uid, "import", idempotency_key)
        if (known := await self._known_copy(uid, new_id, idempotency_key)) is not None:
            return known
        return await self._write(uid, new_id, draft, _drafted(draft), len(draft.messages))

    # ---- inside ---------------------------------------------------------------------------------

    async def _copied(
        self, session_id: str, new_ids: Mapping[str, str]
    ) -> AsyncGenerator[tuple[Message, bytes | None]]:
        """The messages of a path under other ids."""
        async with aclosing(self._messages.bodies(session_id, list(new_ids))) as bodies:
            async for message, token_ids in bodies:
                if message.status == "in_progress":
                    raise ResponseInProgress(message.response_id or "")
                parent_id = new_ids.get(message.parent_id or "")
                copy = replace(
                    message, id=new_ids[message.id], parent_id=parent_id, response_id=None
                )
                yield copy, token_ids

    async def _known_copy(
        self, uid: str, session_id: str, idempotency_key: str | None
    ) -> CreatedSession | None:
        if idempotency_key is None:
            return None
        try:
            return CreatedSession(await self._sessions.get(uid, session_id), replayed=True)
        except SessionNotFound:
            return None

    async def _write(
        self,
        uid: str,
        session_id: str,
        draft: Draft,
        messages: AsyncGenerator[tuple[Message, bytes | None]],
        num_messages: int,
    ) -> CreatedSession:
        """The session of the draft, with these messages instead of its own."""
        most = self._context.quotas.messages_per_session
        if most and num_messages > most:
            raise self._context.quotas.session_error("messages")
        await self._sessions.reserve(uid, session_id, hidden=draft.hidden)
        call_id = secrets.token_urlsafe(6)
        if not await self._begin_copy(session_id, call_id):  # a repeat was faster
            return CreatedSession(await self._sessions.get(uid, session_id), replayed=True)
        pairs: list[Argument] = ["title", draft.title, "model", draft.model]
        pairs += ["settings", orjson.dumps(dict(draft.settings)), "head", draft.head or ""]
        pairs += ["message_count", num_messages]
        pairs += door_pairs(draft.life_seconds, draft.metadata, hidden=draft.hidden)
        try:
            async with aclosing(messages):
                counters = await self._write_parts(session_id, call_id, messages)
            pairs += [part for pair in counters.items() for part in pair]
            return await self._sessions.make(
                uid, session_id, pairs, (call_id, num_messages), hidden=draft.hidden
            )
        except (QuotaExceeded, ResponseInProgress, SessionNotFound):
            if await self._drop_copy(session_id, call_id):
                await self._indexes.settle(self._indexes.without_session(uid, session_id))
            raise

    async def _begin_copy(self, session_id: str, call_id: str) -> bool:
        """Remove what a call that was broken off may have left; False if the session is there."""
        keys = self._context.session_keys(session_id, *_PART_KEYS)
        reply = await self._client.script(
            "begin_copy", keys, call_id=call_id, lease_ms=COPY_LEASE_MS
        )
        if reply[0] == b"busy":
            raise StoreUnavailable("another call is making this copy")
        return bool(reply[0] == b"ok")

    async def _drop_copy(self, session_id: str, call_id: str) -> bool:
        """Remove what this call has written; False if another call is at it, or has done it."""
        keys = self._context.session_keys(session_id, *_PART_KEYS)
        reply = await self._client.script("drop_copy", keys, call_id=call_id)
        return bool(reply[0] == b"ok")

    async def _write_parts(
        self,
        session_id: str,
        call_id: str,
        messages: AsyncIterator[tuple[Message, bytes | None]],
    ) -> dict[str, int]:
        """Write the messages; returns the session's counters of them."""
        place = 0
        counters = dict.fromkeys(("bytes", "input_tokens", "output_tokens"), 0)
        most = self._context.quotas.bytes_per_session
        async for part in _parts(messages):
            for stored in part:
                usage = stored.message.usage or {}
                counters["bytes"] += size_of_body(stored.body)
                for name in ("input_tokens", "output_tokens"):
                    counters[name] = min(counters[name] + usage.get(name, 0), MAX_COUNT)
            if most and counters["bytes"] > most:
                raise self._context.quotas.session_error("bytes")
            await self._write_part(session_id, call_id, place, part)
            place += len(part)
        return counters

    async def _write_part(
        self, session_id: str, call_id: str, place: int, part: Sequence[_Stored]
    ) -> None:
        kept = [(s.message.id, s.token_ids) for s in part if s.token_ids is not None]
        reply = await self._client.script(
            "write_part",
            self._context.session_keys(session_id, *_PART_KEYS),
            call_id=call_id,
            lease_ms=COPY_LEASE_MS,
            life_ms=PART_MS,
            place=place,
            kept=[argument for pair in kept for argument in pair],
            messages=[
                argument
                for stored in part
                for argument in (stored.message.id, stored.message.parent_id or "", stored.body)
            ],
        )
        if reply[0] != b"ok":
            raise StoreUnavailable("another call has made this copy, or makes it")


async def _drafted(draft: Draft) -> AsyncGenerator[tuple[Message, bytes | None]]:
    """The messages of a draft, which has no token ids."""
    for message in draft.messages:
        yield message, None


async def _parts(
    messages: AsyncIterator[tuple[Message, bytes | None]],
) -> AsyncIterator[list[_Stored]]:
    """As many as may be worked on at once without holding up others; at least one."""
    part: list[_Stored] = []
    num_bytes = 0
    async for message, token_ids in messages:
        stored = _Stored(message, token_ids, encode_body(message))
        size = size_of_body(stored.body)
        if part and (len(part) == PART_MESSAGES or num_bytes + size > PART_BYTES):
            yield part
            part, num_bytes = [], 0
        part.append(stored)
        num_bytes += size
    if part:
        yield part


def _copy_id(uid: str, verb: str, idempotency_key: str | None) -> str:
    """A fresh id, or the one that this user and key always give."""
    if idempotency_key is None:
        return new_session_id()
    return derived_session_id(uid, f"{verb} {idempotency_key}")
