"""The store's part for share links: a snapshot of one path, readable with the link.

A snapshot may have megabytes, so it is packed beside the loop, and unpacked message by message for
each reader. It is one of the session's own keys: it goes with the session. A share id carries its
session's, so that any worker finds it without an index, and 22 random characters that nobody
guesses.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from sessions.connection.client import Command
from sessions.indexes.indexes import local_ms
from sessions.indexes.pages import cursor_of, newest_after, parse_cursor
from sessions.model.arguments import check_uid
from sessions.model.errors import SessionNotFound, ShareNotFound
from sessions.model.ids import check_session_id
from sessions.model.keys import INDEX_GRACE_MS
from sessions.model.records import Message
from sessions.store.context import SESSION_SUFFIXES, StoreContext

PART_BYTES: Final = 64 * 1024  # unpacked at once

_LISTED: Final = ("title", "shared_at")
_SHARE_ID: Final = re.compile(r"shr_[A-Za-z0-9_-]{44}\Z")


@dataclass(frozen=True, slots=True)
class Share:
    """What a link shows: no settings, no ids but its own."""

    id: str
    title: str
    shared_at: int
    snapshot: bytes
    owner: str  # a user id; no part of what is shown

    def messages(self) -> Iterator[bytes]:
        """Each message as JSON; none is kept, since there may be many readers of megabytes."""
        unpacker = zlib.decompressobj()
        packed, rest = self.snapshot, b""
        while not unpacker.eof:
            part = unpacker.decompress(packed, PART_BYTES)
            packed = unpacker.unconsumed_tail
            if not (part or packed or unpacker.eof):
                raise zlib.error("the snapshot has no end")
            *lines, rest = (rest + part).split(b"\n")
            yield from lines


@dataclass(frozen=True, slots=True)
class ListedShare:
    """A share link as admins see it: not the link."""

    session_id: str
    uid: str
    title: str
    shared_at: int


@dataclass(frozen=True, slots=True)
class SharePage:
    """Newest first; pass `next_cursor` on for older ones, None means no more."""

    shares: tuple[ListedShare, ...]
    next_cursor: str | None


class Shares:
    """Share links. An index lists them, which may hold entries too many: `page` drops them.

    A link that it lacks, as one of an older version, enters it when somebody opens it.
    """

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._client = context.client

    async def create(
        self, uid: str, session_id: str, title: str, messages: Sequence[Message]
    ) -> Share:
        """Show these messages under the session's link, which stays if there was one.

        Raises `SessionNotFound`.
        """
        check_uid(uid)
        check_session_id(session_id)
        snapshot = await asyncio.to_thread(_pack, messages)
        shared_at = local_ms()
        await self._client.call("ZADD", self._context.keys.shares, shared_at, session_id)
        reply = await self._client.script(
            "share_session",
            self._context.session_keys(session_id, *SESSION_SUFFIXES),
            uid=uid,
            new_id=_new_share_id(session_id),
            title=title,
            shared_at=shared_at,
            snapshot=snapshot,
            idle_ms=self._context.idle_ms,
        )
        if reply[0] != b"ok":  # the entry stays: if the session is another user's, it is theirs
            raise SessionNotFound
        return Share(reply[1].decode(), title, shared_at, snapshot, uid)

    async def remove(self, uid: str, session_id: str) -> None:
        """The link shows nothing from now on. Raises `SessionNotFound`, `ShareNotFound`."""
        check_uid(uid)
        check_session_id(session_id)
        reply = await self._client.script(
            "unshare_session", self._context.session_keys(session_id, "m", "share"), uid=uid
        )
        if reply[0] == b"not_shared":
            raise ShareNotFound
        if reply[0] != b"ok":
            raise SessionNotFound
        await self._context.indexes.settle([("ZREM", self._context.keys.shares, session_id)])

    async def page(self, limit: int = 50, cursor: str | None = None) -> SharePage:
        """Everybody's links, the newest first. Raises `InvalidCursor`."""
        index = self._context.keys.shares
        places = await newest_after(self._client, [index], parse_cursor(cursor), limit + 1)
        listed = places[:limit]
        ids = [sid for _, sid in listed]
        rows = await self._client.calls(
            *(("HGET", *self._context.session_keys(sid, "m"), "uid") for sid in ids),
            *(("HMGET", *self._context.session_keys(sid, "share"), *_LISTED) for sid in ids),
        )
        owners, links = rows[: len(ids)], rows[len(ids) :]
        shares, stale = [], list[Command]()
        for (listed_at, sid), uid, (title, shared_at) in zip(listed, owners, links, strict=True):
            if uid is not None and shared_at is not None:
                text = (title or b"").decode()
                shares.append(ListedShare(sid, uid.decode(), text, int(shared_at)))
            elif listed_at < local_ms() - INDEX_GRACE_MS:
                stale.append(("ZREM", index, sid))
        if stale:
            await self._context.indexes.settle(stale)
        more = cursor_of(places[limit - 1]) if len(places) > limit else None
        return SharePage(tuple(shares), more)

    async def get(self, share_id: str) -> Share:
        """What a link shows, to anybody. Raises `ShareNotFound`."""
        if _SHARE_ID.match(share_id) is None:
            raise ShareNotFound
        session_id = "ses_" + share_id[4:26]
        session, key = self._context.session_keys(session_id, "m", "share")
        index = self._context.keys.shares
        (owner,), row, listed = await self._client.calls(
            ("HMGET", session, "uid"),
            ("HMGET", key, "id", "title", "shared_at", "snapshot"),
            ("ZSCORE", index, session_id),
        )
        if owner is None or row[0] is None:
            raise ShareNotFound
        if not secrets.compare_digest(row[0], share_id.encode()):
            raise ShareNotFound
        if listed is None:  # an older version has made it
            await self._context.indexes.settle([("ZADD", index, int(row[2]), session_id)])
        return Share(share_id, row[1].decode(), int(row[2]), row[3], owner.decode())


def _new_share_id(session_id: str) -> str:
    return f"shr_{session_id.removeprefix('ses_')}{secrets.token_urlsafe(16)}"


def _pack(messages: Sequence[Message]) -> bytes:
    """A line of JSON for each message, which has no other line breaks.

    What the model was instructed with is nobody else's, be it a setting or a message.
    """
    shown = [_shown(m) for m in messages if m.role not in ("system", "developer")]
    return zlib.compress(b"".join(orjson.dumps(each) + b"\n" for each in shown), 1)


def _shown(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "role": message.role,
        "content": message.content,
        "status": message.status,
        "created_at": message.created_at,
    }
    if message.model is not None:
        shown["model"] = message.model
    if message.tool_calls is not None:
        shown["tool_calls"] = message.tool_calls
    if message.tool_outputs is not None:
        shown["tool_outputs"] = message.tool_outputs
    return shown
