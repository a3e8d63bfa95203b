"""The store's part for runs: written by one owner, stopped for certain, taken over, ended once."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence

from sessions.model.arguments import owner_argument
from sessions.model.codec import (
    decode_entries,
    decode_run,
    decode_token_ids,
    encode_body,
    encode_token_ids,
)
from sessions.model.errors import (
    ResponseNotFound,
    RunGone,
    RunLive,
    SessionLocked,
)
from sessions.model.events import Event, decode_event, encode_event
from sessions.model.ids import is_response_id, session_of
from sessions.model.queue import LOOK_AFTER_MS, NextRound
from sessions.model.records import LIVE_STATUSES, Message, RunRecord
from sessions.model.replies import (
    AppendReply,
    CallDecision,
    CancelRequested,
    Finished,
    Reaped,
)
from sessions.model.session_events import MessageUpdatedEvent, encode_session_event
from sessions.store.appends.append import (
    Append,
    Appends,
    field_arguments,
    optional_number,
    run_error,
)
from sessions.store.context import PUBLISH, StoreContext
from sessions.store.quotas.budgets import Budgets
from sessions.store.turns import decode_turn, turn_commands


class Runs:
    """Runs, their logs and who owns them."""

    def __init__(self, context: StoreContext, budgets: Budgets, appends: Appends) -> None:
        self._context = context
        self._client = context.client
        self._indexes = context.indexes
        self._keys = context.keys
        self._budgets = budgets
        self._appends = appends

    async def append(
        self,
        response_id: str,
        *,
        fence: int,
        first: int,
        events: Sequence[Event],
        token_ids: Sequence[int] = (),
        text_length: int | None = None,
        status: str | None = None,
        fields: Mapping[str, str | int] | None = None,
        lease_seconds: float | None = None,
    ) -> AppendReply:
        """Store and publish entries `first`, `first` + 1, … and renew the lease.

        With no events only the lease is renewed (`first` is ignored). `token_ids` are those of
        these events. `status` "in_progress" marks the start of decoding; `fields` sets others of
        the run (`prompt_from`, …). `lease_seconds` 0 hands the run over to the next worker that
        reaps it. One append in flight per run. A repeat after a lost reply answers `repeated` and
        stores nothing twice.

        This is the proof that nothing is stored after an end. Raises `RunLost`, `RunEnded`,
        `RunGone`, `SequenceGap`.
        """
        if token_ids and not events:
            raise ValueError("token ids are stored with the event of their text")
        append = Append(
            self._appends.log_of(response_id),
            fence,
            first,
            [encode_event(event) for event in events],
            encode_token_ids(token_ids),
            "-" if text_length is None else text_length,
            status or "",
            field_arguments({}, fields),
        )
        return await self._appends.write(append, lease_seconds)

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
        reply = await self._client.script(
            "request_cancel",
            [self._keys.run(session_of(response_id), response_id)],
            uid=owner_argument(uid),
            by=by,
            reason=reason,
            seen=seen,
        )
        if reply[0] == b"not_found":
            raise ResponseNotFound
        if reply[0] != b"ok":
            raise run_error(reply)
        return CancelRequested(
            owner=reply[1].decode(),
            fence=reply[2],
            lease_until=reply[3],
            status=reply[4].decode(),
            first=reply[5] == 1,
            cancel_at=reply[6],
        )

    async def finish(
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
        token_ids: Sequence[int] = (),
        token_ids_to_keep: Sequence[int] | None = None,
        fields: Mapping[str, str | int] | None = None,
        seen: int | None = None,
        published_end: Event | None = None,
        pauses_queue: bool = False,
        next_round: NextRound | None = None,
        group: str | None = None,
        place: str | None = None,
        turn_of: str | None = None,
    ) -> Finished:
        """End the run: last entries, message, usage, `message.updated` and the next in the queue.

        The last event is the `response.done` object. `token_ids` are appended to the stored ones;
        `token_ids_to_keep` are kept with the message, for an answer whose text does not tokenize
        back to them. `seen` is what the stop that it ends with had seen. Viewers at other workers
        get `published_end` instead of the last event. With `pauses_queue` what waits in the
        session's queue does not begin by itself. `next_round` does, before all of it, unless
        another answer of the session waits already. `group` is the one that holds tokens for it.
        `place` is for the session's next answer. `turn_of` is the session's user, if something
        waits there most likely: then what has its turn now is read with the same call.

        There is exactly one winner; a repeat of the winner's own call answers `repeated`. Raises
        `CancelPending` for any other end than `cancelled` with the reason and `seen` of the stop
        that is stored, if one is; `RunEnded`, `RunLost`, `SequenceGap`, `RunGone`. Works when
        Redis' memory is full.
        """
        if not events:
            raise ValueError("the last event of a run is response.done")
        if not is_response_id(response_id):
            raise RunGone
        session_id = session_of(response_id)
        if next_round is not None:  # the index first: an entry too many is dropped by who looks
            await self._client.script(
                "enter_queue",
                [self._keys.rounds],
                session_id=session_id,
                after_ms=LOOK_AFTER_MS,
            )
        turn = [] if turn_of is None else turn_commands(self._context, session_id, turn_of)
        finish = self._client.script_run(
            "finish_response",
            [
                *self._context.session_keys(session_id, "m", "msg", "log"),
                *self._context.run_keys(session_id, response_id),
                *self._context.session_keys(session_id, "q", "runs", "ids", "tree", "share"),
            ],
            channel=self._keys.session_channel(session_id),
            response_id=response_id,
            fence=fence,
            first=first,
            status=status,
            reason=reason,
            engine=engine,
            message_id=message.id,
            body=encode_body(message),
            text_length=text_length,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            keep_ms=self._context.keep_ms,
            updated_event=encode_session_event(MessageUpdatedEvent(message=message.event_wire())),
            token_ids=encode_token_ids(token_ids),
            token_ids_to_keep=None
            if token_ids_to_keep is None
            else encode_token_ids(token_ids_to_keep),
            **self._context.log_limits,
            idle_ms=self._context.idle_ms,
            seen=seen,
            published_end=None if published_end is None else encode_event(published_end),
            pauses=1 if pauses_queue else None,
            next_round=None if next_round is None else next_round.encode(),
            place=place,
            fields=field_arguments({}, fields),
            entries=[encode_event(event) for event in events],
        )
        reply, *read = await self._client.calls(finish, *turn)
        if reply[0] != b"ok":
            error = run_error(reply)
            if isinstance(error, RunGone):  # its owner may have entered it after it was deleted
                await self._indexes.settle([self._indexes.without_run(response_id)])
            raise error
        uid, now_ms = reply[4].decode(), reply[5]
        # Both are sent before the caller can tell of the end. On one server no reply is waited for.
        await asyncio.gather(
            self._budgets.charge(
                uid, response_id, input_tokens + output_tokens, now_ms, group=group
            ),
            self._indexes.settle(
                [
                    self._indexes.without_run(response_id),
                    *self._indexes.session(uid, session_id, now_ms, hidden=reply[8] == b"1"),
                ]
            ),
        )
        return Finished(
            offset=reply[1],
            sequence_number=reply[2],
            next_response_id=reply[3].decode() or None,
            repeated=reply[6] == 1,
            has_queue=reply[7] == 1,
            turn=decode_turn(session_id, read) if read else None,
        )

    async def decide_call(
        self,
        uid: str | None,
        response_id: str,
        call_id: str,
        decision: str,
        *,
        granted_tool: str | None = None,
    ) -> CallDecision:
        """Keep what is said of a call that waits for a word; of several the first one counts.

        `granted_tool` needs no word from now on, in this session. `uid` None: the owner says that
        nobody has said anything. Tell the owner with `publish_control`. Raises `ResponseNotFound`,
        `SessionLocked`, and `RunEnded`.
        """
        if not is_response_id(response_id):
            raise ResponseNotFound
        session_id = session_of(response_id)
        reply = await self._client.script(
            "decide_call",
            [self._keys.run(session_id, response_id), self._keys.session(session_id, "m")],
            uid=owner_argument(uid),
            call_id=call_id,
            decision=decision,
            granted_tool=granted_tool,
        )
        match reply[0]:
            case b"ok":
                return CallDecision(decision, reply[1].decode())
            case b"known":
                return CallDecision(reply[1].decode(), reply[2].decode())
            case b"locked":
                raise SessionLocked(reply[1].decode())
            case b"not_found":
                raise ResponseNotFound
            case _:
                raise run_error(reply)

    async def said_of_call(self, response_id: str, call_id: str, tool: str) -> tuple[str, bool]:
        """What was said of the call ("" if nothing was), and whether its tool needs no word."""
        session_id = session_of(response_id)
        said, granted = await self._client.calls(
            ("HGET", self._keys.run(session_id, response_id), f"consent:{call_id}"),
            ("HGET", self._keys.session(session_id, "m"), f"grant:{tool}"),
        )
        return (said or b"").decode(), granted is not None

    async def reap(
        self, response_id: str, *, new_owner: str, exited_owner: str | None = None
    ) -> Reaped:
        """Take over a run whose lease ended, or whose owner is known to be dead.

        `exited_owner` names a process that is proved gone: its lease need not end. From then on
        the old owner's fence is refused. Raises `RunLive`, `RunEnded`, `RunGone`.
        """
        if not is_response_id(response_id):
            raise RunGone
        reply = await self._client.script(
            "reap",
            self._context.run_keys(session_of(response_id), response_id)[:2],
            new_owner=new_owner,
            lease_ms=self._context.lease_ms,
            exited_owner=exited_owner,
            call_id=secrets.token_urlsafe(6),
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
        raise run_error(reply)

    async def expired(self, limit: int = 100) -> list[str]:
        """Runs that may be due for `reap`, which alone decides: this index can be stale."""
        return await self._indexes.expired_runs(self._context.lease_ms, limit)

    async def owned_by(self, owner: str) -> list[str]:
        """Every live run of that worker."""
        response_ids = await self._indexes.live_runs()
        if not response_ids:
            return []
        rows = await self._client.calls(
            *(
                ("HMGET", self._keys.run(session_of(rid), rid), "owner", "status")
                for rid in response_ids
            )
        )
        wanted = owner.encode()
        return [
            response_id
            for response_id, row in zip(response_ids, rows, strict=True)
            if row[0] == wanted and row[1].decode() in LIVE_STATUSES
        ]

    async def touch(self, leases: Mapping[str, int]) -> None:
        """Write response id -> `lease_until` of own runs to the index, every few seconds."""
        if leases:
            await self._client.calls(*self._indexes.runs(leases))

    async def get(self, uid: str | None, response_id: str) -> RunRecord:
        """The run as it is now; `uid` None skips the owner check. Raises `ResponseNotFound`."""
        if not is_response_id(response_id):
            raise ResponseNotFound
        key = self._keys.run(session_of(response_id), response_id)
        run = decode_run(response_id, await self._client.call("HGETALL", key))
        if run is None or owner_argument(uid) not in (None, run.uid):
            raise ResponseNotFound
        return run

    async def events(self, response_id: str, *, after: int = 0) -> list[tuple[int, Event]]:
        """The numbered entries after that number; empty when the log is gone."""
        if not is_response_id(response_id):
            return []
        key = self._keys.events(session_of(response_id), response_id)
        entries = await self._client.call("XRANGE", key, f"{after + 1}-0", "+")
        return [(number, decode_event(data)) for number, data in decode_entries(entries)]

    async def token_ids(self, response_id: str) -> list[int]:
        """Every id that the run's text was decided from, in order."""
        if not is_response_id(response_id):
            return []
        key = self._keys.token_ids(session_of(response_id), response_id)
        return decode_token_ids(await self._client.call("GET", key) or b"")

    async def publish(
        self, response_id: str, *, fence: int, first: int, events: Sequence[Event]
    ) -> None:
        """Tell those who watch of entries that are stored nowhere: the end of a deleted one."""
        head = f"r {response_id} {fence} {first} {first + len(events) - 1}".encode()
        payload = b"\n".join([head, *map(encode_event, events)])
        channel = self._keys.session_channel(session_of(response_id))
        await self._client.call(PUBLISH, channel, payload)
