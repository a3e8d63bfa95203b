"""The store's part for sessions: made, read, changed, deleted, and the logs of their events."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from sessions.connection.client import Argument
from sessions.indexes.indexes import local_ms
from sessions.model.arguments import check_idempotency_key, check_uid, owner_argument
from sessions.model.codec import SESSION_FIELDS, decode_session, decode_session_events
from sessions.model.errors import (
    MessageNotFound,
    QuotaExceeded,
    RevisionConflict,
    SessionNotFound,
    StoreUnavailable,
    UserGone,
)
from sessions.model.events import SessionEvent
from sessions.model.ids import check_session_id, derived_session_id, is_message_id
from sessions.model.keys import TOMBSTONE_MS
from sessions.model.quotas import USER_SESSIONS
from sessions.model.records import Session
from sessions.model.replies import CreatedSession, DeletedSession
from sessions.model.session_events import (
    SessionCreatedEvent,
    SessionDeletedEvent,
    SessionUpdatedEvent,
    encode_session_event,
)
from sessions.store.context import PUBLISH, SESSION_SUFFIXES, StoreContext
from sessions.store.quotas.group_sessions import GroupSessions
from sessions.store.session_lists import SessionLists
from sessions.store.turns import is_gone, user_commands


class Sessions:
    """Sessions, their settings and the logs of their events."""

    def __init__(
        self, context: StoreContext, lists: SessionLists, group_sessions: GroupSessions
    ) -> None:
        self._context = context
        self._client = context.client
        self._indexes = context.indexes
        self._keys = context.keys
        self._lists = lists
        self._group_sessions = group_sessions

    async def create(
        self,
        uid: str,
        *,
        idempotency_key: str,
        title: str = "",
        model: str = "",
        settings: Mapping[str, Any] | None = None,
        life_seconds: float | None = None,
        hidden: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> CreatedSession:
        """Make the session that this user and key name, or return it if it was made before.

        `life_seconds`: it goes after so long without use, unlike the others; 0 keeps it.
        `hidden`: it is in no list of its user's, and counts in the quota all the same.

        A repeat changes nothing, not even the title. Raises `SessionNotFound` when the session was
        made and deleted within the last hour, `QuotaExceeded`, and `UserGone`.
        """
        check_uid(uid)
        check_idempotency_key(idempotency_key)
        session_id = derived_session_id(uid, idempotency_key)
        pairs: list[Argument] = ["title", title, "model", model]
        pairs += ["settings", orjson.dumps(dict(settings or {}))]
        pairs += door_pairs(life_seconds, metadata, hidden=hidden)
        return await self.make(uid, session_id, pairs, hidden=hidden)

    async def make(
        self,
        uid: str,
        session_id: str,
        pairs: Sequence[Argument],
        copy: tuple[str, int] | None = None,
        *,
        hidden: bool = False,
    ) -> CreatedSession:
        """The session with these fields; `copy`: by whom how many messages were written before."""
        await self.reserve(uid, session_id, hidden=hidden)
        writer, num_messages = copy or (None, None)
        replies = await self._client.calls_in_order(
            *self._indexes.session(uid, session_id, local_ms(), hidden=hidden),
            self._client.script_run(
                "create_session",
                self._context.session_keys(
                    session_id, "m", "log", "x", *SESSION_SUFFIXES[1:], "copy"
                ),
                channel=self._keys.session_channel(session_id),
                uid=uid,
                epoch=secrets.token_urlsafe(6),
                event=encode_session_event(SessionCreatedEvent()),
                **self._context.log_limits,
                idle_ms=self._context.idle_ms,
                writer=writer,
                num_messages=num_messages,
                fields=pairs,
            ),
            self._context.read_session(session_id),
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
        await self._indexes.settle(
            self._indexes.session(uid, session_id, session.updated_at, hidden=session.hidden)
        )
        if word == b"ok":
            await self._check_user(uid, session_id)
        return CreatedSession(session, replayed=word == b"replayed")

    async def _check_user(self, uid: str, session_id: str) -> None:
        """Take a new session back if its user was disabled or removed. Raises `UserGone`.

        A removal disables the user first and then deletes their sessions. So a session made too
        late for that deletion was made after the change of the record, and is found here; a check
        before the session is made would miss what happens in between.
        """
        if await self.is_user_gone(uid):
            with contextlib.suppress(SessionNotFound):
                await self.delete(uid, session_id)
            raise UserGone

    async def is_user_gone(self, uid: str) -> bool:
        """Whether that user was disabled or removed."""
        return any(map(is_gone, await self._client.calls(*user_commands(self._context, uid))))

    async def reserve(self, uid: str, session_id: str, *, hidden: bool = False) -> None:
        """Enter a session into its user's index, and their group's. Raises `QuotaExceeded`."""
        most = await self._group_sessions.max_of_user(uid, self._context.quotas.sessions_per_user)
        await self._reserve_own(uid, session_id, most, hidden=hidden)
        try:
            await self._group_sessions.reserve(uid, session_id)
        except QuotaExceeded:
            if await self._client.call("EXISTS", self._keys.session(session_id, "m")):
                return  # it is no one more: a repeat, of one that an older version has made
            await self._indexes.settle(self._indexes.without_session(uid, session_id))
            raise

    async def _reserve_own(self, uid: str, session_id: str, most: int, *, hidden: bool) -> None:
        for is_last_try in (False, True):
            reply = await self._client.script(
                "reserve_session",
                [self._keys.user_sessions(uid), self._keys.user_hidden_sessions(uid)],
                session_id=session_id,
                updated_at=local_ms(),
                max_sessions=most,
                hidden=1 if hidden else None,
            )
            if reply[0] == b"ok":
                return
            if not is_last_try:
                await self._lists.drop_stale(uid)  # they count as long as nobody looks
        raise QuotaExceeded("sessions", most, quota=USER_SESSIONS)

    async def get(self, uid: str | None, session_id: str) -> Session:
        """The session as it is now; `uid` None skips the owner check. Raises `SessionNotFound`."""
        check_session_id(session_id)
        reply = await self._client.script(
            "read_session",
            self._context.session_keys(session_id, "m"),
            uid=owner_argument(uid),
            fields=SESSION_FIELDS,
        )
        session = decode_session(session_id, reply[1]) if reply[0] == b"ok" else None
        if session is None:
            raise SessionNotFound
        return session

    async def update(
        self,
        uid: str | None,
        session_id: str,
        *,
        title: str | None = None,
        model: str | None = None,
        settings: Mapping[str, Any] | None = None,
        pinned: bool | None = None,
        head: str | None = None,
        metadata: Mapping[str, str] | None = None,
        if_revision: int | None = None,
        by: str = "user",
    ) -> Session:
        """Change what is given (None leaves it), log and publish `session.updated`.

        `settings` and `metadata` replace the whole object. The entry holds `by`, `revision` and
        `changed`. Raises `SessionNotFound`, `RevisionConflict`, and `MessageNotFound` for an
        unknown `head`.
        """
        check_session_id(session_id)
        if head is not None and not is_message_id(head):
            raise MessageNotFound
        changed = _given(title=title, model=model, settings=settings, pinned=pinned, head=head)
        changed |= _given(metadata=metadata)
        reply, values = await self._client.calls(
            self._client.script_run(
                "update_session",
                self._context.session_keys(
                    session_id, "m", "log", "msg", "tree", "ids", "runs", "q", "share"
                ),
                channel=self._keys.session_channel(session_id),
                uid=owner_argument(uid),
                if_revision=if_revision,
                call_id=secrets.token_urlsafe(6),
                event=encode_session_event(SessionUpdatedEvent(by=by, changed=changed)),
                head=head,
                **self._context.log_limits,
                idle_ms=self._context.idle_ms,
                fields=_pairs(changed),
            ),
            self._context.read_session(session_id),
        )
        if reply[0] == b"conflict":
            raise RevisionConflict(reply[1])
        if reply[0] == b"message_not_found":
            raise MessageNotFound
        session = decode_session(session_id, values)
        if reply[0] != b"ok" or session is None:
            raise SessionNotFound
        await self._indexes.settle(
            self._indexes.session(
                session.uid, session_id, session.updated_at, hidden=session.hidden
            )
        )
        return session

    async def delete(
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
        event = SessionDeletedEvent(session_id=session_id, by=by)
        reply = await self._client.script(
            "delete_session",
            self._context.session_keys(
                session_id, "m", "x", "runs", "msg", "log", "q", "tree", "ids", "share", "v"
            ),
            channel=self._keys.session_channel(session_id),
            uid=owner_argument(uid),
            call_id=secrets.token_urlsafe(6),
            event=encode_session_event(event),
            base=self._keys.session_base(session_id),
            tombstone_ms=TOMBSTONE_MS,
            if_revision=if_revision,
        )
        if reply[0] == b"conflict":
            raise RevisionConflict(reply[1])
        if reply[0] != b"ok":
            raise SessionNotFound
        response_ids = tuple(rid.decode() for rid in reply[3])
        await self._group_sessions.leave(reply[1].decode(), session_id)
        await self._indexes.settle(
            [
                *self._indexes.without_session(reply[1].decode(), session_id),
                *(self._indexes.without_run(response_id) for response_id in response_ids),
            ]
        )
        return DeletedSession(reply[2], response_ids)

    async def renew_epoch(self, session_id: str, epoch: str) -> None:
        """Number the session's events from a new start: Redis has lost events of this epoch.

        Positions under the old epoch count no more. No-op under another epoch: another worker has
        renewed it already. Raises `SessionNotFound`.
        """
        await self._renew_epoch(session_id, epoch)

    async def verify_epoch(self, session_id: str) -> None:
        """Renew the epoch if it began on another Redis: one that was started or promoted since.

        Such a Redis may have lost the last writes, and new ones may hide that. Raises
        `SessionNotFound`.
        """
        await self._renew_epoch(session_id, None)

    async def _renew_epoch(self, session_id: str, epoch: str | None) -> None:
        """`epoch` None: whichever it has, if that began on another Redis."""
        check_session_id(session_id)
        reply = await self._client.script(
            "renew_epoch",
            self._context.session_keys(session_id, "m"),
            channel=self._keys.session_channel(session_id),
            old_epoch=epoch,
            new_epoch=secrets.token_urlsafe(6),
        )
        if reply[0] != b"ok":
            raise SessionNotFound

    async def was_deleted(self, session_id: str) -> bool:
        """Whether somebody deleted the session within the last hour, as far as Redis knows."""
        check_session_id(session_id)
        return bool(await self._client.call("EXISTS", self._keys.session(session_id, "x")))

    async def events(
        self, session_id: str, *, after: int, epoch: str | None = None
    ) -> list[SessionEvent] | None:
        """Every event after that offset, or None when the log no longer reaches back to it.

        Also None for a position beyond the log, under another `epoch`, or of a session that is
        gone: the caller sends a snapshot instead.
        """
        check_session_id(session_id)
        values, entries = await self._client.calls(
            ("HMGET", self._keys.session(session_id, "m"), "epoch", "offset"),
            ("XRANGE", self._keys.session(session_id, "log"), f"{after + 1}-0", "+"),
        )
        if values[0] is None or (epoch is not None and values[0].decode() != epoch):
            return None
        events = decode_session_events(entries)
        if after == int(values[1]) and not events:
            return []
        return events if events and events[0].offset == after + 1 else None

    async def publish(self, session_id: str, frame: Mapping[str, Any]) -> None:
        """Send something to all that follow the session. It is not stored."""
        check_session_id(session_id)
        channel = self._keys.session_channel(session_id)
        await self._client.call(PUBLISH, channel, orjson.dumps(dict(frame)))


def door_pairs(
    life_seconds: float | None, metadata: Mapping[str, str] | None, *, hidden: bool
) -> list[Argument]:
    """Those fields of a session hash that only some doors set."""
    pairs: list[Argument] = []
    if life_seconds is not None:
        pairs += ["life_ms", int(life_seconds * 1000)]
    if hidden:
        pairs += ["hidden", 1]
    if metadata:
        pairs += ["metadata", orjson.dumps(dict(metadata))]
    return pairs


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
