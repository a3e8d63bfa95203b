"""`SessionStore`: conversations, runs and their logs in Redis, which outlive every connection.

Each method is one promise. Whatever changes more than one key is a Lua script, so it happens whole
or not at all, and may be repeated with the same arguments: a lost reply never doubles anything.
All ids are checked by shape before Redis sees them,
and `uid` decides whose they are: a foreign id is answered exactly like an unknown one.
"""

from __future__ import annotations

import logging
import random
import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, NoReturn, Self

import orjson

from sessions.checks import check_redis
from sessions.client import Argument, Command, RedisClient
from sessions.errors import (
    CancelPending,
    IdempotencyKeyReused,
    InvalidCursor,
    MessageNotFound,
    QueueFull,
    ResponseInProgress,
    ResponseNotFound,
    RevisionConflict,
    RunEnded,
    RunGone,
    RunLive,
    RunLost,
    SequenceGap,
    SessionLocked,
    SessionNotFound,
    StoreUnavailable,
)
from sessions.keys import (
    INDEX_GRACE_MS,
    RATE_MS,
    SESSION_LOG_ENTRIES,
    SESSION_LOG_MS,
    SHARDS,
    TOMBSTONE_MS,
    Keys,
    shard_of,
)
from sessions.records import (
    LIVE_STATUSES,
    UNSET,
    Allowed,
    AppendReply,
    BegunResponse,
    CancelRequested,
    CreatedSession,
    DeletedSession,
    Event,
    Finished,
    Limited,
    LiveResponses,
    Message,
    MessagePage,
    Reaped,
    RunRecord,
    Session,
    SessionEvent,
    SessionPage,
    Unset,
    decode_event,
    derived_session_id,
    encode_event,
    is_idempotency_key,
    is_message_id,
    is_response_id,
    is_session_id,
    session_of,
)
from sessions.stored import (
    MANAGED_RUN_FIELDS,
    SESSION_FIELDS,
    decode_body,
    decode_entries,
    decode_run,
    decode_session,
    decode_session_events,
    decode_token_ids,
    encode_body,
    encode_token_ids,
)

logger = logging.getLogger("parley.sessions")

PUBLISH: Final = "PUBLISH"  # SPUBLISH is for clusters of 7.0 and later
MAX_MOVES: Final = 8  # each means that another response began in between
_LOG_LIMITS: Final = (SESSION_LOG_ENTRIES, SESSION_LOG_MS)
_UID = re.compile(r"[^\s{}]{1,128}\Z")
_CURSOR = re.compile(r"(\d{1,15}):(ses_[A-Za-z0-9_-]{22})\Z")


