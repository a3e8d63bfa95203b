"""`Appends`: what is new of many runs, stored and published by one script call.

Each append gets its own outcome: one that is refused keeps no other one waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from redis.exceptions import ResponseError

from sessions.connection.client import Argument
from sessions.connection.link import translate
from sessions.model.codec import MANAGED_RUN_FIELDS
from sessions.model.errors import (
    CancelPending,
    RunEnded,
    RunGone,
    RunLost,
    SequenceGap,
    SessionError,
    StoreUnavailable,
)
from sessions.model.ids import is_response_id, session_of
from sessions.model.replies import AppendReply
from sessions.store.context import StoreContext

logger = logging.getLogger("parley.sessions")

MAX_APPENDS: Final = 64  # of one script: Redis does nothing else for a millisecond
MAX_APPEND_BYTES: Final = 256 * 1024  # of their entries, but any one append goes whole


class RunLog(msgspec.Struct):
    """What the log of one run is called in Redis, made once for all that is written there."""

    response_id: str
    run_keys: Sequence[str]  # of its hash, its entries, its token ids
    channel: str


class Append(msgspec.Struct, eq=False):  # made for each append, as its reply is
    """Entries `first`, `first` + 1, … of one run and what comes with them; none: a renewal."""

    log: RunLog
    fence: int
    first: int
    entries: Sequence[bytes] = ()
    token_ids: bytes = b""
    text_length: int | str = "-"
    status: str = ""
    fields: Sequence[Argument] = ()
    # Called once with what became of it, each time that it is sent.
    answered: Callable[[AppendReply | Exception], None] = lambda outcome: None

    @property
    def last(self) -> int:
        """The number of its last entry."""
        return self.first + len(self.entries) - 1


class Listener(Protocol):
    """Where this worker hears what is published: `LiveFeed`."""

    @property
    def own_channel(self) -> str: ...

    def hears(self, channel: str) -> bool: ...


class Appends:
    """Writes to the logs of runs, under their owners' fences."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._client = context.client
        self._keys = context.keys
        self._may_count = True  # who listens to a channel, as far as is known

    def log_of(self, response_id: str) -> RunLog:
        """The names that an `Append` needs. Raises `RunGone` for what is no response id."""
        if not is_response_id(response_id):
            raise RunGone
        session_id = session_of(response_id)
        keys = self._context.run_keys(session_id, response_id)
        return RunLog(response_id, keys, self._keys.session_channel(session_id))

    def send(
        self,
        appends: Iterable[Append],
        *,
        listener: Listener | None = None,
        lease_seconds: float | None = None,
    ) -> None:
        """Store and publish what is new of many runs, and renew their leases: `append` for each.

        All of them go in one script, or in a few where they are many or large, and in a cluster
        in one for each slot. Each gets its own outcome: a reply, a refusal that `append`
        would raise, or `StoreUnavailable`, after which it may be stored and is repeated as
        it was. What nobody but `listener` would hear is not published.
        """
        if self._client.is_cluster or not self._may_count:
            listener = None  # in a cluster each node counts its own subscribers alone
        lease_ms = self._context.lease_ms if lease_seconds is None else int(lease_seconds * 1000)
        for group in self._client.by_slot(appends, lambda append: append.log.run_keys[0]):
            for part in _parts_of(group):
                self._send_part(part, listener, lease_ms)

    def _send_part(self, part: list[Append], listener: Listener | None, lease_ms: int) -> None:
        keys: list[str] = []
        channels, heads, token_ids = [], [], []
        fields: list[Argument] = []
        entries: list[bytes] = []
        for append in part:
            log = append.log
            own_listeners = 1 if listener is not None and listener.hears(log.channel) else 0
            keys += log.run_keys
            channels.append(log.channel)
            heads.append(
                f"{log.response_id} {append.fence} {append.first} {append.status or '-'} "
                f"{append.text_length} {own_listeners} {len(append.fields)} "
                f"{len(append.entries)} {len(append.token_ids)}"
            )
            token_ids.append(append.token_ids)
            fields += append.fields
            entries += append.entries
        run = self._client.script_run(
            "append",
            keys,
            lease_ms=lease_ms,
            feed_channel=None if listener is None else listener.own_channel,
            token_ids=b"".join(token_ids),
            channels=channels,
            heads=heads,
            fields=fields,
            entries=entries,
        )
        try:
            call = self._client.enqueue(run)
        except StoreUnavailable as error:
            _tell_all(part, error)
            return
        call.add_done_callback(lambda reply: self._take_replies(part, reply))

    def _take_replies(self, part: list[Append], call: asyncio.Future[Any]) -> None:
        if call.cancelled():
            _tell_all(part, StoreUnavailable("the session store is closed"))
        elif (error := call.exception()) is not None:
            assert isinstance(error, Exception)
            _tell_all(part, error)
        else:
            _, is_denied, replies = call.result()
            if is_denied:
                self._may_count = False
            for append, reply in zip(part, replies, strict=True):
                if reply[0] == b"ok":
                    _tell(append, AppendReply(reply[1] == 1, reply[2]))
                else:
                    _tell(append, _refusal(append, reply))

    async def write(self, append: Append, lease_seconds: float | None = None) -> AppendReply:
        """Send one append and wait for its reply, which nobody else gets.

        Raises what `append` does.
        """
        future: asyncio.Future[AppendReply | Exception] = asyncio.get_running_loop().create_future()

        def take(outcome: AppendReply | Exception) -> None:
            if not future.cancelled():
                future.set_result(outcome)

        append.answered = take
        self.send([append], lease_seconds=lease_seconds)
        outcome = await future
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def field_arguments(
    own: Mapping[str, str | int], fields: Mapping[str, str | int] | None
) -> list[Argument]:
    """Name and value pairs for a run hash; raises `ValueError` for a field that scripts manage."""
    if managed := MANAGED_RUN_FIELDS & set(fields or ()):
        raise ValueError(f"run fields {sorted(managed)} are set by the store")
    return [part for pair in {**(fields or {}), **own}.items() for part in pair]


