"""The store's part for queues: what waits in a session to be asked, and which sessions to look at.

A queue is read, changed as a value, and written if it is still the one that was read; where nothing
waits, something is added unread. The index of queues is written before its data: a crash leaves an
entry too many, which a look at it drops.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from sessions.connection.client import ScriptRun
from sessions.model.arguments import check_idempotency_key, check_owner, check_uid
from sessions.model.errors import (
    IdempotencyKeyReused,
    QueueChanged,
    SessionLocked,
    SessionNotFound,
    StoreUnavailable,
)
from sessions.model.ids import check_session_id
from sessions.model.queue import (
    LOOK_AFTER_MS,
    QUEUE_FIELDS,
    QUEUED,
    REMOVED,
    NextRound,
    Queue,
    QueuedInput,
    decode_queue,
)
from sessions.model.replies import AddedInput, Turn, WrittenQueue
from sessions.store.context import StoreContext
from sessions.store.turns import decode_turn, turn_commands

MAX_TRIES: Final = 8  # each means that somebody else changed the queue in between


class QueueIndex:
    """Which sessions to look at, since something of theirs is to begin by itself."""

    def __init__(self, context: StoreContext, key: str) -> None:
        self._client = context.client
        self._key = key

    async def look_later(self, session_id: str, after_ms: int = LOOK_AFTER_MS) -> None:
        """Have the session looked at after that time, by whichever worker does."""
        await self._client.calls(self.entering(session_id, after_ms))

    def entering(self, session_id: str, after_ms: int = LOOK_AFTER_MS) -> ScriptRun:
        """The same, to stand before what writes the data."""
        check_session_id(session_id)
        return self._client.script_run(
            "enter_queue", [self._key], session_id=session_id, after_ms=after_ms
        )

    async def due(self, limit: int = 100) -> dict[str, int]:
        """Sessions that are to be looked at, each with the mark that `forget` takes.

        Until `LOOK_AFTER_MS` later they are no other worker's to look at.
        """
        _, mark, session_ids = await self._client.script(
            "take_due_queues", [self._key], limit=limit, after_ms=LOOK_AFTER_MS
        )
        return dict.fromkeys((row.decode() for row in session_ids), int(mark))

    async def forget(self, session_id: str, mark: int) -> None:
        """Nothing begins there by itself; no-op if it was entered again since `due`."""
        await self._client.script(
            "forget_queue", [self._key], session_id=session_id, looked_at=mark
        )


class Queues:
    """Queues of sessions."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._client = context.client
        self._keys = context.keys
        self.index = QueueIndex(context, context.keys.queues)
        # One of its own, which no worker of an older version finds empty of questions and clears.
        self.rounds = QueueIndex(context, context.keys.rounds)

    async def get(self, uid: str | None, session_id: str) -> Queue:
        """The queue as it is now; `uid` None skips the owner check. Raises `SessionNotFound`."""
        check_session_id(session_id)
        key = self._keys.session(session_id, "m")
        owner, *values = await self._client.call("HMGET", key, "uid", *QUEUE_FIELDS)
        check_owner(uid, owner)
        return decode_queue(values)

    async def turn(self, session_id: str) -> Turn:
        """What may begin by itself there now. Raises `SessionNotFound`."""
        check_session_id(session_id)
        uid = await self._client.call("HGET", self._keys.session(session_id, "m"), "uid")
        commands = turn_commands(self._context, session_id, (uid or b"").decode())
        turn = decode_turn(session_id, await self._client.calls(*commands))
        if turn is None:
            raise SessionNotFound
        return turn

    async def add(
        self, uid: str, session_id: str, item: QueuedInput, place: int | None = None
    ) -> AddedInput:
        """Keep something to be asked, once for each idempotency key.

        Raises `SessionNotFound`, `SessionLocked`, `QueueFull`, and `IdempotencyKeyReused` for a
        key that stands for something else.
        """
        check_idempotency_key(item.idempotency_key)
        key = self._keys.idempotency(session_id, item.idempotency_key)
        value = f"{QUEUED} {item.body_hash}"
        old: Queue | None = None  # most often nothing waits there, and it need not be read
        for _ in range(MAX_TRIES):
            if old is not None and (waiting := old.find(item.id)) is not None:
                return _added(f"{QUEUED} {waiting.body_hash}", item)  # its key may have expired
            new = (old or Queue()).added(item, place)
            match await self._write(uid, session_id, old, new, key, value):
                case Queue() as old:
                    continue
                case WrittenQueue() as written:
                    return AddedInput("waiting", written=written)
                case known:
                    return _added(known, item)
        raise StoreUnavailable("the queue kept changing")

    async def change(
        self, uid: str, session_id: str, change: Callable[[Queue], Queue]
    ) -> WrittenQueue:
        """Write what `change` makes of the queue; it is called again when somebody was faster.

        Raises `SessionNotFound`, and what `change` does.
        """
        for _ in range(MAX_TRIES):
            old = await self.get(uid, session_id)
            try:
                return await self._change(uid, session_id, old, change(old))
            except QueueChanged:
                pass
        raise StoreUnavailable("the queue kept changing")

    async def remove(self, uid: str, session_id: str, item_id: str) -> WrittenQueue:
        """Withdraw what waits. Raises `SessionNotFound` and `ItemNotFound`."""
        for _ in range(MAX_TRIES):
            old = await self.get(uid, session_id)
            item = old.item(item_id)
            key = self._keys.idempotency(session_id, item.idempotency_key)
            value = f"{REMOVED} {item.body_hash}"
            try:
                return await self._change(uid, session_id, old, old.without([item]), key, value)
            except QueueChanged:
                pass
        raise StoreUnavailable("the queue kept changing")

    async def drop_round(
        self, session_id: str, next_round: NextRound, *, pauses: bool = False
    ) -> bool:
        """It does not follow by itself any more; False if it has begun, or is not there.

        `pauses`: nor does what waits in the queue, since a user has stopped it.
        """
        reply = await self._client.script(
            "drop_round",
            self._context.session_keys(session_id, "m", "log"),
            channel=self._keys.session_channel(session_id),
            next_round=next_round.encode(),
            pauses=1 if pauses else None,
            **self._context.log_limits,
        )
        return int(reply[1]) == 1

    # ---- inside ---------------------------------------------------------------------------------

    async def _change(
        self,
        uid: str,
        session_id: str,
        old: Queue,
        new: Queue,
        key: str | None = None,
        value: str | None = None,
    ) -> WrittenQueue:
        written = await self._write(uid, session_id, old, new, key, value, adds=False)
        if isinstance(written, Queue):
            raise QueueChanged
        assert isinstance(written, WrittenQueue)
        return written

    async def _write(
        self,
        uid: str,
        session_id: str,
        old: Queue | None,
        new: Queue,
        key: str | None,
        value: str | None,
        *,
        adds: bool = True,
    ) -> WrittenQueue | Queue | str:
        """The queue in place of `old`: of an empty one, if that is None.

        Or what it is instead, or what the key of an added input stands for already. Whatever is
        changed, something may begin by it.
        """
        check_uid(uid)
        *_, reply = await self._client.calls_in_order(
            self.index.entering(session_id),
            self._client.script_run(
                "write_queue",
                [*self._context.session_keys(session_id, "m", "log"), *([key] if key else [])],
                channel=self._keys.session_channel(session_id),
                uid=uid,
                call_id=secrets.token_urlsafe(6),
                revision=None if old is None else old.revision,
                queue=new.encode(),
                shown=new.encode_shown(),
                paused=1 if new.is_paused else None,
                adds=1 if adds else None,
                key_value=value,
                idempotency_ms=self._context.idempotency_ms,
                **self._context.log_limits,
                queue_fields=QUEUE_FIELDS,
            ),
        )
        match reply[0]:
            case b"ok":
                return WrittenQueue(new, reply[1], reply[2].decode() or None)
            case b"changed":
                return decode_queue(reply[1])
            case b"known":
                return str(reply[1].decode())
            case b"locked":
                raise SessionLocked(reply[1].decode())
            case _:
                raise SessionNotFound


def _added(known: str, item: QueuedInput) -> AddedInput:
    """What became of an input whose key is known. Raises `IdempotencyKeyReused`."""
    word, _, body_hash = known.partition(" ")
    if word == "cancelled":  # a stop came first
        return AddedInput("removed")
    if body_hash != item.body_hash:
        raise IdempotencyKeyReused(word)
    if word == QUEUED:
        return AddedInput("waiting")
    if word == REMOVED:
        return AddedInput("removed")
    return AddedInput("begun", response_id=word)
