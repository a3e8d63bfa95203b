"""The store's part for messages: one of them, a page of a path, a whole session in parts.

Most are written by responses and copies; those that a client brings are added here.

A part is bounded by its messages and by their bytes: neither Redis nor the loop is held for longer
than it takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from typing import Final

import orjson

from sessions.model.arguments import check_owner
from sessions.model.codec import decode_body, decode_token_ids, encode_body
from sessions.model.errors import (
    HeadMoved,
    MessageChanged,
    MessageNotFound,
    ResponseInProgress,
    SessionLocked,
    SessionNotFound,
    StoreUnavailable,
)
from sessions.model.ids import check_session_id, is_message_id
from sessions.model.records import Message
from sessions.model.replies import MessagePage
from sessions.model.session_events import MessageUpdatedEvent, encode_session_event
from sessions.model.tree import children_of, newest_below, parents_of, path_to
from sessions.store.context import SESSION_SUFFIXES, StoreContext

PART_MESSAGES: Final = 200
PART_BYTES: Final = 256 * 1024  # before they are compressed; about 5 ms of work


class Messages:
    """Messages, in the order of a path through their tree."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._client = context.client
        self._keys = context.keys

    async def path(
        self,
        uid: str | None,
        session_id: str,
        *,
        leaf: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> MessagePage:
        """The newest `limit` messages on the way from the root to `leaf` (default: the head).

        With `before`, those older than that message. Raises `SessionNotFound`, and
        `MessageNotFound` when `leaf` is unknown or `before` is not on the way to it.
        """
        parents, head = await self._tree(uid, session_id)
        ids = path_to(parents, leaf or head)
        if before is not None:
            if before not in ids:
                raise MessageNotFound
            ids = ids[: ids.index(before)]
        shown = ids[-limit:] if limit > 0 else []
        if not shown:
            await self._renew(session_id)
            return MessagePage((), has_more=bool(ids))
        bodies, _ = await asyncio.gather(
            self._client.call("HMGET", self._keys.session(session_id, "msg"), *shown),
            self._renew(session_id),
        )
        children = children_of(parents)
        return MessagePage(
            tuple(decode_body(body, children) for body in bodies if body is not None),
            has_more=len(ids) > len(shown),
        )

    async def get(self, uid: str | None, session_id: str, message_id: str) -> Message:
        """One message with its whole text. Raises `SessionNotFound`, `MessageNotFound`."""
        message, _ = await self.with_version(uid, session_id, message_id)
        return message

    async def with_version(
        self, uid: str | None, session_id: str, message_id: str
    ) -> tuple[Message, str]:
        """As `get`, with a version that shows whether it was changed since."""
        check_session_id(session_id)
        if not is_message_id(message_id):
            raise MessageNotFound
        owner, body = await self._client.calls(
            ("HGET", self._keys.session(session_id, "m"), "uid"),
            ("HGET", self._keys.session(session_id, "msg"), message_id),
        )
        check_owner(uid, owner)
        if body is None:
            raise MessageNotFound
        return decode_body(body), hashlib.sha1(body, usedforsecurity=False).hexdigest()

    async def branch(self, uid: str, session_id: str) -> list[str]:
        """The ids on the way to the head, oldest first. Raises `SessionNotFound`."""
        parents, head = await self._tree(uid, session_id)
        await self._renew(session_id)
        return path_to(parents, head)

    async def add(
        self, uid: str, session_id: str, messages: Sequence[Message], *, head: str | None
    ) -> None:
        """Add messages after the head, all of them or none: a chain that begins below `head`.

        Viewers see them as any others. Raises `HeadMoved` if that is another message by now,
        `SessionNotFound`, `SessionLocked`, `ResponseInProgress`, `QuotaExceeded`.
        """
        check_session_id(session_id)
        quotas = self._context.quotas
        reply = await self._client.script(
            "add_messages",
            self._context.session_keys(
                session_id, "m", "log", "msg", "tree", "ids", "runs", "q", "share"
            ),
            channel=self._keys.session_channel(session_id),
            uid=uid,
            call_id=secrets.token_urlsafe(6),
            head=head,
            max_messages=quotas.messages_per_session,
            max_bytes=quotas.bytes_per_session,
            **self._context.log_limits,
            idle_ms=self._context.idle_ms,
            messages=[
                argument
                for message in messages
                for argument in (
                    message.id,
                    message.parent_id or "",
                    encode_body(message),
                    orjson.dumps(message.event_wire()),
                )
            ],
        )
        match reply[0]:
            case b"ok":
                index = self._context.indexes.session(
                    uid, session_id, reply[1], hidden=reply[2] == b"1"
                )
                await self._context.indexes.settle(index)
            case b"locked":
                raise SessionLocked(reply[1].decode())
            case b"busy":
                raise ResponseInProgress(reply[1].decode())
            case b"moved":
                raise HeadMoved
            case b"quota":
                raise quotas.session_error(reply[1].decode())
            case _:
                raise SessionNotFound

    async def replace(self, uid: str, session_id: str, message: Message, version: str) -> None:
        """Replace a message; it stays where it is. `version` is that of `with_version`.

        What was kept of its old text goes: tokens, and the log of the response that has written it.
        Raises `SessionNotFound`, `MessageNotFound`, `MessageChanged`, `ResponseInProgress`.
        """
        check_session_id(session_id)
        run_keys: list[str] = []
        if message.response_id is not None:
            run_keys = self._context.run_keys(session_id, message.response_id)
        reply = await self._client.script(
            "replace_message",
            [*self._context.session_keys(session_id, "m", "log", "msg", "ids"), *run_keys],
            channel=self._keys.session_channel(session_id),
            uid=uid,
            call_id=secrets.token_urlsafe(6),
            message_id=message.id,
            version=version,
            body=encode_body(message),
            event=encode_session_event(MessageUpdatedEvent(message=message.event_wire())),
            **self._context.log_limits,
        )
        if reply[0] == b"changed":
            raise MessageChanged
        if reply[0] == b"busy":
            raise ResponseInProgress(message.response_id or "")
        if reply[0] == b"message_not_found":
            raise MessageNotFound
        if reply[0] != b"ok":
            raise SessionNotFound

    async def each(
        self, uid: str | None, session_id: str, *, whole_tree: bool
    ) -> AsyncIterator[Message]:
        """Every message in order of creation, or those on the way to the head, oldest first.

        Raises `SessionNotFound` before the first one.
        """
        parents, head = await self._tree(uid, session_id)
        ids = list(parents) if whole_tree else path_to(parents, head)
        async for message, _ in self.bodies(session_id, ids):
            yield message

    async def token_ids(self, session_id: str, message_ids: Iterable[str]) -> dict[str, list[int]]:
        """The ids kept by `Runs.finish` for those of the messages that have any."""
        check_session_id(session_id)
        ids = list(message_ids)
        if not ids:
            return {}
        rows = await self._client.call("HMGET", self._keys.session(session_id, "ids"), *ids)
        return {
            message_id: decode_token_ids(row)
            for message_id, row in zip(ids, rows, strict=True)
            if row is not None
        }

    async def bodies(
        self, session_id: str, ids: Sequence[str]
    ) -> AsyncGenerator[tuple[Message, bytes | None]]:
        """Messages with their kept token ids, a part at a time."""
        keys = self._context.session_keys(session_id, "msg", "ids")
        place = 0
        while place < len(ids):
            part = ids[place : place + PART_MESSAGES]
            _, bodies, kept = await self._client.script(
                "read_bodies", keys, max_bytes=PART_BYTES, message_ids=part
            )
            if b"" in bodies:
                raise SessionNotFound  # it was deleted meanwhile
            for body, token_ids in zip(bodies, kept, strict=True):
                yield decode_body(body), token_ids or None
            place += len(bodies)

    async def ids_to(self, session_id: str, leaf: str) -> list[str]:
        """The ids from the root to that message."""
        tree = self._keys.session(session_id, "tree")
        return path_to(parents_of(await self._client.call("LRANGE", tree, 0, -1)), leaf)

    async def newest_below(self, uid: str | None, session_id: str, message_id: str) -> str:
        """The id of the newest message that came of that one, which may be itself.

        Raises `SessionNotFound`, `MessageNotFound`.
        """
        parents, _ = await self._tree(uid, session_id)
        return newest_below(parents, message_id)

    async def _tree(
        self, uid: str | None, session_id: str
    ) -> tuple[dict[str, str | None], str | None]:
        """Each message's parent, in order of creation, and the head. Raises `SessionNotFound`."""
        check_session_id(session_id)
        values, entries = await self._client.calls(
            ("HMGET", self._keys.session(session_id, "m"), "uid", "head"),
            ("LRANGE", self._keys.session(session_id, "tree"), 0, -1),
        )
        check_owner(uid, values[0])
        return parents_of(entries), (values[1] or b"").decode() or None

    async def _renew(self, session_id: str) -> None:
        """Reading is a use, too; it works also when nothing can be written."""
        if self._context.idle_ms:
            keys = self._context.session_keys(session_id, *SESSION_SUFFIXES)
            with contextlib.suppress(StoreUnavailable):
                await self._client.script("renew_session", keys, idle_ms=self._context.idle_ms)
