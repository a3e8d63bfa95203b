"""The store's half for copies: conversations read out whole, and written as new sessions.

A copy is written in parts under an id that nobody knows yet, with an expiry; the script that makes
the session around them takes the expiry away. So a copy is there whole or not at all, and one that
was broken off goes by itself. Parts are small, so that other calls come in between.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from sessions.arguments import check_owner, check_session_id, check_uid
from sessions.client import Argument
from sessions.conversations import Conversations
from sessions.errors import (
    MessageNotFound,
    QuotaExceeded,
    ResponseInProgress,
    SessionNotFound,
)
from sessions.keys import PART_MS
from sessions.records import (
    CreatedSession,
    Message,
    derived_session_id,
    is_message_id,
    new_message_id,
    new_session_id,
)
from sessions.stored import decode_body, encode_body, size_of_body
from sessions.tree import parents_of, path_to

PART_MESSAGES: Final = 200
PART_BYTES: Final = 256 * 1024
_PART_KEYS: Final = ("m", "msg", "tree", "ids")


@dataclass(frozen=True, slots=True)
class Draft:
    """A conversation to be written; parents come before their children."""

    title: str
    model: str
    settings: Mapping[str, Any]
    messages: Sequence[Message]
    head: str | None
    token_ids: Mapping[str, bytes]  # message id → as they are stored


class Copies(Conversations):
    """Copies of sessions. `SessionStore` has these methods; see there."""

    async def fork_session(
        self, uid: str, session_id: str, message_id: str, *, idempotency_key: str | None = None
    ) -> CreatedSession:
        """A new session with the messages from the root to this one, under fresh ids.

        With a key, a repeat returns the session that it made. Raises `SessionNotFound`,
        `MessageNotFound`, `ResponseInProgress` for a message that is still being written, and
        `QuotaExceeded`.
        """
        if not is_message_id(message_id):
            raise MessageNotFound
        session = await self.session(uid, session_id)
        new_id = _copy_id(uid, "fork", idempotency_key)
        if (known := await self._known_copy(uid, new_id, idempotency_key)) is not None:
            return known
        messages: list[Message] = []
        new_ids: dict[str, str] = {}
        token_ids: dict[str, bytes] = {}
        async for message, ids in self._bodies(
            session_id, await self._path(session_id, message_id)
        ):
            if message.status == "in_progress":
                raise ResponseInProgress(message.response_id or "")
            new_ids[message.id] = new_message_id()
            parent_id = new_ids.get(message.parent_id or "")
            copy = replace(message, id=new_ids[message.id], parent_id=parent_id, response_id=None)
            messages.append(copy)
            if ids is not None:
                token_ids[copy.id] = ids
        draft = Draft(
            session.title, session.model, session.settings, messages, messages[-1].id, token_ids
        )
        return await self._write(uid, new_id, draft)

    async def import_session(
        self, uid: str, draft: Draft, *, idempotency_key: str | None = None
    ) -> CreatedSession:
        """A new session of this user with these messages. Raises `QuotaExceeded`.

        With a key, a repeat returns the session that it made. Whoever calls has checked that the
        messages are a tree, with parents first.
        """
        check_uid(uid)
        new_id = _copy_id(uid, "import", idempotency_key)
        if (known := await self._known_copy(uid, new_id, idempotency_key)) is not None:
            return known
        return await self._write(uid, new_id, draft)

    async def messages_of(
        self, uid: str | None, session_id: str, *, whole_tree: bool
    ) -> AsyncIterator[Message]:
        """Every message in order of creation, or those on the way to the head, oldest first.

        Raises `SessionNotFound` before the first one.
        """
        check_session_id(session_id)
        values, entries = await self.client.calls(
            ("HMGET", self.keys.session(session_id, "m"), "uid", "head"),
            ("LRANGE", self.keys.session(session_id, "tree"), 0, -1),
        )
        check_owner(uid, values[0])
        parents = parents_of(entries)
        head = (values[1] or b"").decode() or None
        ids = list(parents) if whole_tree else path_to(parents, head)
        async for message, _ in self._bodies(session_id, ids):
            yield message

    # ---- inside ---------------------------------------------------------------------------------

    async def _path(self, session_id: str, leaf: str) -> list[str]:
        tree = self.keys.session(session_id, "tree")
        return path_to(parents_of(await self.client.call("LRANGE", tree, 0, -1)), leaf)

    async def _bodies(
        self, session_id: str, ids: Sequence[str]
    ) -> AsyncIterator[tuple[Message, bytes | None]]:
        """Messages with their kept token ids, a part at a time."""
        for start in range(0, len(ids), PART_MESSAGES):
            part = ids[start : start + PART_MESSAGES]
            bodies, kept = await self.client.calls(
                ("HMGET", self.keys.session(session_id, "msg"), *part),
                ("HMGET", self.keys.session(session_id, "ids"), *part),
            )
            if None in bodies:
                raise SessionNotFound  # it was deleted meanwhile
            for body, token_ids in zip(bodies, kept, strict=True):
                yield decode_body(body), token_ids

    async def _known_copy(
        self, uid: str, session_id: str, idempotency_key: str | None
    ) -> CreatedSession | None:
        if idempotency_key is None:
            return None
        try:
            return CreatedSession(await self.session(uid, session_id), replayed=True)
        except SessionNotFound:
            return None

    async def _write(self, uid: str, session_id: str, draft: Draft) -> CreatedSession:
        most = self.quotas.messages_per_session
        if most and len(draft.messages) > most:
            raise QuotaExceeded("messages in a session", most)
        await self._reserve(uid, session_id)
        # What a call that was broken off may have left, under a key that is used again.
        await self._forget_parts(session_id)
        try:
            num_bytes = await self._write_parts(session_id, draft)
        except QuotaExceeded:
            await self._forget_parts(session_id)
            await self._indexes.settle(self._indexes.without_session(uid, session_id))
            raise
        usages = [message.usage or {} for message in draft.messages]
        pairs: list[Argument] = ["title", draft.title, "model", draft.model]
        pairs += ["settings", orjson.dumps(dict(draft.settings)), "head", draft.head or ""]
        pairs += ["message_count", len(draft.messages), "bytes", num_bytes]
        for name in ("input_tokens", "output_tokens"):
            pairs += [name, sum(usage.get(name, 0) for usage in usages)]
        return await self._make_session(uid, session_id, pairs, num_written=len(draft.messages))

    async def _forget_parts(self, session_id: str) -> None:
        await self.client.script("forget_parts", self._session_keys(session_id, *_PART_KEYS), ())

    async def _write_parts(self, session_id: str, draft: Draft) -> int:
        """Returns the bytes of all bodies."""
        num_bytes = place = 0
        most = self.quotas.bytes_per_session
        for part in _parts(draft.messages):
            num_bytes += sum(size_of_body(body) for _, body in part)
            if most and num_bytes > most:
                raise QuotaExceeded("bytes in a session", most)
            await self._write_part(session_id, place, part, draft.token_ids)
            place += len(part)
        return num_bytes

    async def _write_part(
        self,
        session_id: str,
        place: int,
        part: Sequence[tuple[Message, bytes]],
        token_ids: Mapping[str, bytes],
    ) -> None:
        kept = [(m.id, token_ids[m.id]) for m, _ in part if m.id in token_ids]
        reply = await self.client.script(
            "write_part",
            self._session_keys(session_id, *_PART_KEYS),
            (
                PART_MS,
                place,
                len(kept),
                *(argument for pair in kept for argument in pair),
                *(a for m, body in part for a in (m.id, m.parent_id or "", body)),
            ),
        )
        if reply[0] != b"ok":
            raise SessionNotFound  # made meanwhile by a repeat of this call


def _parts(messages: Iterable[Message]) -> Iterable[list[tuple[Message, bytes]]]:
    """Messages with their bodies, as many as one script may take without holding up others."""
    part: list[tuple[Message, bytes]] = []
    num_bytes = 0
    for message in messages:
        body = encode_body(message)
        if part and (len(part) == PART_MESSAGES or num_bytes + len(body) > PART_BYTES):
            yield part
            part, num_bytes = [], 0
        part.append((message, body))
        num_bytes += len(body)
    if part:
        yield part


def _copy_id(uid: str, verb: str, idempotency_key: str | None) -> str:
    """A fresh id, or the one that this user and key always give."""
    if idempotency_key is None:
        return new_session_id()
    return derived_session_id(uid, f"{verb} {idempotency_key}")