def optional_number(text: bytes) -> int | None:
    """A number that a script may leave empty."""
    return int(text) if text else None


def run_error(reply: Sequence[Any]) -> SessionError:
    """The error that a refusal to write a run means."""
    word, *rest = reply
    match word:
        case b"lost":
            return RunLost(rest[0], rest[1].decode())
        case b"ended":
            status, reason, sequence_number, engine, text_length, fence = rest
            return RunEnded(
                status.decode(),
                reason.decode(),
                sequence_number,
                engine.decode(),
                text_length,
                fence,
            )
        case b"gap":
            return SequenceGap(rest[0], num_tokens=rest[-1])
        case b"cancelled":
            return CancelPending(optional_number(rest[0]), rest[1].decode(), rest[2].decode())
        case _:
            return RunGone()


def _parts_of(appends: Sequence[Append]) -> Iterator[list[Append]]:
    """As many as one script takes."""
    part: list[Append] = []
    size = 0
    for append in appends:
        more = sum(map(len, append.entries))
        if part and (len(part) == MAX_APPENDS or size + more > MAX_APPEND_BYTES):
            yield part
            part, size = [], 0
        part.append(append)
        size += more
    if part:
        yield part


def _refusal(append: Append, reply: Sequence[Any]) -> AppendReply | Exception:
    """What the script says of an append that it has not stored now."""
    if reply[0] == b"gap" and reply[1] >= append.last:
        return AppendReply(reply[2] == 1, reply[3], repeated=True)
    if reply[0] == b"error":
        error = translate(ResponseError(reply[1].decode(errors="replace")))
        assert isinstance(error, Exception)
        return error
    return run_error(reply)


def _tell_all(part: Iterable[Append], error: Exception) -> None:
    for append in part:
        _tell(append, error)


def _tell(append: Append, outcome: AppendReply | Exception) -> None:
    """The others get theirs even if its writer fails over it."""
    try:
        append.answered(outcome)
    except Exception:
        logger.exception("append's outcome not taken")
