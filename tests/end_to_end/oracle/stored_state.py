"""What Redis holds of all sessions, read after a test: what the history checker believes.

Read straight from the server, in one moment: the store's own reading code is under test, and an
answer may be running.
"""

import json
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import redis

from sessions.connection.address import RedisAddress
from tests.helpers.patience import PATIENCE

LIVE = ("queued", "in_progress")
SLOW_SECONDS = 30.0  # for a machine that computes other things to read all that is stored
READ_ALL = """
local commands = {
  hash = {'HGETALL'}, list = {'LRANGE', 0, -1}, zset = {'ZRANGE', 0, -1},
  stream = {'XRANGE', '-', '+'}, string = {'GET'},
}
local found = {}
for _, name in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', name).ok
  local command = commands[kind]
  local value = command and redis.call(command[1], name, unpack(command, 2)) or ''
  table.insert(found, {name, kind, redis.call('PTTL', name), value})
end
return {redis.call('TIME'), found}
"""


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
    kept: dict[str, dict[str, Any]] = field(default_factory=dict)  # by response id
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
    client = _client(url)
    try:
        return _read(client, prefix)
    finally:
        client.close()


def flush_store(url: str, prefix: str = "parley:") -> Stored:
    """FLUSHALL; returns what there was in the moment before. Raises redis.RedisError."""
    with redis.Redis.from_url(url, socket_timeout=PATIENCE, protocol=2) as client:
        commands: Any = client.pipeline()
        read, _ = commands.eval(READ_ALL, 0).flushall().execute()
    return _structure(read, prefix)


def _client(url: str) -> Any:
    """A client for any of the urls that a server takes."""
    options: dict[str, Any] = {"socket_timeout": SLOW_SECONDS, "protocol": 2}
    address = RedisAddress.parse(url)
    if address.kind == "cluster":
        host, port = address.nodes[0]
        return redis.RedisCluster(host=host, port=port, **options)
    if address.kind == "sentinel":
        sentinels: Any = redis.Sentinel
        return sentinels(address.nodes, **options).master_for(address.service)
    return redis.Redis.from_url(url, **options)


def _read(client: Any, prefix: str) -> Stored:
    read = _read_cluster(client) if hasattr(client, "get_nodes") else client.eval(READ_ALL, 0)
    return _structure(read, prefix)


def _structure(read: Any, prefix: str) -> Stored:
    (seconds, microseconds), found = read
    stored = Stored(int(seconds) * 1000 + int(microseconds) // 1000, {}, set(), set(), {}, [])
    stored.sessions = defaultdict(StoredSession)
    for key, kind, expiry, value in found:
        name = key.decode()
        if name.startswith(prefix):
            _take(stored, name.removeprefix(prefix), _structured(kind.decode(), value), expiry)
        else:
            stored.foreign_keys.append(name)
    stored.sessions = dict(stored.sessions)
    return stored


def _read_cluster(client: Any) -> Any:
    """What READ_ALL gives, of all nodes, in many moments."""
    now = client.time(target_nodes=client.get_random_node())
    found = []
    for name in client.scan_iter(count=1000):
        kind, expiry = client.type(name), client.pttl(name)
        if expiry != -2:
            found.append((name, kind, expiry, _value(client, name, kind)))
    return now, found


def _value(client: Any, name: bytes, kind: bytes) -> Any:
    match kind:
        case b"hash":
            return [item for pair in client.hgetall(name).items() for item in pair]
        case b"list":
            return client.lrange(name, 0, -1)
        case b"zset":
            return client.zrange(name, 0, -1)
        case b"stream":
            return client.execute_command("XRANGE", name, "-", "+")
    return client.get(name) or b""


def _structured(kind: str, value: Any) -> Any:
    """Hashes as dicts, streams as numbers with their objects."""
    match kind:
        case "hash":
            return dict(zip(value[::2], value[1::2], strict=True))
        case "stream":
            return [(int(n.split(b"-")[0]), json.loads(_field(fields))) for n, fields in value]
    return value


def _field(fields: Any) -> bytes:
    """The field `d` of an entry; of streams that are no logs, such as the audit's, nothing."""
    pairs = (
        fields if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=True))
    )
    value: bytes = pairs.get(b"d", b"null")
    return value


def _take(stored: Stored, short: str, value: Any, expiry: int) -> None:
    if short.startswith("c:{"):
        session_id, _, suffix = short.removeprefix("c:{").partition("}:")
        session = stored.sessions[session_id]
        session.suffixes[suffix] = expiry
        _take_session_key(session, suffix, value, expiry)
    elif short.startswith("a:run:"):
        stored.live_index |= {_decode(member).split(":")[-1] for member in value}
    elif short.startswith("a:s:"):
        stored.all_sessions |= {_decode(member) for member in value}
    elif short.startswith("u:{") and short.endswith(("}:s", "}:h")):
        uid = short.removeprefix("u:{")[: -len("}:s")]
        stored.sessions_of.setdefault(uid, set()).update(map(_decode, value))


def _take_session_key(session: StoredSession, suffix: str, value: Any, expiry: int) -> None:
    head, _, rest = suffix.partition(":")
    match head:
        case "m":
            session.fields = {_decode(k): _decode(v) for k, v in value.items()}
        case "msg":
            bodies = {_decode(k): _body(v) for k, v in value.items()}
            session.messages = {k: v for k, v in bodies.items() if k.startswith("msg_")}
            session.kept = {k: v for k, v in bodies.items() if k.startswith("resp_")}
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


def _decode(value: bytes) -> str:
    return value.decode()


def _body(value: bytes) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(zlib.decompress(value[5:]) if value[:1] == b"z" else value)
    return body
