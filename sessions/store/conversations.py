"""The store's half for conversations: sessions, their settings, messages and event logs."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from sessions.connection.client import Argument
from sessions.indexes.indexes import local_ms
from sessions.model.codec import SESSION_FIELDS, decode_body, decode_session, decode_session_events
from sessions.model.errors import (
    MessageNotFound,
    QuotaExceeded,
    RevisionConflict,
    SessionNotFound,
    StoreUnavailable,
    UserGone,
)
from sessions.model.events import SessionEvent
from sessions.model.ids import check_session_id, derived_session_id, is_message_id, is_user_id
from sessions.model.keys import TOMBSTONE_MS
from sessions.model.records import Message, Session
from sessions.model.replies import CreatedSession, DeletedSession, MessagePage
from sessions.model.tree import children_of, parents_of, path_to
from sessions.store.arguments import check_idempotency_key, check_owner, check_uid, owner_argument
from sessions.store.base import SESSION_SUFFIXES
from sessions.store.session_lists import SessionLists


class Conversations(SessionLists):
    """Sessions and messages. `SessionStore` has these methods; see there."""

    async def create_session(
        self,
        uid: str,
        *,
        idempotency_key: str,
        title: str = "",
        model: str = "",
        settings: Mapping[str, Any] | None = None,
    ) -> CreatedSession:
        """Make the session that this user and key name, or return it if it was made before.

        A repeat changes nothing, whatever its title. Raises `SessionNotFound` when the session was
        made and deleted within the last hour, `QuotaExceeded`, and `UserGone`.
        """
        check_uid(uid)
        check_idempotency_key(idempotency_key)
        session_id = derived_session_id(uid, idempotency_key)
        pairs = ("title", title, "model", model, "settings", orjson.dumps(dict(settings or {})))
        return await self._make_session(uid, session_id, pairs)

    async def _make_session(
        self,
        uid: str,
        session_id: str,
        pairs: Sequence[Argument],
        copy: tuple[str, int] | None = None,
    ) -> CreatedSession:
        """The session with these fields; `copy`: by whom how many messages were written before."""
        await self._reserve(uid, session_id)
        event = orjson.dumps({"type": "session.created"})
        keys = ("m", "log", "x", *SESSION_SUFFIXES[1:], "copy")
        arguments = (
            *self._publish_to(session_id),
            uid,
            secrets.token_urlsafe(6),
            event,
            *self._log_limits,
            self._idle_ms,
            *(copy or ("", "")),
            *pairs,
        )
        replies = await self.client.calls_in_order(
            *self._indexes.session(uid, session_id, local_ms()),
            self.client.script_run(
                "create_session", self._session_keys(session_id, *keys), arguments
            ),
            self._read_session(session_id),
        )
        word = replies[-2][0]
        session = decode_session(session_id, replies[-1])
        if word == b"incomplete":
            await self._indexes.settle(self._indexes.without_session(uid, session_id))
            raise StoreUnavailable("the session's messages are not all there any more")
        if word not in (b"ok", b"replayed") or session is None:
            await self._indexes.settle(self._indexes.without_session(uid, session_id))
            raise SessionNotFound
        # Once more, because a reader may have dropped the entry while its session was not there.
        await self._indexes.settle(self._indexes.session(uid, session_id, session.updated_at))
        if word == b"ok":
            await self._check_user(uid, session_id)
        return CreatedSession(session, replayed=word == b"replayed")

    async def _check_user(self, uid: str, session_id: str) -> None:
        """Take a new session back if its user was disabled or removed. Raises `UserGone`.

        A removal disables the user first and then deletes their sessions. So a session made too
        late for that deletion was made after the change of the record, and is found here; a check
        before the session is made would miss what happens in between.
        """
        if not is_user_id(uid):  # those that are built in have no record
            return
        row = await self.client.call("HMGET", self.keys.user_record(uid), "created_at", "disabled")
        if row[0] is None or row[1] == b"1":
            with contextlib.suppress(SessionNotFound):
                await self.delete_session(uid, session_id)
            raise UserGone

    async def _reserve(self, uid: str, session_id: str) -> None:
        """Enter a session into its user's index. Raises `QuotaExceeded`."""
        most = self.quotas.sessions_per_user
        for is_last_try in (False, True):
            reply = await self.client.script(
                "reserve_session",
                [self.keys.user_sessions(uid)],
                (session_id, local_ms(), most),
            )
            if reply[0] == b"ok":
                return
            if not is_last_try:
                await self.drop_stale_sessions(uid)  # they count as long as nobody looks
        raise QuotaExceeded("sessions", most)

    async def session(self, uid: str | None, session_id: str) -> Session:
        """The session as it is now; `uid` None skips the owner check. Raises `SessionNotFound`."""
        check_session_id(session_id)
        reply = await self.client.script(
            "read_session",
            self._session_keys(session_id, "m"),
            (owner_argument(uid), *SESSION_FIELDS),
        )
        session = decode_session(session_id, reply[1]) if reply[0] == b"ok" else None
        if session is None:
            raise SessionNotFound
        return session

    async def update_session(
        self,
        uid: str | None,
        session_id: str,
        *,
        title: str | None = None,
        model: str | None = None,
        settings: Mapping[str, Any] | None = None,
        pinned: bool | None = None,
        head: str | None = None,
        if_revision: int | None = None,
        by: str = "user",
    ) -> Session:
        """Change what is given (None leaves it), log and publish `session.updated`.

        `settings` replaces the whole object. The entry holds `by`, `revision` and `changed`.
        Raises `SessionNotFound`, `RevisionConflict`, and `MessageNotFound` for an unknown `head`.
        """
        check_session_id(session_id)
        if head is not None and not is_message_id(head):
            raise MessageNotFound
        changed = _given(title=title, model=model, settings=settings, pinned=pinned, head=head)
        reply, values = await self.client.calls(
            self.client.script_run(
                "update_session",
                self._session_keys(
                    session_id, "m", "log", "msg", "tree", "ids", "runs", "q", "share"
                ),
                (
                    *self._publish_to(session_id),
                    owner_argument(uid),
                    "" if if_revision is None else if_revision,
                    secrets.token_urlsafe(6),
                    orjson.dumps({"by": by, "changed": changed}),
                    head or "",
                    *self._log_limits,
                    self._idle_ms,
                    *_pairs(changed),
                ),
            ),
            self._read_session(session_id),
        )
        if reply[0] == b"conflict":
            raise RevisionConflict(reply[1])
        if reply[0] == b"message_not_found":
            raise MessageNotFound
        session = decode_session(session_id, values)
        if reply[0] != b"ok" or session is None:
            raise SessionNotFound
        await self._indexes.settle(
            self._indexes.session(session.uid, session_id, session.updated_at)
        )
        return session

    async def delete_session(
        self,
        uid: str | None,
        session_id: str,
        *,
        if_revision: int | None = None,
        by: str = "user",
    ) -> DeletedSession:
        """Remove the session, its messages and all its runs, and publish `session.deleted`.

        A late append or finish finds nothing and re-creates nothing (`RunGone`). What stays is a
        tombstone for an hour and the idempotency keys, which hold no text. Works when Redis'
        memory is full. Raises `SessionNotFound`, `RevisionConflict`.
        """
        check_session_id(session_id)
        event = {"type": "session.deleted", "session_id": session_id, "by": by}
        reply = await self.client.script(
            "delete_session",
            self._session_keys(
                session_id, "m", "msg", "log", "q", "x", "runs", "tree", "ids", "share"
            ),
            (
                *self._publish_to(session_id),
                owner_argument(uid),
                secrets.token_urlsafe(6),
                orjson.dumps(event),
                self.keys.session_base(session_id),
                TOMBSTONE_MS,
                "" if if_revision is None else if_revision,
            ),
        )
        if reply[0] == b"conflict":
            raise RevisionConflict(reply[1])
        if reply[0] != b"ok":
            raise SessionNotFound
        response_ids = tuple(rid.decode() for rid in reply[3])
        await self._indexes.settle(
            [
                *self._indexes.without_session(reply[1].decode(), session_id),
                *(self._indexes.without_run(response_id) for response_id in response_ids),
            ]
        )
        return DeletedSession(reply[2], response_ids)

    async def renew_epoch(self, session_id: str, epoch: str) -> None:
        """Number the session's events anew: Redis has lost events of this epoch.

        Positions under the old epoch count no more. No-op under another epoch: another worker has
        renewed it already. Raises `SessionNotFound`.
        """
        await self._renew_epoch(session_id, epoch)

    async def verify_epoch(self, session_id: str) -> None:
        """Renew the epoch if it began on another Redis: one that was started or promoted since.

        Such a Redis may have lost the last writes, and new ones may hide that. Raises
        `SessionNotFound`.
        """
        await self._renew_epoch(session_id, "")

    async def _renew_epoch(self, session_id: str, epoch: str) -> None:
        check_session_id(session_id)
        reply = await self.client.script(
            "renew_epoch",
            self._session_keys(session_id, "m"),
            (*self._publish_to(session_id), epoch, secrets.token_urlsafe(6)),
        )
        if reply[0] != b"ok":
            raise SessionNotFound

    async def was_deleted(self, session_id: str) -> bool:
        """Whether somebody deleted the session within the last hour, as far as Redis knows."""
        check_session_id(session_id)
        return bool(await self.client.call("EXISTS", self.keys.session(session_id, "x")))

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
        check_session_id(session_id)
        values, entries = await self.client.calls(
            ("HMGET", self.keys.session(session_id, "m"), "uid", "head"),
            ("LRANGE", self.keys.session(session_id, "tree"), 0, -1),
        )
        check_owner(uid, values[0])
        await self._renew(session_id)
        parents = parents_of(entries)
        ids = path_to(parents, leaf or (values[1] or b"").decode() or None)
        if before is not None:
            if before not in ids:
                raise MessageNotFound
            ids = ids[: ids.index(before)]
        shown = ids[-limit:] if limit > 0 else []
        if not shown:
            return MessagePage((), has_more=bool(ids))
        bodies = await self.client.call("HMGET", self.keys.session(session_id, "msg"), *shown)
        children = children_of(parents)
        return MessagePage(
            tuple(decode_body(body, children) for body in bodies if body is not None),
            has_more=len(ids) > len(shown),
        )

    async def _renew(self, session_id: str) -> None:
        """Reading is a use, too; it works also when nothing can be written."""
        if self._idle_ms:
            keys = self._session_keys(session_id, *SESSION_SUFFIXES)
            with contextlib.suppress(StoreUnavailable):
                await self.client.script("renew_session", keys, (self._idle_ms,))

    async def message(self, uid: str | None, session_id: str, message_id: str) -> Message:
        """One message with its whole text. Raises `SessionNotFound`, `MessageNotFound`."""
        message, _ = await self.message_version(uid, session_id, message_id)
        return message

    async def message_version(
        self, uid: str | None, session_id: str, message_id: str
    ) -> tuple[Message, str]:
        """As `message`, with a version that shows whether it was changed since."""
        check_session_id(session_id)
        if not is_message_id(message_id):
            raise MessageNotFound
        owner, body = await self.client.calls(
            ("HGET", self.keys.session(session_id, "m"), "uid"),
            ("HGET", self.keys.session(session_id, "msg"), message_id),
        )
        check_owner(uid, owner)
        if body is None:
            raise MessageNotFound
        return decode_body(body), hashlib.sha1(body, usedforsecurity=False).hexdigest()

    async def session_events(
        self, session_id: str, *, after: int, epoch: str | None = None
    ) -> list[SessionEvent] | None:
        """Every event after that offset, or None when the log no longer reaches back to it.

        Also None for a position beyond the log, under another `epoch`, or of a session that is
        gone: the caller sends a snapshot instead.
        """
        check_session_id(session_id)
        values, entries = await self.client.calls(
            ("HMGET", self.keys.session(session_id, "m"), "epoch", "offset"),
            ("XRANGE", self.keys.session(session_id, "log"), f"{after + 1}-0", "+"),
        )
        if values[0] is None or (epoch is not None and values[0].decode() != epoch):
            return None
        events = decode_session_events(entries)
        if after == int(values[1]) and not events:
            return []
        return events if events and events[0].offset == after + 1 else None


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _pairs(changed: Mapping[str, Any]) -> list[Argument]:
    """Name and value pairs for a session hash."""
    pairs: list[Argument] = []
    for name, value in changed.items():
        if isinstance(value, Mapping):
            pairs += [name, orjson.dumps(dict(value))]
        else:
            pairs += [name, int(value) if isinstance(value, bool) else value]
    return pairs
