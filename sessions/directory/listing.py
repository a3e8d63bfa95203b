"""The operators' view: everybody's sessions a page at a time, and the answers that are running.

One page costs the same whether there are a thousand sessions or a million: a few places from each
shard of the index, then the hashes of what is shown. Nothing is scanned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sessions.connection.client import RedisClient
from sessions.directory.finding.called import Called
from sessions.indexes.indexes import Indexes, local_ms
from sessions.indexes.pages import Place, cursor_of, newest_after, parse_cursor
from sessions.model.codec import decode_body, decode_count, decode_run
from sessions.model.errors import ResponseNotFound, SessionNotFound
from sessions.model.ids import check_session_id, session_of
from sessions.model.keys import INDEX_GRACE_MS, SHARDS, Keys
from sessions.model.records import LIVE_STATUSES, Message, RunRecord

MAX_EXAMINED: Final = 2000  # sessions that one page looks at for a filter that no index answers
EXAMINED_AT_ONCE: Final = 500
# fmt: off
Order = Literal[
    "age", "-age", "tokens", "-tokens", "rate", "-rate",
    "user", "-user", "model", "-model", "worker", "-worker", "state", "-state",
]
# fmt: on
VIEWERS_MS: Final = 60_000  # a worker repeats its count of viewers well within that
MESSAGES_AT_ONCE: Final = 100  # while an answer's message is looked for
MAX_RUNS: Final = 20  # of one session, in its details

_SESSION_FIELDS: Final = (
    "uid",
    "title",
    "model",
    "created_at",
    "updated_at",
    "message_count",
    "input_tokens",
    "output_tokens",
    "active_response_id",
    "pinned",
    "locked",
)
_RUN_FIELDS: Final = (
    "status",
    "uid",
    "owner",
    "fence",
    "model",
    "created_at",
    "first_token_at",
    "num_tokens",
    "cancel",
)


@dataclass(frozen=True, slots=True)
class LiveRun:
    """An answer that has not ended."""

    response_id: str
    uid: str
    status: str
    owner: str
    fence: int
    model: str
    created_at: int
    first_token_at: int | None
    num_tokens: int
    cancel: bool

    @property
    def place(self) -> Place:
        """Where it stands in the list of live answers."""
        return self.created_at, session_of(self.response_id)

    def tokens_per_s(self, now_ms: int) -> float | None:
        """The rate since the first token; None before there are two."""
        if self.first_token_at is None or self.num_tokens < 2 or now_ms <= self.first_token_at:
            return None
        return round((self.num_tokens - 1) * 1000 / (now_ms - self.first_token_at), 1)


@dataclass(frozen=True, slots=True)
class ListedSession:
    """A session as a list shows it."""

    id: str
    uid: str
    user_name: str | None
    title: str
    model: str
    created_at: int
    updated_at: int
    message_count: int
    input_tokens: int
    output_tokens: int
    pinned: bool
    locked: str  # why, or empty
    viewers: Mapping[str, int]  # by replica
    num_queued: int
    run: LiveRun | None


@dataclass(frozen=True, slots=True)
class Listed:
    """Pass `next_cursor` on for more, None means no more. `now_ms` is Redis' clock.

    `examined`: how many sessions were looked at, where no index answers; None elsewhere.
    """

    sessions: tuple[ListedSession, ...]
    next_cursor: str | None
    now_ms: int
    examined: int | None = None


@dataclass(frozen=True, slots=True)
class _Row:
    """What one round of questions says of a session."""

    session_id: str
    values: dict[str, str]
    viewers: dict[str, int]


class Listing:
    """Any method may raise `StoreUnavailable`, and `InvalidCursor` where it takes a cursor."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._indexes = Indexes(client, keys)
        self._called = Called(client, keys)

    async def sessions(
        self,
        limit: int = 50,
        cursor: str | None = None,
        *,
        uids: Sequence[str] | None = None,
        model: str | None = None,
        oldest_first: bool = False,
    ) -> Listed:
        """Sessions, newest updated first: all of them, or some users', or those of a model.

        A page of a model looks at so many sessions, as `titled` does.
        """
        keys = (
            [key(uid) for uid in uids for key in self._keys_of_user]
            if uids is not None
            else self._shards
        )
        if model is not None:
            wanted = model.encode()
            return await self._sought(
                "model", lambda value: value == wanted, keys, limit, cursor, oldest_first
            )
        position = parse_cursor(cursor)
        rows: list[_Row] = []
        examined, now_ms, more = 0, 0, True
        while more and len(rows) < limit and examined < MAX_EXAMINED:
            places = await newest_after(
                self._client, keys, position, limit - len(rows) + 1, oldest_first=oldest_first
            )
            more = len(places) > limit - len(rows)
            places = places[: limit - len(rows)]
            if not places:
                break
            examined += len(places)
            position = places[-1]
            found, now_ms = await self._rows(places)
            rows += [row for row in found if row is not None]
        next_cursor = cursor_of(position) if more and position is not None else None
        return Listed(await self._listed(rows), next_cursor, now_ms)

    async def titled(self, text: str, limit: int = 50, cursor: str | None = None) -> Listed:
        """Those of all sessions whose title holds a text, newest updated first.

        A page looks at so many sessions; it may hold fewer than `limit` and still have a cursor.
        """
        wanted = text.casefold()
        return await self._sought(
            "title",
            lambda title: wanted in title.decode().casefold(),
            self._shards,
            limit,
            cursor,
        )

    async def _sought(
        self,
        field: str,
        fits: Callable[[bytes], bool],
        keys: Sequence[str],
        limit: int,
        cursor: str | None,
        oldest_first: bool = False,
    ) -> Listed:
        """Those sessions of these indexes of which a field fits, where no index has that."""
        position = parse_cursor(cursor)
        fitting: list[Place] = []
        examined, more = 0, True
        while more and len(fitting) < limit and examined < MAX_EXAMINED:
            places = await newest_after(
                self._client, keys, position, EXAMINED_AT_ONCE, oldest_first=oldest_first
            )
            more = len(places) == EXAMINED_AT_ONCE
            ids = [session_id for _, session_id in places]
            values = await self._client.read_each(self._of(ids, "m"), "HGET", field)
            for place, value in zip(places, values, strict=True):
                position = place
                examined += 1
                if value is not None and fits(value):
                    fitting.append(place)
                    if len(fitting) == limit:
                        more = True
                        break
        rows, now_ms = await self._rows(fitting)
        next_cursor = cursor_of(position) if more and position is not None else None
        shown = await self._listed([row for row in rows if row is not None])
        return Listed(shown, next_cursor, now_ms, examined)

    async def live(
        self,
        limit: int = 50,
        cursor: str | None = None,
        *,
        uids: Collection[str] | None = None,
        model: str | None = None,
        replica: str | None = None,
        order: Order = "age",
    ) -> Listed:
        """Sessions with an answer that is running or waiting, in this order."""
        position = parse_cursor(cursor)
        first: dict[str, LiveRun] = {}
        for run in await self.live_runs():
            if (uids is None or run.uid in uids) and model in (None, run.model):
                session_id = session_of(run.response_id)
                if replica in (None, run.owner) and (
                    session_id not in first or run.created_at < first[session_id].created_at
                ):
                    first[session_id] = run
        if order == "age":
            places = sorted((run.place for run in first.values()), reverse=True)
            rest = [place for place in places if position is None or place < position]
            more = cursor_of(rest[limit - 1]) if len(rest) > limit else None
        else:  # what it is ordered by changes: a cursor is how many were shown
            value = await self._value_of(order.strip("-"), first.values())
            runs = sorted(first.values(), key=lambda run: run.place, reverse=True)
            runs.sort(key=value, reverse=order.startswith("-"))
            places = [run.place for run in runs]
            shown = 0 if position is None else position[0]
            rest = places[shown:]
            more = cursor_of((shown + limit, order.strip("-"))) if len(rest) > limit else None
        rows, now_ms = await self._rows(rest[:limit], keep_index=True)
        return Listed(await self._listed([row for row in rows if row is not None]), more, now_ms)

    async def _value_of(self, name: str, runs: Iterable[LiveRun]) -> Callable[[LiveRun], Any]:
        """What these answers are ordered by."""
        match name:
            case "user":
                names = await self._called.users({run.uid for run in runs})
                return lambda run: names.get(run.uid, run.uid).casefold()
            case "rate":
                now_ms = await self._client.now_ms()
                return lambda run: run.tokens_per_s(now_ms) or 0.0
            case "tokens":
                return lambda run: run.num_tokens
            case "model":
                return lambda run: run.model
            case "worker":
                return lambda run: run.owner
            case "state":
                return lambda run: "stopping" if run.cancel else run.status
            case _:  # the youngest comes first
                return lambda run: -run.created_at

    async def live_runs(self) -> list[LiveRun]:
        """Every answer that has not ended, on whichever worker."""
        return await self._runs(await self._indexes.live_runs())

    async def session(self, session_id: str) -> tuple[ListedSession, list[RunRecord], int]:
        """One session, its answers that are still known, newest first, and Redis' clock.

        Raises `SessionNotFound`.
        """
        check_session_id(session_id)
        (row,), now_ms = await self._rows([(0, session_id)], keep_index=True)
        if row is None:
            raise SessionNotFound
        (listed,) = await self._listed([row])
        ids = await self._client.call("ZRANGE", self._keys.session(session_id, "runs"), 0, -1)
        rids = [response_id.decode() for response_id in ids[-MAX_RUNS:]]
        stored = await self._client.calls(
            *(("HGETALL", self._keys.run(session_id, rid)) for rid in rids)
        )
        runs = [decode_run(rid, fields) for rid, fields in zip(rids, stored, strict=True)]
        known = [run for run in runs if run is not None]
        return listed, sorted(known, key=lambda run: run.created_at, reverse=True), now_ms

    async def answer(self, response_id: str) -> Message:
        """The message that a response wrote, however long ago. Raises `ResponseNotFound`."""
        session_id = session_of(response_id)
        check_session_id(session_id)
        entries = await self._client.call("LRANGE", self._keys.session(session_id, "tree"), 0, -1)
        ids = [entry.split(b" ")[0] for entry in reversed(entries)]
        for start in range(0, len(ids), MESSAGES_AT_ONCE):
            bodies = await self._client.call(
                "HMGET",
                self._keys.session(session_id, "msg"),
                *ids[start : start + MESSAGES_AT_ONCE],
            )
            for message in (decode_body(body) for body in bodies if body is not None):
                if message.response_id == response_id:
                    return message
        raise ResponseNotFound

    async def num_sessions(self) -> int:
        """How many sessions there are; exact, but for entries on their way in or out."""
        return sum(await self._client.read_each(self._shards, "ZCARD"))

    # ---- inside ---------------------------------------------------------------------------------

    @property
    def _shards(self) -> list[str]:
        """Where all sessions are listed."""
        return [self._keys.sessions_shard(shard) for shard in SHARDS]

    @property
    def _keys_of_user(self) -> tuple[Callable[[str], str], ...]:
        """Where a user's sessions are listed."""
        return self._keys.user_sessions, self._keys.user_hidden_sessions

    async def _rows(
        self, places: Sequence[Place], *, keep_index: bool = False
    ) -> tuple[list[_Row | None], int]:
        """The sessions at these places, None where one is gone, and Redis' clock."""
        ids = [session_id for _, session_id in places]
        now_ms, fields, viewers = await asyncio.gather(
            self._client.now_ms(),
            self._client.read_each(self._of(ids, "m"), "HMGET", *_SESSION_FIELDS),
            self._client.read_each(self._of(ids, "v"), "HGETALL"),
        )
        rows: list[_Row | None] = []
        for session_id, values, counts in zip(ids, fields, viewers, strict=True):
            if values[0] is None:
                rows.append(None)
                continue
            texts = ((value or b"").decode() for value in values)
            named = dict(zip(_SESSION_FIELDS, texts, strict=True))
            rows.append(_Row(session_id, named, _current(counts, now_ms - VIEWERS_MS)))
        if not keep_index:
            await self._drop_stale(places, rows)
        return rows, now_ms

    async def _drop_stale(self, places: Sequence[Place], rows: Sequence[_Row | None]) -> None:
        """Index entries whose session is gone, unless they are so young that it may be coming."""
        oldest = local_ms() - INDEX_GRACE_MS
        stale = [
            ("ZREM", self._keys.all_sessions(sid), sid)
            for (updated_at, sid), row in zip(places, rows, strict=True)
            if row is None and updated_at < oldest
        ]
        if stale:
            await self._indexes.settle(stale)

    async def _runs(self, response_ids: Sequence[str]) -> list[LiveRun]:
        """Those of these answers that have not ended."""
        keys = [self._keys.run(session_of(rid), rid) for rid in response_ids]
        rows = await self._client.read_each(keys, "HMGET", *_RUN_FIELDS)
        runs = []
        for response_id, values in zip(response_ids, rows, strict=True):
            texts = ((value or b"").decode() for value in values)
            row = dict(zip(_RUN_FIELDS, texts, strict=True))
            if row["status"] in LIVE_STATUSES:
                runs.append(_live_run(response_id, row))
        return runs

    async def _listed(self, rows: Sequence[_Row]) -> tuple[ListedSession, ...]:
        """With the active answer of each session, how many wait, and the name of its user.

        None waits where no answer is active, so only the busy are asked.
        """
        active = {rid: row.session_id for row in rows if (rid := row.values["active_response_id"])}
        runs, lengths, name_of = await asyncio.gather(
            self._runs(list(active)),
            self._client.read_each(self._of(active.values(), "q"), "LLEN"),
            self._called.users({row.values["uid"] for row in rows}),
        )
        run_of = {run.response_id: run for run in runs}
        num_queued = dict(zip(active.values(), lengths, strict=True))
        return tuple(
            _listed_session(
                row,
                run_of.get(row.values["active_response_id"]),
                num_queued.get(row.session_id, 0),
                name_of.get(row.values["uid"]),
            )
            for row in rows
        )

    def _of(self, session_ids: Iterable[str], suffix: str) -> list[str]:
        return [self._keys.session(session_id, suffix) for session_id in session_ids]


