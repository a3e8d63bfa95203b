"""The store's half for runs: begun once, written by one owner, stopped for certain, ended once."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import orjson

from sessions.arguments import (
    check_idempotency_key,
    check_session_id,
    check_uid,
    field_arguments,
    message_arguments,
    optional_number,
    owner_argument,
    raise_begin_error,
    raise_run_error,
)
from sessions.budgets import Budgets
from sessions.client import Argument
from sessions.errors import (
    MessageNotFound,
    QuotaExceeded,
    ResponseNotFound,
    RunGone,
    RunLive,
    SessionNotFound,
    StoreUnavailable,
)
from sessions.indexes import local_ms
from sessions.records import (
    LIVE_STATUSES,
    UNSET,
    AppendReply,
    BegunResponse,
    CancelRequested,
    Event,
    Finished,
    LiveResponses,
    Message,
    Reaped,
    RunRecord,
    Unset,
    decode_event,
    encode_event,
    is_message_id,
    is_response_id,
    session_of,
)
from sessions.stored import (
    decode_entries,
    decode_run,
    decode_token_ids,
    encode_body,
    encode_token_ids,
)

MAX_MOVES: Final = 8  # each means that another response began in between


class Responses(Budgets):
    """Runs, their logs and who owns them. `SessionStore` has these methods; see there."""

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
        continues: str | None = None,
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
        guess). Without a user message (regenerate, continue) give the parent. To continue an
        assistant message, `continues` is the version that `message_version` gave: the message is
        replaced, and not counted again. `created_event` becomes entry 1 of the response's log.

        Never stops another response. Raises `SessionNotFound`, `IdempotencyKeyReused`,
        `SessionLocked`, `MessageNotFound` (the parent), `ResponseInProgress`, `QueueFull`,
        `MessageChanged` (the one to continue), `QuotaExceeded`.
        """
        check_session_id(session_id)
        check_uid(uid)
        check_idempotency_key(idempotency_key)
        if not is_response_id(response_id) or session_of(response_id) != session_id:
            raise ValueError("the response id must carry its session's id")
        follows_head = parent_id is UNSET and user_message is not None
        if isinstance(parent_id, Unset):
            parent_id = (user_message or assistant_message).parent_id
        if parent_id is not None and not is_message_id(parent_id):
            raise MessageNotFound
        run_pairs = field_arguments(
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
                    *message_arguments(user_message, parent_id),
                    *message_arguments(
                        assistant_message, user_message.id if user_message else parent_id
                    ),
                    orjson.dumps(dict(created_event)),
                    max_queued,
                    *self._log_limits,
                    continues or "",
                    self._quotas.messages_per_session,
                    self._quotas.bytes_per_session,
                    *run_pairs,
                ),
            )
            if reply[0] != b"moved":
                return await self._begun(uid, session_id, response_id, parent_id, reply)
            parent_id = reply[1].decode() or None
        raise StoreUnavailable("the session's head kept moving")

    async def publish_events(
        self, response_id: str, *, fence: int, first: int, events: Sequence[Event]
    ) -> None:
        """Tell those who watch of entries that are stored nowhere: the end of a deleted one."""
        head = f"r {response_id} {fence} {first} {first + len(events) - 1}".encode()
        payload = b"\n".join([head, *map(encode_event, events)])
        await self.client.call(*self._publish_to(session_of(response_id)), payload)

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
        pairs = field_arguments({}, fields)
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
        raise_run_error(reply)

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
            (owner_argument(uid), by, reason, "" if seen is None else seen),
        )
        if reply[0] == b"not_found":
            raise ResponseNotFound
        if reply[0] != b"ok":
            raise_run_error(reply)
        return CancelRequested(
            owner=reply[1].decode(),
            fence=reply[2],
            lease_until=reply[3],
            status=reply[4].decode(),
            first=reply[5] == 1,
            cancel_at=reply[6],
        )

    async def publish_session_frame(self, session_id: str, frame: Mapping[str, Any]) -> None:
        """Send something to all that follow the session. It is not stored."""
        check_session_id(session_id)
        await self.client.call(*self._publish_to(session_id), orjson.dumps(dict(frame)))

    async def cancel_early(
        self, uid: str, session_id: str, idempotency_key: str, ttl_seconds: float = 10.0
    ) -> str | None:
        """Stop a response that is not known yet: the wish waits for its `begin_response`.

        Returns the id if the key has begun one already (then nothing was stored: cancel that one).
        Raises `SessionNotFound`.
        """
        check_session_id(session_id)
        check_idempotency_key(idempotency_key)
        reply = await self.client.script(
            "cancel_early",
            [
                self.keys.session(session_id, "m"),
                self.keys.idempotency(session_id, idempotency_key),
            ],
            (owner_argument(uid), int(ttl_seconds * 1000)),
        )
        if reply[0] == b"not_found":
            raise SessionNotFound
        return reply[1].decode() if reply[0] == b"known" else None

    async def known_response(
        self, uid: str, session_id: str, idempotency_key: str
    ) -> tuple[str, str] | None:
        """The response that a key has begun, with the hash of its body; None if there is none.

        Raises `SessionNotFound`.
        """
        check_session_id(session_id)
        check_idempotency_key(idempotency_key)
        owner, value = await self.client.calls(
            ("HGET", self.keys.session(session_id, "m"), "uid"),
            ("GET", self.keys.idempotency(session_id, idempotency_key)),
        )
        if owner is None or owner.decode() != uid:
            raise SessionNotFound
        response_id, _, body_hash = (value or b"").decode().partition(" ")
        return (response_id, body_hash) if body_hash else None

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
        pairs = field_arguments({}, fields)
        reply = await self.client.script(
            "finish_response",
            [
                *self._session_keys(session_id, "m", "msg", "log"),
                *self._run_keys(session_id, response_id),
                *self._session_keys(session_id, "q", "runs", "ids", "tree", "share"),
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
                *self._log_limits,
                self._idle_ms,
                len(pairs),
                *pairs,
                *map(encode_event, events),
            ),
        )
        if reply[0] != b"ok":
            raise_run_error(reply)
        uid, now_ms = reply[4].decode(), reply[5]
        await self.charge_tokens(uid, response_id, input_tokens + output_tokens)
        await self._indexes.settle(
            [
                self._indexes.without_run(response_id),
                *self._indexes.session(uid, session_id, now_ms),
            ]
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
            await self._indexes.settle([self._indexes.run(response_id, reply[7])])
            return Reaped(
                fence=reply[1],
                sequence_number=reply[2],
                status=reply[3].decode(),
                cancel=reply[4] == 1,
                seen=optional_number(reply[5]),
                old_owner=reply[6].decode(),
                lease_until=reply[7],
            )
        if reply[0] == b"live":
            await self._indexes.settle([self._indexes.run(response_id, reply[3])])
            raise RunLive(reply[1], reply[2].decode())
        await self._indexes.settle([self._indexes.without_run(response_id)])
        raise_run_error(reply)

    async def expired_runs(self, limit: int = 100) -> list[str]:
        """Runs that may be due for `reap`, which alone decides: this index can be stale."""
        return await self._indexes.expired_runs(self._lease_ms, limit)

    async def runs_owned_by(self, owner: str) -> list[str]:
        """Every live run of that worker."""
        response_ids = await self._indexes.live_runs()
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
            await self.client.calls(*(self._indexes.run(*lease) for lease in leases.items()))

    async def run(self, uid: str | None, response_id: str) -> RunRecord:
        """The run as it is now; `uid` None skips the owner check. Raises `ResponseNotFound`."""
        if not is_response_id(response_id):
            raise ResponseNotFound
        key = self.keys.run(session_of(response_id), response_id)
        run = decode_run(response_id, await self.client.call("HGETALL", key))
        if run is None or owner_argument(uid) not in ("", run.uid):
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
        check_session_id(session_id)
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
        check_session_id(session_id)
        active, queued = await self.client.calls(
            ("HGET", self.keys.session(session_id, "m"), "active_response_id"),
            ("LRANGE", self.keys.session(session_id, "q"), 0, -1),
        )
        return LiveResponses(
            active=(active or b"").decode() or None,
            queued=tuple(response_id.decode() for response_id in queued),
        )

    # ---- inside ---------------------------------------------------------------------------------

    def _run_keys(self, session_id: str, response_id: str) -> list[str]:
        return [
            self.keys.run(session_id, response_id),
            self.keys.events(session_id, response_id),
            self.keys.token_ids(session_id, response_id),
        ]

    async def _begin(
        self,
        session_id: str,
        response_id: str,
        idempotency_key: str,
        arguments: Sequence[Argument],
    ) -> list[Any]:
        """Index the run, then begin it; a run that did not begin leaves the index again."""
        *_, reply = await self.client.calls_in_order(
            self._indexes.run(response_id, local_ms() + self._lease_ms),
            self.client.script_run(
                "begin_response",
                [
                    *self._session_keys(session_id, "m", "msg", "log"),
                    self.keys.run(session_id, response_id),
                    self.keys.events(session_id, response_id),
                    self.keys.idempotency(session_id, idempotency_key),
                    *self._session_keys(session_id, "q", "runs", "tree", "ids", "share"),
                ],
                arguments,
            ),
        )
        if reply[0] not in (b"ok", b"moved"):
            await self._indexes.settle([self._indexes.without_run(response_id)])
        return list(reply)

    async def _begun(
        self, uid: str, session_id: str, response_id: str, parent_id: str | None, reply: list[Any]
    ) -> BegunResponse:
        """What the reply of begin_response means, with the indexes brought up to date."""
        word = reply[0].decode()
        if word == "quota":
            raise self._quota_error(reply[1].decode())
        if word not in ("ok", "replayed"):
            raise_begin_error(word, (reply[1].decode() if len(reply) > 1 else ""))
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
            await self._indexes.settle(
                [
                    self._indexes.run(response_id, begun.lease_until),
                    *self._indexes.session(uid, session_id, begun.now_ms),
                ]
            )
        return begun

    def _quota_error(self, what: str) -> QuotaExceeded:
        if what == "bytes":
            return QuotaExceeded("bytes in a session", self._quotas.bytes_per_session)
        return QuotaExceeded("messages in a session", self._quotas.messages_per_session)
