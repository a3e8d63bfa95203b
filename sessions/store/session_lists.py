"""The store's part for lists: which sessions a user has, by page, by title, by pin.

The index of a user's sessions may hold entries whose session is gone. Readers drop them, once they
are old enough that no session can still be on its way to them.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sessions.connection.link import Command
from sessions.indexes.indexes import local_ms
from sessions.indexes.pages import Place, cursor_of, newest_after, parse_cursor
from sessions.model.arguments import check_uid
from sessions.model.codec import decode_session
from sessions.model.errors import InvalidCursor
from sessions.model.keys import INDEX_GRACE_MS
from sessions.model.records import Session
from sessions.model.replies import SessionPage
from sessions.store.context import StoreContext

MAX_SCANNED: Final = 2000  # sessions that one page of a search looks at
SCAN_CHUNK: Final = 200
MAX_COUNTED: Final = 2000  # sessions whose sizes are added up
MARK_CHARACTERS: Final = 12  # of a cursor


@dataclass(frozen=True, slots=True)
class Stored:
    """What a user stores; messages and bytes of so many of the sessions, the newest."""

    num_sessions: int
    num_counted: int
    num_messages: int
    num_bytes: int


class SessionLists:
    """A user's sessions."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._client = context.client
        self._indexes = context.indexes

    async def page(
        self,
        uid: str,
        *,
        limit: int = 50,
        cursor: str | None = None,
        title: str | None = None,
        pinned: bool | None = None,
        updated_after: int | None = None,
        hidden: bool = False,
    ) -> SessionPage:
        """A user's sessions, newest updated first. Raises `InvalidCursor`.

        `hidden`: those that no other list has, instead of the others.

        `title` is looked for in titles, upper or lower case alike. A page of a search may hold
        fewer than `limit` sessions, even none, and still have a next one: each looks at 2,000.
        """
        check_uid(uid)
        position = parse_user_cursor(uid, cursor)
        is_search = title is not None or pinned is not None
        is_wanted = _filter(title, pinned, updated_after)
        found: list[tuple[Place, Session]] = []
        num_scanned = 0
        while len(found) <= limit and num_scanned < MAX_SCANNED:
            count = SCAN_CHUNK if is_search else limit + 1 - len(found)
            index = await self._indexes.sessions_after(uid, position, count, hidden=hidden)
            if updated_after is not None:
                index = [place for place in index if place[0] > updated_after]
            if not index:
                position = None
                break
            position = index[-1]
            num_scanned += len(index)
            sessions = await self._sessions_at(uid, index, hidden=hidden)
            found += [(place, session) for place, session in sessions if is_wanted(session)]
        if len(found) > limit:
            position = found[limit - 1][0]
        next_cursor = None if position is None else user_cursor(uid, position)
        return SessionPage(tuple(session for _, session in found[:limit]), next_cursor)

    async def storage(self, uid: str) -> Stored:
        """What a user stores; messages and bytes are added up over the newest sessions alone."""
        check_uid(uid)
        names = self._context.keys
        indexes = [names.user_sessions(uid), names.user_hidden_sessions(uid)]
        places = await newest_after(self._client, indexes, None, MAX_COUNTED)
        keys = [names.session(session_id, "m") for _, session_id in places]
        rows, counts = await asyncio.gather(
            self._client.read_each(keys, "HMGET", "message_count", "bytes"),
            self._client.read_each(indexes, "ZCARD"),
        )
        return Stored(
            num_sessions=sum(counts),
            num_counted=len(places),
            num_messages=sum(int(messages or 0) for messages, _ in rows),
            num_bytes=sum(int(size or 0) for _, size in rows),
        )

    async def drop_stale(self, uid: str) -> None:
        """Look at all of a user's index entries, and drop those whose session is gone."""
        for hidden in (False, True):
            position: Place | None = None
            while index := await self._indexes.sessions_after(
                uid, position, SCAN_CHUNK, hidden=hidden
            ):
                position = index[-1]
                await self._sessions_at(uid, index, hidden=hidden)

    async def _sessions_at(
        self, uid: str, index: Sequence[Place], *, hidden: bool
    ) -> list[tuple[Place, Session]]:
        """The sessions of these index entries; entries whose session is gone are dropped."""
        rows = await self._client.calls(*(self._context.read_session(sid) for _, sid in index))
        sessions = []
        stale: list[Command] = []
        for place, row in zip(index, rows, strict=True):
            updated_at, session_id = place
            session = decode_session(session_id, row)
            if session is not None and session.uid == uid:
                if session.hidden == hidden:  # else an older version has entered it
                    sessions.append((place, session))
            elif updated_at < local_ms() - INDEX_GRACE_MS:
                stale += self._indexes.without_session(uid, session_id)
        if stale:
            await self._indexes.settle(stale)
        return sessions


def user_cursor(uid: str, place: Place) -> str:
    """A place in a user's list, of no use to anybody else."""
    text = cursor_of(place)
    return base64.urlsafe_b64encode(f"{_mark(uid, text)}{text}".encode()).decode().rstrip("=")


def parse_user_cursor(uid: str, cursor: str | None) -> Place | None:
    """The place of a cursor that this user was given. Raises `InvalidCursor`."""
    if cursor is None:
        return None
    try:
        padded = cursor.encode() + b"=" * (-len(cursor) % 4)
        text = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except ValueError:
        raise InvalidCursor("malformed cursor") from None
    place = parse_cursor(text[MARK_CHARACTERS:])
    if place is None or text[:MARK_CHARACTERS] != _mark(uid, text[MARK_CHARACTERS:]):
        raise InvalidCursor("a cursor of somebody else")
    return place


def _mark(uid: str, text: str) -> str:
    """Binds a cursor to its user. A forged one only gives another place in the user's own list."""
    digest = hashlib.blake2s(f"{uid}\0{text}".encode(), digest_size=MARK_CHARACTERS // 2)
    return digest.hexdigest()


def _filter(
    title: str | None, pinned: bool | None, updated_after: int | None
) -> Callable[[Session], bool]:
    sought = "" if title is None else title.casefold()

    def is_wanted(session: Session) -> bool:
        return (
            sought in session.title.casefold()
            and pinned in (None, session.pinned)
            and (updated_after is None or session.updated_at > updated_after)
        )

    return is_wanted
