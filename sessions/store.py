"""`SessionStore`: conversations, runs and their logs in Redis, which outlive every connection.

Each method is one promise. Whatever changes more than one key is a Lua script, so it happens whole
or not at all, and may be repeated with the same arguments: a lost reply never doubles anything.
All ids are checked by shape before Redis sees them,
and `uid` decides whose they are: a foreign id is answered exactly like an unknown one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

from sessions.records import (
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
)


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
        raise NotImplementedError

    async def close(self) -> None:
        """Fail what is still waiting and close the connection. May be called twice."""
        raise NotImplementedError

    async def ping(self) -> None:
        """Return if Redis answers within a second and can write."""
        raise NotImplementedError

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
        raise NotImplementedError

    async def session(self, uid: str | None, session_id: str) -> Session:
        """The session as it is now; `uid` None skips the owner check. Raises `SessionNotFound`."""
        raise NotImplementedError

    async def sessions(
        self, uid: str, *, limit: int = 50, cursor: str | None = None
    ) -> SessionPage:
        """A user's sessions, newest updated first. Raises `InvalidCursor`."""
        raise NotImplementedError

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
        raise NotImplementedError

    async def delete_session(
        self, uid: str | None, session_id: str, *, by: str = "user"
    ) -> DeletedSession:
        """Remove the session, its messages and all its runs, and publish `session.deleted`.

        A late append or finish finds nothing and re-creates nothing (`RunGone`). What stays is a
        tombstone for an hour and the idempotency keys, which hold no text. Works when Redis'
        memory is full. Raises `SessionNotFound`.
        """
        raise NotImplementedError

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
        raise NotImplementedError

    async def message(self, uid: str | None, session_id: str, message_id: str) -> Message:
        """One message with its whole text. Raises `SessionNotFound`, `MessageNotFound`."""
        raise NotImplementedError

    async def session_events(
        self, session_id: str, *, after: int, epoch: str | None = None
    ) -> list[SessionEvent] | None:
        """Every event after that offset, or None when the log no longer reaches back to it.

        Also None for a position beyond the log, under another `epoch`, or of a session that is
        gone: the caller sends a snapshot instead.
        """
        raise NotImplementedError

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
        raise NotImplementedError

    async def append(
        self,
        response_id: str,
        *,
        fence: int,
        first: int,
        events: Sequence[Event],
        token_ids: Sequence[int] = (),
        text_length: int = 0,
        status: str = "",
        fields: Mapping[str, str | int] | None = None,
    ) -> AppendReply:
        """Store and publish entries `first`, `first` + 1, … and renew the lease.

        With no events only the lease is renewed (`first` is ignored). `token_ids` are those behind
        these events. `status` "in_progress" marks the start of decoding; `fields` sets others of
        the run (`prompt_from`, …). One append in flight per run. A repeat after a lost reply
        answers `repeated` and stores nothing twice.

        This is the proof that nothing is stored after an end. Raises `RunLost`, `RunEnded`,
        `RunGone`, `SequenceGap`.
        """
        raise NotImplementedError

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
        raise NotImplementedError

    async def cancel_early(
        self, uid: str, session_id: str, idempotency_key: str, ttl_seconds: float = 10.0
    ) -> str | None:
        """Stop a response that is not known yet: the wish waits for its `begin_response`.

        Returns the id if the key has begun one already (then nothing was stored: cancel that one).
        Raises `SessionNotFound`.
        """
        raise NotImplementedError

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
        raise NotImplementedError

    async def reap(
        self, response_id: str, *, new_owner: str, exited_owner: str | None = None
    ) -> Reaped:
        """Take over a run whose lease ended, or whose owner is known to be dead.

        `exited_owner` names a process that is proved gone: its lease need not end. From then on
        the old owner's fence is refused. Raises `RunLive`, `RunEnded`, `RunGone`.
        """
        raise NotImplementedError

    async def expired_runs(self, limit: int = 100) -> list[str]:
        """Runs that may be due for `reap`, which alone decides: this index can be stale."""
        raise NotImplementedError

    async def runs_owned_by(self, owner: str) -> list[str]:
        """Every live run of that worker."""
        raise NotImplementedError

    async def touch_run_index(self, leases: Mapping[str, int]) -> None:
        """Write response id -> `lease_until` of own runs to the index, every few seconds."""
        raise NotImplementedError

    async def run(self, uid: str | None, response_id: str) -> RunRecord:
        """The run as it is now; `uid` None skips the owner check. Raises `ResponseNotFound`."""
        raise NotImplementedError

    async def events(self, response_id: str, *, after: int = 0) -> list[tuple[int, Event]]:
        """The numbered entries after that number; empty when the log is gone."""
        raise NotImplementedError

    async def token_ids(self, response_id: str) -> list[int]:
        """Every id that the run's text was decided from, in order."""
        raise NotImplementedError

    async def kept_token_ids(
        self, session_id: str, message_ids: Iterable[str]
    ) -> dict[str, list[int]]:
        """The ids kept by `finish_response` for those of the messages that have any."""
        raise NotImplementedError

    async def live_responses(self, session_id: str) -> LiveResponses:
        """The active response and those queued behind it; empty for a session that is gone."""
        raise NotImplementedError

    # ---- messages between workers, limits -------------------------------------------------------

    async def publish_user(self, uid: str, frame: Mapping[str, Any]) -> None:
        """Send a frame to every worker that has this user connected. It is not stored."""
        raise NotImplementedError

    async def publish_control(self, replica: str, command: Mapping[str, Any]) -> bool:
        """Send a command to one worker; False means that nobody listened. It is not stored."""
        raise NotImplementedError

    async def take_rate(
        self, uid: str, field: str, *, interval_seconds: float, burst: int, cost: int = 1
    ) -> Allowed | Limited:
        """Take `cost` from a bucket that holds `burst` and gains one per `interval_seconds`."""
        raise NotImplementedError