def _current(viewers: Sequence[bytes], oldest: int) -> dict[str, int]:
    """How many watch on each replica, by the counts (`number counted_at`) that are not too old."""
    pairs = zip(viewers[::2], viewers[1::2], strict=True)
    counts = {name.decode(): value.split() for name, value in pairs}
    return {name: int(number) for name, (number, at) in counts.items() if int(at) > oldest}


def _live_run(response_id: str, row: Mapping[str, str]) -> LiveRun:
    return LiveRun(
        response_id=response_id,
        uid=row["uid"],
        status=row["status"],
        owner=row["owner"],
        fence=int(row["fence"]),
        model=row["model"],
        created_at=int(row["created_at"]),
        first_token_at=int(row["first_token_at"]) if row["first_token_at"] else None,
        num_tokens=int(row["num_tokens"] or 0),
        cancel=row["cancel"] == "1",
    )


def _listed_session(
    row: _Row, run: LiveRun | None, num_queued: int, user_name: str | None
) -> ListedSession:
    values = row.values
    return ListedSession(
        id=row.session_id,
        uid=values["uid"],
        user_name=user_name,
        title=values["title"],
        model=values["model"],
        created_at=int(values["created_at"]),
        updated_at=int(values["updated_at"]),
        message_count=int(values["message_count"]),
        input_tokens=decode_count(values["input_tokens"]),
        output_tokens=decode_count(values["output_tokens"]),
        pinned=values["pinned"] == "1",
        locked=values["locked"],
        viewers=row.viewers,
        num_queued=num_queued,
        run=run,
    )
