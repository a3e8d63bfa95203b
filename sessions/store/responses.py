"""The store's part for what begins: responses, their idempotency keys, who waits in a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NoReturn

import orjson

from sessions.connection.scripts import Argument, Value
from sessions.indexes.indexes import local_ms
from sessions.model.arguments import check_idempotency_key, check_uid, owner_argument
from sessions.model.codec import encode_body
from sessions.model.errors import (
    IdempotencyKeyReused,
    MessageChanged,
    MessageNotFound,
    QueueChanged,
    QueueFull,
    ResponseInProgress,
    SessionLocked,
    SessionNotFound,
    StoreUnavailable,
)
from sessions.model.ids import check_session_id, is_message_id, is_response_id, session_of
from sessions.model.queue import NextRound, TakenInput
from sessions.model.records import UNSET, Message, Unset
from sessions.model.replies import BegunResponse, LiveResponses
from sessions.store.appends.append import field_arguments
from sessions.store.context import StoreContext

MAX_MOVES: Final = 8  # each means that another response began in between


class Responses:
    """Begins runs."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._client = context.client
        self._indexes = context.indexes
        self._keys = context.keys

    async def begin(
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
        taken: TakenInput | None = None,
        next_round: NextRound | None = None,
        before: Sequence[Message] = (),
        kept: bytes | None = None,
    ) -> BegunResponse:
        """Store both messages and a run that `owner` holds, once for each idempotency key.

        `before` are stored before the user message, each under the one before it, and `kept` is
        what a door keeps of what it was asked (`KeptResponses`).

        Checked in this order: session and user, key, lock, parent, busy. With `parent_id` UNSET
        the messages follow the session's head of that very moment: the user message is stored
        under the parent that `BegunResponse.parent_id` names (its own `parent_id` serves as a first
        guess). Without a user message (regenerate, continue) give the parent. To continue an
        assistant message, `continues` is the version that `Messages.with_version` gave: the message
        is replaced, and not counted again. `created_event` becomes entry 1 of the response's log.

        `taken`: the question leaves the session's queue, which must be as it was read. Likewise
        `next_round`: this is what follows by itself. Either way nothing else begins by itself.

        Never stops another response. Raises `SessionNotFound`, `IdempotencyKeyReused`,
        `SessionLocked`, `MessageNotFound` (the parent), `ResponseInProgress`, `QueueFull`,
        `MessageChanged` (the one to continue), `QueueChanged`, `QuotaExceeded`.
        """
        check_session_id(session_id)
        check_uid(uid)
        check_idempotency_key(idempotency_key)
        if not is_response_id(response_id) or session_of(response_id) != session_id:
            raise ValueError("the response id must carry its session's id")
        follows_head = parent_id is UNSET and user_message is not None
        if isinstance(parent_id, Unset):
            parent_id = (*before, user_message or assistant_message)[0].parent_id
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
                uid=uid,
                body_hash=body_hash,
                on_busy=on_busy,
                owner=owner,
                parent_id=parent_id,
                parent_is="head" if follows_head else "given",
                before=_messages_before(before, parent_id),
                kept=kept,
                **_message_arguments("user", user_message, before[-1].id if before else parent_id),
                **_message_arguments(
                    "assistant", assistant_message, user_message.id if user_message else parent_id
                ),
                created_event=orjson.dumps(dict(created_event)),
                max_queued=max_queued,
                continues=continues,
                next_round=None if next_round is None else next_round.encode(),
                queue_revision=None if taken is None else taken.queue.revision,
                queue=None if taken is None else taken.rest.encode(),
                queue_shown=None if taken is None else taken.rest.encode_shown(),
                more_keys=[]
                if taken is None
                else [
                    self._keys.idempotency(session_id, item.idempotency_key)
                    for item in taken.items[1:]
                ],
                fields=run_pairs,
            )
            if reply[0] != b"moved":
                return await self._begun(uid, session_id, response_id, parent_id, reply)
            parent_id = reply[1].decode() or None
        raise StoreUnavailable("the session's head kept moving")

    async def cancel_early(
        self, uid: str, session_id: str, idempotency_key: str, ttl_seconds: float = 10.0
    ) -> str | None:
        """Stop a response that is not known yet: the wish waits for its `begin`.

        Returns the id if the key has begun one already (then nothing was stored: cancel that one).
        Raises `SessionNotFound`.
        """
        check_session_id(session_id)
        check_idempotency_key(idempotency_key)
        reply = await self._client.script(
            "cancel_early",
            [
                self._keys.session(session_id, "m"),
                self._keys.idempotency(session_id, idempotency_key),
            ],
            uid=owner_argument(uid),
            life_ms=int(ttl_seconds * 1000),
        )
        if reply[0] == b"not_found":
            raise SessionNotFound
        return reply[1].decode() if reply[0] == b"known" else None

    async def known(
        self, uid: str, session_id: str, idempotency_key: str
    ) -> tuple[str, str] | None:
        """The response that a key has begun, with the hash of its body; None if there is none.

        Raises `SessionNotFound`.
        """
        check_session_id(session_id)
        check_idempotency_key(idempotency_key)
        owner, value = await self._client.calls(
            ("HGET", self._keys.session(session_id, "m"), "uid"),
            ("GET", self._keys.idempotency(session_id, idempotency_key)),
        )
        if owner is None or owner.decode() != uid:
            raise SessionNotFound
        response_id, _, body_hash = (value or b"").decode().partition(" ")
        return (response_id, body_hash) if body_hash else None

    async def live(self, session_id: str) -> LiveResponses:
        """The active response and those queued after it; empty for a session that is gone."""
        check_session_id(session_id)
        (active, place), queued = await self._client.calls(
            ("HMGET", self._keys.session(session_id, "m"), "active_response_id", "place"),
            ("LRANGE", self._keys.session(session_id, "q"), 0, -1),
        )
        return LiveResponses(
            active=(active or b"").decode() or None,
            queued=tuple(response_id.decode() for response_id in queued),
            place=(place or b"").decode() or None,
        )

    # ---- inside ---------------------------------------------------------------------------------

    async def _begin(
        self,
        session_id: str,
        response_id: str,
        idempotency_key: str,
        **arguments: Value,
    ) -> list[Any]:
        """Index the run, then begin it; a run that did not begin leaves the index again."""
        *_, reply = await self._client.calls_in_order(
            self._indexes.run(response_id, local_ms() + self._context.lease_ms),
            self._client.script_run(
                "begin_response",
                [
                    *self._context.session_keys(session_id, "m", "msg", "log"),
                    self._keys.run(session_id, response_id),
                    self._keys.events(session_id, response_id),
                    self._keys.idempotency(session_id, idempotency_key),
                    *self._context.session_keys(session_id, "q", "runs", "tree", "ids", "share"),
                ],
                channel=self._keys.session_channel(session_id),
                response_id=response_id,
                lease_ms=self._context.lease_ms,
                idempotency_ms=self._context.idempotency_ms,
                **self._context.log_limits,
                max_messages=self._context.quotas.messages_per_session,
                max_bytes=self._context.quotas.bytes_per_session,
                **arguments,
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
            raise self._context.quotas.session_error(reply[1].decode())
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
            hidden=reply[10] == b"1",
            place=reply[11].decode() or None,
        )
        if not replayed:
            await self._indexes.settle(
                [
                    self._indexes.run(response_id, begun.lease_until),
                    *self._indexes.session(uid, session_id, begun.now_ms, hidden=begun.hidden),
                ]
            )
        return begun


def _messages_before(messages: Sequence[Message], parent_id: str | None) -> list[Argument]:
    """Id, parent, stored body and event JSON of each, one under the other."""
    found: list[Argument] = []
    for message in messages:
        placed = message.with_parent(parent_id)
        event = orjson.dumps(placed.event_wire())
        found += [placed.id, parent_id or "", encode_body(placed), event]
        parent_id = placed.id
    return found


def _message_arguments(
    role: str, message: Message | None, parent_id: str | None
) -> dict[str, Argument | None]:
    """Id, stored body and event JSON of a message under that parent; empty without one."""
    if message is None:
        return dict.fromkeys((f"{role}_id", f"{role}_body", f"{role}_json"))
    placed = message.with_parent(parent_id)
    return {
        f"{role}_id": placed.id,
        f"{role}_body": encode_body(placed),
        f"{role}_json": orjson.dumps(placed.event_wire()),
    }


def _raise_begin_error(word: str, detail: str) -> NoReturn:
    """The error that a refusing word of begin_response means."""
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
        case "changed":
            raise MessageChanged
        case "queue_changed":
            raise QueueChanged
        case _:
            raise SessionNotFound
