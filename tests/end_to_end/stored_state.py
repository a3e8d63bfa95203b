"""What Redis holds of all sessions, read behind a test: what the history checker believes.

Reads with SCAN, straight from the server: the store's own reading code is under test.
"""

import json
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import redis

LIVE = ("queued", "in_progress")


@dataclass
class StoredRun:
    """One run: its hash, its log (number → entry) and its number of token ids."""

    fields: dict[str, str] = field(default_factory=dict)
    events: list[tuple[int, Any]] = field(default_factory=list)
    num_token_ids: int = 0
    expiries: dict[str, int] = field(default_factory=dict)  # r, e, tok → ms, -1 for never

    @property
    def status(self) -> str:
        return self.fields.get("status", "")

    @property
    def is_live(self) -> bool:
        return self.status in LIVE

    def text_at(self, number: int) -> str:
        """The text that the log's entries up to this number spell, without what it continues."""
        return "".join(e[2] for n, e in self.events if n <= number and isinstance(e, list))

    @property
    def text_start(self) -> int:
        """What the message had already, in UTF-16 units: more than 0 where it is continued."""
        created = self.events[0][1] if self.events else {}
        length: int = created.get("response", {}).get("text_length", 0)
        return length


@dataclass
class StoredSession:
    fields: dict[str, str] = field(default_factory=dict)  # `m`; empty when deleted
    messages: dict[str, dict[str, Any]] = field(default_factory=dict)
    tree: list[tuple[str, str]] = field(default_factory=list)  # id, parent id
    log: list[tuple[int, Any]] = field(default_factory=list)
    queue: list[str] = field(default_factory=list)
    runs: dict[str, StoredRun] = field(default_factory=lambda: defaultdict(StoredRun))
    idempotency: dict[str, str] = field(default_factory=dict)  # key → `response_id hash`
    has_tombstone: bool = False
    suffixes: dict[str, int] = field(default_factory=dict)  # of every key → its expiry in ms


@dataclass
class Stored:
    """One moment of a store."""

    now_ms: int
    sessions: dict[str, StoredSession]
    live_index: set[str]
    all_sessions: set[str]
    sessions_of: dict[str, set[str]]  # user → session ids
    foreign_keys: list[str]  # not under the prefix
    is_served: bool = True  # somebody takes over what is left, and cleans up

    def run(self, response_id: str) -> StoredRun | None:
        """The run with that id, None where its keys are gone."""
        for session in self.sessions.values():
            if response_id in session.runs and session.runs[response_id].fields:
                return session.runs[response_id]
        return None

    def live_runs(self) -> dict[str, StoredRun]:
        return {
            response_id: run
            for session in self.sessions.values()
            for response_id, run in session.runs.items()
            if run.is_live
        }


def read_store(url: str, prefix: str = "parley:") -> Stored:
    """Read the store at this address. Raises redis.RedisError where it does not answer."""
    options: dict[str, Any] = {"socket_timeout": 5, "protocol": 2}
    client: Any = redis.Redis.from_url(url, **options)
    try:
        if client.info("cluster").get("cluster_enabled"):
            client.close()
            client = redis.RedisCluster.from_url(url, **options)
        return _read(client, prefix)
    finally:
        client.close()


def _read(client: Any, prefix: str) -> Stored:
    seconds, microseconds = client.time() if not hasattr(client, "get_nodes") else _time(client)
    stored = Stored(int(seconds) * 1000 + int(microseconds) // 1000, {}, set(), set(), {}, [])
    stored.sessions = defaultdict(StoredSession)
    names = [name.decode() for name in client.scan_iter(count=1000)]
    pipe = client.pipeline(transaction=False) if not hasattr(client, "get_nodes") else None
    for start in range(0, len(names), 500):
        part = names[start : start + 500]
        if pipe is None:
            kinds = [client.type(name) for name in part]
            expiries = [client.pttl(name) for name in part]
        else:
            for name in part:
                pipe.type(name)
                pipe.pttl(name)
            replies = pipe.execute()
            kinds, expiries = replies[::2], replies[1::2]
        for name, kind, expiry in zip(part, kinds, expiries, strict=True):
            if not name.startswith(prefix):
                stored.foreign_keys.append(name)
            elif expiry != -2:
                _take(stored, client, name, name.removeprefix(prefix), kind.decode(), expiry)
    stored.sessions = dict(stored.sessions)
    return stored


def _time(client: Any) -> Any:
    return client.time(target_nodes=client.get_random_node())


def _take(stored: Stored, client: Any, name: str, short: str, kind: str, expiry: int) -> None:
    if short.startswith("c:{"):
        session_id, _, suffix = short.removeprefix("c:{").partition("}:")
        session = stored.sessions[session_id]
        session.suffixes[suffix] = expiry
        _take_session_key(session, suffix, _value(client, name, kind), expiry)
    elif short.startswith("a:run:"):
        members = client.zrange(name, 0, -1)
        stored.live_index |= {_decode(member).split(":")[-1] for member in members}
    elif short.startswith("a:s:"):
        stored.all_sessions |= {_decode(member) for member in client.zrange(name, 0, -1)}
    elif short.startswith("u:{") and short.endswith("}:s"):
        uid = short.removeprefix("u:{").removesuffix("}:s")
        stored.sessions_of[uid] = {_decode(member) for member in client.zrange(name, 0, -1)}


def _take_session_key(session: StoredSession, suffix: str, value: Any, expiry: int) -> None:
    head, _, rest = suffix.partition(":")
    match head:
        case "m":
            session.fields = {_decode(k): _decode(v) for k, v in value.items()}
        case "msg":
            session.messages = {_decode(k): _body(v) for k, v in value.items()}
        case "tree":
            pairs = [_decode(line).partition(" ") for line in value]
            session.tree = [(message_id, parent) for message_id, _, parent in pairs]
        case "log":
            session.log = value
        case "q":
            session.queue = [_decode(item) for item in value]
        case "x":
            session.has_tombstone = True
        case "i":
            session.idempotency[rest] = _decode(value)
        case "r":
            session.runs[rest].fields = {
                _decode(k): v.decode(errors="replace") for k, v in value.items()
            }
            session.runs[rest].expiries["r"] = expiry
        case "e":
            session.runs[rest].events = value
            session.runs[rest].expiries["e"] = expiry
        case "tok":
            session.runs[rest].num_token_ids = len(value) // 4
            session.runs[rest].expiries["tok"] = expiry


def _value(client: Any, name: str, kind: str) -> Any:
    match kind:
        case "hash":
            return client.hgetall(name)
        case "list":
            return client.lrange(name, 0, -1)
        case "zset":
            return client.zrange(name, 0, -1)
        case "stream":
            return [
                (int(number.split(b"-")[0]), json.loads(fields[b"d"]))
                for number, fields in client.xrange(name)
            ]
    return client.get(name) or b""


def _decode(value: bytes) -> str:
    return value.decode()


def _body(value: bytes) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(zlib.decompress(value[5:]) if value[:1] == b"z" else value)
    return body