class SessionStore:
    """The one store. Any method may raise `StoreUnavailable`; a cancelled one harms no other."""

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        prefix: str = "parley:",
        lease_seconds: float = 10.0,
        keep_seconds: float = 600.0,
        idempotency_seconds: float = 86400.0,
    ) -> Self:
        """Connect and check that this Redis can keep our promises.

        Raises `StoreUnavailable` when nothing answers and `StoreRefused`, with one line for the
        operator, when what answers would lose data or lacks a command.
        """
        client = RedisClient(url)
        try:
            keys = Keys(prefix)
            await check_redis(client, keys)
        except BaseException:
            await client.close()
            raise
        return cls(
            client,
            keys,
            lease_seconds=lease_seconds,
            keep_seconds=keep_seconds,
            idempotency_seconds=idempotency_seconds,
        )

    def __init__(
        self,
        client: RedisClient,
        keys: Keys,
        *,
        lease_seconds: float,
        keep_seconds: float,
        idempotency_seconds: float,
    ) -> None:
        self.client = client
        self.keys = keys
        self._lease_ms = int(lease_seconds * 1000)
        self._keep_ms = int(keep_seconds * 1000)
        self._idempotency_ms = int(idempotency_seconds * 1000)

    async def close(self) -> None:
        """Fail what is still waiting and close the connection. May be called twice."""
        await self.client.close()

    async def ping(self) -> None:
        """Return if Redis answers within a second and can write."""
        await self.client.call("PING")

    # ---- sessions -------------------------------------------------------------------------------

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
        made and deleted within the last hour.
        """
        _check_uid(uid)
        _check_idempotency_key(idempotency_key)
        session_id = derived_session_id(uid, idempotency_key)
        pairs = ("title", title, "model", model, "settings", orjson.dumps(dict(settings or {})))
        event = orjson.dumps({"type": "session.created"})
        arguments = (uid, secrets.token_urlsafe(6), event, *_LOG_LIMITS, *pairs)
        replies = await self.client.calls(
            *self._index_session(uid, session_id, _local_ms()),
            self.client.script_run(
                "create_session",
                self._session_keys(session_id, "m", "log", "x"),
                (*self._publish_to(session_id), *arguments),
            ),
            self._read_session(session_id),
        )
        word = replies[-2][0]
        session = decode_session(session_id, replies[-1])
        if word not in (b"ok", b"replayed") or session is None:
            await self._after(self._unindex_session(uid, session_id))
            raise SessionNotFound
        # Once more, because a reader may have dropped the entry while its session was not there.
        await self._after(self._index_session(uid, session_id, session.updated_at))
        return CreatedSession(session, replayed=word == b"replayed")

    async def session(self, uid: str | None, session_id: str) -> Session:
        """The session as it is now; `uid` None skips the owner check. Raises `SessionNotFound`."""
        _check_session_id(session_id)
        reply = await self.client.call(*self._read_session(session_id))
        return _own_session(uid, decode_session(session_id, reply))

    async def sessions(
        self, uid: str, *, limit: int = 50, cursor: str | None = None
    ) -> SessionPage:
        """A user's sessions, newest updated first. Raises `InvalidCursor`."""
        _check_uid(uid)
        position = _parse_cursor(cursor)
        sessions: list[Session] = []
        while len(sessions) <= limit:
            index = await self._index_after(uid, position, limit + 1 - len(sessions))
            if not index:
                break
            position = index[-1]
            sessions += await self._sessions_of(uid, index)
        page = tuple(sessions[:limit])
        more = len(sessions) > limit and page
        return SessionPage(page, _cursor_of(page[-1]) if more else None)

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
        _check_session_id(session_id)
        if head is not None and not is_message_id(head):
            raise MessageNotFound
        changed = _given(title=title, model=model, settings=settings, pinned=pinned, head=head)
        pairs: list[Argument] = []
        for name, value in changed.items():
            is_object = isinstance(value, Mapping)
            pairs += [name, orjson.dumps(value) if is_object else _as_argument(value)]
        reply, values = await self.client.calls(
            self.client.script_run(
                "update_session",
                self._session_keys(session_id, "m", "log", "msg"),
                (
                    *self._publish_to(session_id),
                    _owner(uid),
                    "" if if_revision is None else if_revision,
                    secrets.token_urlsafe(6),
                    orjson.dumps({"by": by, "changed": changed}),
                    head or "",
                    *_LOG_LIMITS,
                    *pairs,
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
        await self._after(self._index_session(session.uid, session_id, session.updated_at))
        return session

    async def delete_session(
        self, uid: str | None, session_id: str, *, by: str = "user"
    ) -> DeletedSession:
        """Remove the session, its messages and all its runs, and publish `session.deleted`.

        A late append or finish finds nothing and re-creates nothing (`RunGone`). What stays is a
        tombstone for an hour and the idempotency keys, which hold no text. Works when Redis'
        memory is full. Raises `SessionNotFound`.
        """
        _check_session_id(session_id)
        event = {"type": "session.deleted", "session_id": session_id, "by": by}
        reply = await self.client.script(
            "delete_session",
            self._session_keys(session_id, "m", "msg", "log", "q", "x", "runs", "tree", "ids"),
            (
                *self._publish_to(session_id),
                _owner(uid),
                secrets.token_urlsafe(6),
                orjson.dumps(event),
                self.keys.session_base(session_id),
                TOMBSTONE_MS,
            ),
        )
        if reply[0] != b"ok":
            raise SessionNotFound
        response_ids = tuple(rid.decode() for rid in reply[3:])
        await self._after(
            [
                *self._unindex_session(reply[1].decode(), session_id),
                *(self._unindex_run(response_id) for response_id in response_ids),
            ]
        )
        return DeletedSession(reply[2], response_ids)

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
        _check_session_id(session_id)
        values, entries = await self.client.calls(
            ("HMGET", self.keys.session(session_id, "m"), "uid", "head"),
            ("LRANGE", self.keys.session(session_id, "tree"), 0, -1),
        )
        _check_owner(uid, values[0])
        parents = _parents(entries)
        ids = _path_to(parents, leaf or (values[1] or b"").decode() or None)
        if before is not None:
            if before not in ids:
                raise MessageNotFound
            ids = ids[: ids.index(before)]
        shown = ids[-limit:] if limit > 0 else []
        if not shown:
            return MessagePage((), has_more=bool(ids))
        bodies = await self.client.call("HMGET", self.keys.session(session_id, "msg"), *shown)
        siblings = _children(parents)
        messages = [decode_body(body) for body in bodies if body is not None]
        return MessagePage(
            tuple(
                replace(message, sibling_ids=siblings[message.parent_id]) for message in messages
            ),
            has_more=len(ids) > len(shown),
        )

    async def message(self, uid: str | None, session_id: str, message_id: str) -> Message:
        """One message with its whole text. Raises `SessionNotFound`, `MessageNotFound`."""
        _check_session_id(session_id)
        if not is_message_id(message_id):
            raise MessageNotFound
        owner, body = await self.client.calls(
            ("HGET", self.keys.session(session_id, "m"), "uid"),
            ("HGET", self.keys.session(session_id, "msg"), message_id),
        )
        _check_owner(uid, owner)
        if body is None:
            raise MessageNotFound
        return decode_body(body)

    async def session_events(
        self, session_id: str, *, after: int, epoch: str | None = None
    ) -> list[SessionEvent] | None:
        """Every event after that offset, or None when the log no longer reaches back to it.

        Also None for a position beyond the log, under another `epoch`, or of a session that is
        gone: the caller sends a snapshot instead.
        """
        _check_session_id(session_id)
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

    # ---- runs -----------------------------------------------------------------------------------

    async def begin_response(
        self,
        uid: str,
        session_id: str,
        *,
        idempotency_key: str,
        body_hash: str,
        owner: str,
        response_id: str,
        user_message: Message | None,
        assistant_message: Message,
        parent_id: str | Unset | None = UNSET,
        on_busy: Literal["reject", "queue"] = "reject",
        created_event: Mapping[str, Any],
        model: str = "",
        settings: Mapping[str, Any] | None = None,
        seed: int | None = None,
        max_queued: int = 4,
        fields: Mapping[str, str | int] | None = None,
    ) -> BegunResponse:
        """Store both messages and a run that `owner` holds, once for each idempotency key.

        Checked in this order: session and user, key, lock, parent, busy. With `parent_id` UNSET
        the messages go behind the session's head of that very moment: the user message is stored
        under the parent that `BegunResponse.parent_id` names (its own `parent_id` serves as a first
        guess). Without a user message (regenerate, continue) give the parent. An assistant message
        whose id exists is replaced (continue) and not counted again. `created_event` becomes entry
        1 of the response's log.

        Never stops another response. Raises `SessionNotFound`, `IdempotencyKeyReused`,
        `SessionLocked`, `MessageNotFound` (the parent), `ResponseInProgress`, `QueueFull`.
        """
        _check_session_id(session_id)
        _check_uid(uid)
        _check_idempotency_key(idempotency_key)
        if not is_response_id(response_id) or session_of(response_id) != session_id:
            raise ValueError("the response id must carry its session's id")
        follows_head = parent_id is UNSET and user_message is not None
        if isinstance(parent_id, Unset):
            parent_id = (user_message or assistant_message).parent_id
        if parent_id is not None and not is_message_id(parent_id):
            raise MessageNotFound
        run_pairs = _field_arguments(
            {
                "model": model,
                "settings": orjson.dumps(dict(settings or {})).decode(),
                "seed": "" if seed is None else seed,
                "text_length": assistant_message.text_length,
            },
            fields,
        )
        for _ in range(MAX_MOVES):
            reply = await self._begin(
                session_id,
                response_id,
                idempotency_key,
                (
                    *self._publish_to(session_id),
                    uid,
                    response_id,
                    body_hash,
                    on_busy,
                    owner,
                    self._lease_ms,
                    self._idempotency_ms,
                    parent_id or "",
                    "head" if follows_head else "given",
                    *_message_arguments(user_message, parent_id),
                    *_message_arguments(
                        assistant_message, user_message.id if user_message else parent_id
                    ),
                    orjson.dumps(dict(created_event)),
                    max_queued,
                    *_LOG_LIMITS,
                    *run_pairs,
                ),
            )
            if reply[0] != b"moved":
                return await self._begun(uid, session_id, response_id, parent_id, reply)
            parent_id = reply[1].decode() or None
        raise StoreUnavailable("the session's head kept moving")

    async def append(
        self,
        response_id: str,
        *,
        fence: int,
        first: int,
        events: Sequence[Event],
        token_ids: Sequence[int] = (),
        text_length: int | None = None,
        status: str = "",
        fields: Mapping[str, str | int] | None = None,
        lease_seconds: float | None = None,
    ) -> AppendReply:
        """Store and publish entries `first`, `first` + 1, … and renew the lease.

        With no events only the lease is renewed (`first` is ignored). `token_ids` are those behind
        these events. `status` "in_progress" marks the start of decoding; `fields` sets others of
        the run (`prompt_from`, …). `lease_seconds` 0 hands the run over to whoever reaps it. One
        append in flight per run. A repeat after a lost reply answers `repeated` and stores nothing
        twice.

        This is the proof that nothing is stored after an end. Raises `RunLost`, `RunEnded`,
        `RunGone`, `SequenceGap`.
        """
        if token_ids and not events:
            raise ValueError("token ids travel with the event that they are behind")
        if not is_response_id(response_id):
            raise RunGone
        session_id = session_of(response_id)
        lease_ms = self._lease_ms if lease_seconds is None else int(lease_seconds * 1000)
        pairs = _field_arguments({}, fields)
        reply = await self.client.script(
            "append",
            self._run_keys(session_id, response_id),
            (
                *self._publish_to(session_id),
                response_id,
                fence,
                first,
                lease_ms,
                status,
                encode_token_ids(token_ids),
                "" if text_length is None else text_length,
                len(pairs),
                *pairs,
                *map(encode_event, events),
            ),
        )
        if reply[0] == b"ok":
            return AppendReply(cancel=reply[1] == 1, lease_until=reply[2])
        if reply[0] == b"gap" and reply[1] >= first + len(events) - 1:
            return AppendReply(cancel=reply[2] == 1, lease_until=reply[3], repeated=True)
        _raise_run_error(reply)

    async def request_cancel(
        self,
        uid: str | None,
        response_id: str,
        *,
        by: str = "user",
        reason: str = "client_cancelled",
        seen: int | None = None,
    ) -> CancelRequested:
        """Store the wish to stop: from now on the run can only end `cancelled`.

        The first caller's `by`, `reason` and `seen` stay. Tell the owner with `publish_control`.
        Works when Redis' memory is full. Raises `ResponseNotFound`, and `RunEnded` with the stored
        end.
        """
        if not is_response_id(response_id):
            raise ResponseNotFound
        reply = await self.client.script(
            "request_cancel",
            [self.keys.run(session_of(response_id), response_id)],
            (_owner(uid), by, reason, "" if seen is None else seen),
        )
        if reply[0] == b"not_found":
            raise ResponseNotFound
        if reply[0] != b"ok":
            _raise_run_error(reply)
        return CancelRequested(
            owner=reply[1].decode(),
            fence=reply[2],
            lease_until=reply[3],
            status=reply[4].decode(),
            first=reply[5] == 1,
        )

    async def cancel_early(
        self, uid: str, session_id: str, idempotency_key: str, ttl_seconds: float = 10.0
    ) -> str | None:
        """Stop a response that is not known yet: the wish waits for its `begin_response`.

        Returns the id if the key has begun one already (then nothing was stored: cancel that one).
        Raises `SessionNotFound`.
        """
        _check_session_id(session_id)
        _check_idempotency_key(idempotency_key)
        reply = await self.client.script(
            "cancel_early",
            [
                self.keys.session(session_id, "m"),
                self.keys.idempotency(session_id, idempotency_key),
            ],
            (_owner(uid), int(ttl_seconds * 1000)),
        )
        if reply[0] == b"not_found":
            raise SessionNotFound
        return reply[1].decode() if reply[0] == b"known" else None

    async def finish_response(
        self,
        response_id: str,
        *,
        fence: int,
        first: int,
        status: str,
        reason: str,
        engine: str,
        message: Message,
        text_length: int,
        input_tokens: int,
        output_tokens: int,
        events: Sequence[Event],
        updated_event: Mapping[str, Any] | None = None,
        token_ids: Sequence[int] = (),
        token_ids_to_keep: Sequence[int] | None = None,
        fields: Mapping[str, str | int] | None = None,
    ) -> Finished:
        """End the run: last entries, message, usage, `message.updated` and the next in the queue.

        The last event is the `response.done` object. `updated_event` defaults to `message.updated`
        with `message` in it. `token_ids` go behind the stored ones; `token_ids_to_keep` are kept
        with the message, for an answer whose text does not tokenize back to them.

        There is exactly one winner; a repeat of the winner's own call answers `repeated`. Raises
        `CancelPending` for any other status than `cancelled` once a stop is stored, `RunEnded`,
        `RunLost`, `SequenceGap`, `RunGone`. Works when Redis' memory is full.
        """
        if not events:
            raise ValueError("the last event of a run is response.done")
        if not is_response_id(response_id):
            raise RunGone
        session_id = session_of(response_id)
        if updated_event is None:
            updated_event = {"type": "message.updated", "message": message.event_wire()}
        pairs = _field_arguments({}, fields)
        reply = await self.client.script(
            "finish_response",
            [
                *self._session_keys(session_id, "m", "msg", "log"),
                *self._run_keys(session_id, response_id),
                *self._session_keys(session_id, "q", "runs", "ids"),
            ],
            (
                *self._publish_to(session_id),
                response_id,
                fence,
                first,
                status,
                reason,
                engine,
                message.id,
                encode_body(message),
                text_length,
                input_tokens,
                output_tokens,
                self._keep_ms,
                "" if token_ids_to_keep is None else encode_token_ids(token_ids_to_keep),
                orjson.dumps(dict(updated_event)),
                encode_token_ids(token_ids),
                *_LOG_LIMITS,
                len(pairs),
                *pairs,
                *map(encode_event, events),
            ),
        )
        if reply[0] != b"ok":
            _raise_run_error(reply)
        uid, now_ms = reply[4].decode(), reply[5]
        await self._after(
            [self._unindex_run(response_id), *self._index_session(uid, session_id, now_ms)]
        )
        return Finished(
            offset=reply[1],
            sequence_number=reply[2],
            next_response_id=reply[3].decode() or None,
            repeated=reply[6] == 1,
        )

    async def reap(
        self, response_id: str, *, new_owner: str, exited_owner: str | None = None
    ) -> Reaped:
        """Take over a run whose lease ended, or whose owner is known to be dead.

        `exited_owner` names a process that is proved gone: its lease need not end. From then on
        the old owner's fence is refused. Raises `RunLive`, `RunEnded`, `RunGone`.
        """
        if not is_response_id(response_id):
            raise RunGone
        reply = await self.client.script(
            "reap",
            [self.keys.run(session_of(response_id), response_id)],
            (new_owner, self._lease_ms, exited_owner or "", secrets.token_urlsafe(6)),
        )
        if reply[0] == b"ok":
            await self._after([self._index_run(response_id, reply[7])])
            return Reaped(
                fence=reply[1],
                sequence_number=reply[2],
                status=reply[3].decode(),
                cancel=reply[4] == 1,
                seen=_optional_number(reply[5]),
                old_owner=reply[6].decode(),
                lease_until=reply[7],
            )
        if reply[0] == b"live":
            await self._after([self._index_run(response_id, reply[3])])
            raise RunLive(reply[1], reply[2].decode())
        await self._after([self._unindex_run(response_id)])
        _raise_run_error(reply)

    async def expired_runs(self, limit: int = 100) -> list[str]:
        """Runs that may be due for `reap`, which alone decides: this index can be stale."""
        seconds, microseconds = await self.client.call("TIME")
        now_ms = int(seconds) * 1000 + int(microseconds) // 1000
        too_far = now_ms + 2 * self._lease_ms + INDEX_GRACE_MS  # Redis' clock has jumped back
        shards = random.sample(SHARDS, len(SHARDS))
        commands: list[Command] = []
        for shard in shards:
            index = self.keys.live_runs(shard)
            commands.append(("ZRANGEBYSCORE", index, "-inf", now_ms, "LIMIT", 0, limit))
            commands.append(("ZRANGEBYSCORE", index, too_far, "+inf", "LIMIT", 0, limit))
        replies = await self.client.calls(*commands)
        return [rid.decode() for reply in replies for rid in reply][:limit]

    async def runs_owned_by(self, owner: str) -> list[str]:
        """Every live run of that worker."""
        replies = await self.client.calls(
            *(("ZRANGE", self.keys.live_runs(shard), 0, -1) for shard in SHARDS)
        )
        response_ids = [rid.decode() for reply in replies for rid in reply]
        if not response_ids:
            return []
        rows = await self.client.calls(
            *(
                ("HMGET", self.keys.run(session_of(rid), rid), "owner", "status")
                for rid in response_ids
            )
        )
        wanted = owner.encode()
        return [
            response_id
            for response_id, row in zip(response_ids, rows, strict=True)
            if row[0] == wanted and row[1].decode() in LIVE_STATUSES
        ]

    async def touch_run_index(self, leases: Mapping[str, int]) -> None:
        """Write response id -> `lease_until` of own runs to the index, every few seconds."""
        if leases:
            await self.client.calls(*(self._index_run(*lease) for lease in leases.items()))

    async def run(self, uid: str | None, response_id: str) -> RunRecord:
        """The run as it is now; `uid` None skips the owner check. Raises `ResponseNotFound`."""
        if not is_response_id(response_id):
            raise ResponseNotFound
        key = self.keys.run(session_of(response_id), response_id)
        run = decode_run(response_id, await self.client.call("HGETALL", key))
        if run is None or _owner(uid) not in ("", run.uid):
            raise ResponseNotFound
        return run

    async def events(self, response_id: str, *, after: int = 0) -> list[tuple[int, Event]]:
        """The numbered entries after that number; empty when the log is gone."""
        if not is_response_id(response_id):
            return []
        key = self.keys.events(session_of(response_id), response_id)
        entries = await self.client.call("XRANGE", key, f"{after + 1}-0", "+")
        return [(number, decode_event(data)) for number, data in decode_entries(entries)]

    async def token_ids(self, response_id: str) -> list[int]:
        """Every id that the run's text was decided from, in order."""
        if not is_response_id(response_id):
            return []
        key = self.keys.token_ids(session_of(response_id), response_id)
        return decode_token_ids(await self.client.call("GET", key) or b"")

    async def kept_token_ids(
        self, session_id: str, message_ids: Iterable[str]
    ) -> dict[str, list[int]]:
        """The ids kept by `finish_response` for those of the messages that have any."""
        _check_session_id(session_id)
        ids = list(message_ids)
        if not ids:
            return {}
        rows = await self.client.call("HMGET", self.keys.session(session_id, "ids"), *ids)
        return {
            message_id: decode_token_ids(row)
            for message_id, row in zip(ids, rows, strict=True)
            if row is not None
        }

    async def live_responses(self, session_id: str) -> LiveResponses:
        """The active response and those queued behind it; empty for a session that is gone."""
        _check_session_id(session_id)
        active, queued = await self.client.calls(
            ("HGET", self.keys.session(session_id, "m"), "active_response_id"),
            ("LRANGE", self.keys.session(session_id, "q"), 0, -1),
        )
        return LiveResponses(
            active=(active or b"").decode() or None,
            queued=tuple(response_id.decode() for response_id in queued),
        )

    # ---- messages between workers, limits -------------------------------------------------------

    async def publish_user(self, uid: str, frame: Mapping[str, Any]) -> None:
        """Send a frame to every worker that has this user connected. It is not stored."""
        _check_uid(uid)
        await self.client.call(PUBLISH, self.keys.user_channel(uid), orjson.dumps(dict(frame)))

    async def publish_control(self, replica: str, command: Mapping[str, Any]) -> bool:
        """Send a command to one worker; False means that nobody listened. It is not stored."""
        channel = self.keys.control_channel(replica)
        receivers = await self.client.call(PUBLISH, channel, orjson.dumps(dict(command)))
        return int(receivers) > 0

    async def take_rate(
        self, uid: str, field: str, *, interval_seconds: float, burst: int, cost: int = 1
    ) -> Allowed | Limited:
        """Take `cost` from a bucket that holds `burst` and gains one per `interval_seconds`."""
        _check_uid(uid)
        reply = await self.client.script(
            "take_rate",
            [self.keys.user_rates(uid)],
            (field, int(interval_seconds * 1_000_000), burst, cost, RATE_MS),
        )
        if reply[0] == b"limited":
            return Limited(retry_after_ms=reply[1])
        return Allowed(remaining=reply[1], reset_ms=reply[2])

    # ---- inside ----------------------------------------------------------------------------------

    def _session_keys(self, session_id: str, *suffixes: str) -> list[str]:
        return [self.keys.session(session_id, suffix) for suffix in suffixes]

    def _run_keys(self, session_id: str, response_id: str) -> list[str]:
        return [
            self.keys.run(session_id, response_id),
            self.keys.events(session_id, response_id),
            self.keys.token_ids(session_id, response_id),
        ]

    def _publish_to(self, session_id: str) -> tuple[str, str]:
        return PUBLISH, self.keys.session_channel(session_id)

    def _read_session(self, session_id: str) -> Command:
        return ("HMGET", self.keys.session(session_id, "m"), *SESSION_FIELDS)

    def _index_session(self, uid: str, session_id: str, updated_at: int) -> list[Command]:
        return [
            ("ZADD", self.keys.user_sessions(uid), updated_at, session_id),
            ("ZADD", self.keys.all_sessions(session_id), updated_at, session_id),
        ]

    def _unindex_session(self, uid: str, session_id: str) -> list[Command]:
        return [
            ("ZREM", self.keys.user_sessions(uid), session_id),
            ("ZREM", self.keys.all_sessions(session_id), session_id),
        ]

    def _index_run(self, response_id: str, lease_until: int) -> Command:
        shard = shard_of(session_of(response_id))
        return ("ZADD", self.keys.live_runs(shard), lease_until, response_id)

    def _unindex_run(self, response_id: str) -> Command:
        return ("ZREM", self.keys.live_runs(shard_of(session_of(response_id))), response_id)

    async def _after(self, commands: Sequence[Command]) -> None:
        """Bring an index up to date after its data; what was done stays done if that fails.

        Indexes are in other slots, so never atomic with their data. They are written before it and
        removed after it: a crash leaves entries too many, which readers drop, and never too few.
        """
        try:
            await self.client.calls(*commands)
        except StoreUnavailable:
            logger.debug("index left behind", extra={"commands": len(commands)})

    async def _index_after(
        self, uid: str, position: tuple[int, str] | None, count: int
    ) -> list[tuple[int, str]]:
        """Up to `count` entries of a user's index that are older than `position`.

        Entries of one millisecond are ordered by id, so a page may end between them.
        """
        key = self.keys.user_sessions(uid)
        found: list[tuple[int, str]] = []
        skipped = 0
        while len(found) < count:
            newest = "+inf" if position is None else position[0]
            # fmt: off
            entries = await self.client.call(
                "ZRANGE", key, newest, "-inf", "BYSCORE", "REV",
                "LIMIT", skipped, count, "WITHSCORES",
            )
            # fmt: on
            places = [(int(score), session_id.decode()) for session_id, score in entries]
            found += [place for place in places if position is None or place < position]
            skipped += len(places)
            if len(places) < count:
                break
        return found[:count]

    async def _sessions_of(self, uid: str, index: Sequence[tuple[int, str]]) -> list[Session]:
        """The sessions of these index entries; entries whose session is gone are dropped."""
        rows = await self.client.calls(*(self._read_session(sid) for _, sid in index))
        sessions = []
        stale: list[Command] = []
        for (updated_at, session_id), row in zip(index, rows, strict=True):
            session = decode_session(session_id, row)
            if session is not None and session.uid == uid:
                sessions.append(session)
            elif updated_at < _local_ms() - INDEX_GRACE_MS:
                stale += self._unindex_session(uid, session_id)
        if stale:
            await self._after(stale)
        return sessions

    async def _begin(
        self,
        session_id: str,
        response_id: str,
        idempotency_key: str,
        arguments: Sequence[Argument],
    ) -> list[Any]:
        """Index the run, then begin it; a run that did not begin leaves the index again."""
        *_, reply = await self.client.calls(
            self._index_run(response_id, _local_ms() + self._lease_ms),
            self.client.script_run(
                "begin_response",
                [
                    *self._session_keys(session_id, "m", "msg", "log"),
                    self.keys.run(session_id, response_id),
                    self.keys.events(session_id, response_id),
                    self.keys.idempotency(session_id, idempotency_key),
                    *self._session_keys(session_id, "q", "runs", "tree"),
                ],
                arguments,
            ),
        )
        if reply[0] not in (b"ok", b"moved"):
            await self._after([self._unindex_run(response_id)])
        return list(reply)

    async def _begun(
        self, uid: str, session_id: str, response_id: str, parent_id: str | None, reply: list[Any]
    ) -> BegunResponse:
        """What the reply of begin_response means, with the indexes brought up to date."""
        word = reply[0].decode()
        if word not in ("ok", "replayed"):
            _raise_begin_error(word, (reply[1].decode() if len(reply) > 1 else ""))
        replayed = word == "replayed"
        begun = BegunResponse(
            replayed=replayed,
            response_id=reply[1].decode(),
            fence=reply[2],
            queued_behind=reply[3],
            offset=reply[4],
            epoch=reply[5].decode(),
            now_ms=reply[6],
            cancel=reply[7] == 1,
            title_empty=reply[8] == 1,
            parent_id=None if replayed else parent_id,
            lease_until=reply[9],
        )
        if not replayed:
            await self._after(
                [
                    self._index_run(response_id, begun.lease_until),
                    *self._index_session(uid, session_id, begun.now_ms),
                ]
            )
        return begun


# ---- arguments and replies -----------------------------------------------------------------------


def _local_ms() -> int:
    """This machine's clock, for index entries alone, where a few seconds do not matter."""
    return int(time.time() * 1000)


def _check_uid(uid: str) -> None:
    if not _UID.match(uid):
        raise ValueError("a user id is 1 to 128 characters with no space and no brace")


def _owner(uid: str | None) -> str:
    """The uid as scripts take it: empty for None, which skips the owner check."""
    if uid is None:
        return ""
    _check_uid(uid)
    return uid


def _check_session_id(session_id: str) -> None:
    if not is_session_id(session_id):
        raise SessionNotFound


def _check_idempotency_key(key: str) -> None:
    if not is_idempotency_key(key):
        raise ValueError("an idempotency key is 1 to 128 characters of [A-Za-z0-9_-]")


def _check_owner(uid: str | None, stored: bytes | None) -> None:
    if stored is None or _owner(uid) not in ("", stored.decode()):
        raise SessionNotFound


def _own_session(uid: str | None, session: Session | None) -> Session:
    if session is None or _owner(uid) not in ("", session.uid):
        raise SessionNotFound
    return session


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _as_argument(value: Any) -> Argument:
    return int(value) if isinstance(value, bool) else str(value)


def _field_arguments(
    own: Mapping[str, str | int], fields: Mapping[str, str | int] | None
) -> list[Argument]:
    """Name and value pairs for a run hash; raises `ValueError` for a field that scripts manage."""
    if managed := MANAGED_RUN_FIELDS & set(fields or ()):
        raise ValueError(f"run fields {sorted(managed)} are set by the store")
    return [part for pair in {**(fields or {}), **own}.items() for part in pair]


def _message_arguments(message: Message | None, parent_id: str | None) -> tuple[Argument, ...]:
    """Id, stored body and event JSON of a message under that parent; empty without one."""
    if message is None:
        return "", "", ""
    placed = message.with_parent(parent_id)
    return placed.id, encode_body(placed), orjson.dumps(placed.event_wire())


def _parse_cursor(cursor: str | None) -> tuple[int, str] | None:
    if cursor is None:
        return None
    match = _CURSOR.match(cursor)
    if match is None:
        raise InvalidCursor("malformed cursor")
    return int(match[1]), match[2]


def _cursor_of(session: Session) -> str:
    return f"{session.updated_at}:{session.id}"


def _optional_number(text: bytes) -> int | None:
    return int(text) if text else None


def _parents(entries: Iterable[bytes]) -> dict[str, str | None]:
    """Message id -> parent id, in order of creation, of the entries of `tree`."""
    pairs = (entry.decode().split(" ") for entry in entries)
    return {message_id: parent_id or None for message_id, parent_id in pairs}


def _path_to(parents: Mapping[str, str | None], leaf: str | None) -> list[str]:
    """The ids from the root to `leaf`; empty for no leaf."""
    ids: list[str] = []
    while leaf is not None:
        if leaf not in parents:
            raise MessageNotFound
        ids.append(leaf)
        leaf = parents[leaf]
    return ids[::-1]


def _children(parents: Mapping[str, str | None]) -> dict[str | None, tuple[str, ...]]:
    """Parent id -> its children in order of creation."""
    children: dict[str | None, list[str]] = {}
    for message_id, parent_id in parents.items():
        children.setdefault(parent_id, []).append(message_id)
    return {parent_id: tuple(ids) for parent_id, ids in children.items()}


def _raise_begin_error(word: str, detail: str) -> NoReturn:
    match word:
        case "key_reused":
            raise IdempotencyKeyReused(detail)
        case "busy":
            raise ResponseInProgress(detail)
        case "queue_full":
            raise QueueFull(detail)
        case "locked":
            raise SessionLocked(detail)
        case "parent_not_found":
            raise MessageNotFound
        case _:
            raise SessionNotFound


def _raise_run_error(reply: Sequence[Any]) -> NoReturn:
    word, *rest = reply
    match word:
        case b"lost":
            raise RunLost(rest[0], rest[1].decode())
        case b"ended":
            status, reason, sequence_number, engine, text_length, fence = rest
            raise RunEnded(
                status.decode(),
                reason.decode(),
                sequence_number,
                engine.decode(),
                text_length,
                fence,
            )
        case b"gap":
            raise SequenceGap(rest[0])
        case b"cancelled":
            raise CancelPending(_optional_number(rest[0]), rest[1].decode(), rest[2].decode())
        case _:
            raise RunGone
