"""`Filling`: what a big server keeps in Redis, stored in a minute or two.

All of it is as the server stores it. Running answers and workers are nobody's: they live as long as
`stay_alive` says so again.
"""

import base64
import itertools
import random
import time

import msgspec

from server.telemetry.stats import CORE_COUNTS, LONG_STEP_SECONDS, STEP_SECONDS, Sample
from sessions.connection.client import Command
from sessions.directory.notices import Notices
from sessions.directory.replicas import Replicas
from sessions.directory.samples import SPAN_MS
from sessions.indexes.indexes import Indexes
from sessions.store.store import SessionStore
from tests.sessions.helpers.many_sessions import session_ids, store_many_sessions

GIVEN = ("Ada", "Grace", "Alan", "Radia", "Edsger", "Barbara", "Donald", "Katherine")
WORKERS = tuple(f"worker{number}" for number in range(4))
BUSY_SHARE = 0.02  # of all sessions are one user's
NUM_GROUPS = 200
NUM_SHARES = 5_000
NUM_AUDITED = 100_000
AT_ONCE = 1_000
LIFE_MS = 60_000  # of a running answer that nobody runs


class Filling:
    """What is stored, by the ids that the views ask for."""

    def __init__(self, store: SessionStore, num_sessions: int, num_users: int, live: int) -> None:
        self._store = store
        self._client, self._keys = store.client, store.keys
        self._num_sessions = num_sessions
        self._chance = random.Random(1)
        self.users = [self._id("usr_") for _ in range(num_users)]
        self.busy_user = self.users[0]
        self.groups = [self._id("grp_") for _ in range(NUM_GROUPS)]
        self.sessions = list(itertools.islice(session_ids(0), min(num_sessions, NUM_SHARES)))
        self.live = {sid: f"resp_{sid[4:]}{'r' * 11}" for sid in self.sessions[:live]}

    def _id(self, kind: str) -> str:
        text = base64.urlsafe_b64encode(self._chance.randbytes(16)).rstrip(b"=").decode()
        return kind + text

    async def store_all(self) -> None:
        busy = [self.busy_user] * int(BUSY_SHARE * len(self.users))
        await store_many_sessions(self._store, self._num_sessions, 0, [*self.users, *busy])
        await self._store_users()
        await self._store_groups()
        await self._store_shares()
        await self._store_audit()
        await self._store_samples()
        await self._store_live()
        notices = Notices(self._client, self._keys)
        await notices.put("info", "Tonight at ten we update the server.", 86_400, "admin")

    async def stay_alive(self) -> None:
        """Of the answers that run, and of the workers."""
        now_ms = await self._client.now_ms()
        indexes = Indexes(self._client, self._keys)
        until = now_ms + LIFE_MS
        await self._client.calls(*indexes.runs(dict.fromkeys(self.live.values(), until)))
        figures = {name: 12 for name in ("connections", "active_responses", "queued_responses")}
        for worker in WORKERS:
            await Replicas(self._client, self._keys).beat(worker, {"host": "far", **figures})

    async def move(self) -> None:
        """A few more tokens in each of the answers that run."""
        runs = [self._keys.run(sid, rid) for sid, rid in self.live.items()]
        more = self._chance.randrange
        await self._send([("HINCRBY", run, "num_tokens", more(1, 30)) for run in runs])

    async def redis_megabytes(self) -> float:
        told = bytes(await self._client.call("INFO", "memory")).decode()
        used = dict(line.split(":") for line in told.splitlines() if ":" in line)
        return int(used["used_memory"]) / 1e6

    # ---- inside ---------------------------------------------------------------------------------

    async def _send(self, commands: list[Command]) -> None:
        for start in range(0, len(commands), AT_ONCE):
            await self._client.calls(*commands[start : start + AT_ONCE])

    async def _store_users(self) -> None:
        commands: list[Command] = []
        for number, uid in enumerate(self.users):
            name = f"{self._chance.choice(GIVEN)} {number}"
            fields = ("name", name, "roles", "user", "created_at", number, "disabled", "")
            commands.append(("ZADD", self._keys.users, number, uid))
            commands.append(("HSET", self._keys.user_record(uid), *fields))
        await self._send(commands)

    async def _store_groups(self) -> None:
        commands: list[Command] = []
        for number, gid in enumerate(self.groups):
            quotas = ("tokens_per_day", 10**6, "sessions", 10**5, "answers", 100)
            record = ("name", f"Group {number}", "created_at", number, *quotas)
            commands.append(("ZADD", self._keys.groups, number, gid))
            commands.append(("HSET", self._keys.group_record(gid), *record))
            for uid in self.users[number :: len(self.groups)]:
                commands.append(("ZADD", self._keys.group_members(gid), number, uid))
                commands.append(("HSET", self._keys.user_record(uid), "group", gid))
        await self._send(commands)

    async def _store_shares(self) -> None:
        commands: list[Command] = []
        for at, sid in enumerate(self.sessions):
            shared = ("id", "shr_" + sid[4:] * 2, "title", f"Shared {at}", "shared_at", at)
            commands.append(("ZADD", self._keys.shares, at, sid))
            commands.append(("HSET", self._keys.session(sid, "share"), *shared, "snapshot", ""))
        await self._send(commands)

    async def _store_audit(self) -> None:
        audit = self._keys.audit
        commands: list[Command] = []
        for number in range(NUM_AUDITED):
            target = self._chance.choice(self.sessions)
            said = ("reason", "spam", "address", "192.0.2.1")
            entry = ("actor", "admin", "action", "session.read", "target", target, *said)
            commands.append(("XADD", audit, f"{number + 1}-0", *entry))
        await self._send(commands)

    async def _store_samples(self) -> None:
        """What so many workers keep when nothing is missing."""
        now = time.time_ns() // 1_000_000
        commands: list[Command] = []
        for span, step_seconds in (STEP_SECONDS | LONG_STEP_SECONDS).items():
            for place in range(SPAN_MS[span] // (step_seconds * 1000)):
                at = now - place * step_seconds * 1000
                for worker in WORKERS:
                    body = msgspec.json.encode(sample_of(at, worker, step_seconds))
                    commands.append(("ZADD", self._keys.samples(span), at, body))
        await self._send(commands)

    async def _store_live(self) -> None:
        now_ms = await self._client.now_ms()
        commands: list[Command] = []
        for number, (sid, rid) in enumerate(self.live.items()):
            at = now_ms - number * 10
            uid = await self._client.call("HGET", self._keys.session(sid, "m"), "uid")
            # fmt: off
            run = (
                "uid", uid, "status", "in_progress", "fence", 1, "owner", WORKERS[number % 4],
                "sequence_number", 1, "lease_until", at + 10**9, "cancel", 0, "message_id", "m",
                "parent_id", "", "created_at", at, "first_token_at", at + 5, "model",
                "parley-demo", "num_tokens", self._chance.randrange(2000),
            )
            # fmt: on
            commands.append(("HSET", self._keys.run(sid, rid), *run))
            commands.append(("HSET", self._keys.session(sid, "m"), "active_response_id", rid))
            commands.append(("ZADD", self._keys.session(sid, "runs"), "+inf", rid))
        await self._send(commands)


def sample_of(at: int, replica: str, seconds: float) -> Sample:
    states = ("connections", "active_responses", "queued_responses", "batch_size", "kv_usage")
    bounds = [str(2**power / 1000) for power in range(13)]
    return Sample(
        at=at,
        replica=replica,
        host="host",
        seconds=seconds,
        now=dict.fromkeys(states, 12.0),
        counts={f"closes.{code}": 12.0 for code in range(1000, 1010)},
        core=dict.fromkeys(CORE_COUNTS, 4242.0),
        times={name: dict.fromkeys(bounds, 7.0) for name in ("ttft_ms", "inter_token_ms")},
    )
