"""`SessionStore`: conversations, runs and their logs in Redis, which outlive every connection.

Each method is one promise. What changes more than one key is a Lua script, so it happens whole
or not at all, and may be repeated with the same arguments: a lost reply never doubles anything.
All ids are checked by shape before Redis sees them, and `uid` decides whose they are: a foreign id
is answered exactly like an unknown one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Self, TypedDict, Unpack

import orjson

from sessions.connection.checks import check_redis, find_faults, read_identity
from sessions.connection.client import TIMEOUT_SECONDS, RedisClient
from sessions.model.arguments import check_uid
from sessions.model.ids import check_session_id
from sessions.model.keys import PROBE_MS, Keys
from sessions.model.quotas import Quotas
from sessions.model.replies import StoreFault
from sessions.store.appends.append import Appends
from sessions.store.context import PUBLISH, StoreContext
from sessions.store.copies import Copies
from sessions.store.kept.responses import KeptResponses
from sessions.store.messages import Messages
from sessions.store.queues import Queues
from sessions.store.quotas.allowances import Allowances
from sessions.store.quotas.budgets import Budgets
from sessions.store.quotas.group_sessions import GroupSessions
from sessions.store.quotas.slots import Slots
from sessions.store.responses import Responses
from sessions.store.runs import Runs
from sessions.store.session_lists import SessionLists
from sessions.store.sessions import Sessions
from sessions.store.shares import Shares
from sessions.store.viewers import Viewers


class StoreOptions(TypedDict, total=False):
    """What `SessionStore.connect` takes."""

    prefix: str
    secret: str | None
    timeout_seconds: float
    lease_seconds: float
    keep_seconds: float
    idempotency_seconds: float
    idle_seconds: float
    quotas: Quotas | None


class SessionStore:
    """The one store: its parts, on one connection.

    Any method of a part may raise `StoreUnavailable`; a cancelled one harms no other.
    """

    def __init__(self, context: StoreContext, *, secret: str | None = None) -> None:
        self.context = context
        self.client = context.client
        self.keys = context.keys
        self.lists = SessionLists(context)
        self.allowances = Allowances(context.client, context.keys)
        self.group_sessions = GroupSessions(context, self.allowances)
        self.sessions = Sessions(context, self.lists, self.group_sessions)
        self.messages = Messages(context)
        self.copies = Copies(context, self.sessions, self.messages)
        self.shares = Shares(context)
        self.budgets = Budgets(context, self.allowances)
        self.responses = Responses(context)
        self.kept_responses = KeptResponses(context)
        self.queues = Queues(context)
        self.appends = Appends(context)
        self.runs = Runs(context, self.budgets, self.appends)
        self.slots = Slots(context, self.allowances)
        self.viewers = Viewers(context)
        self._secret = secret
        # Of the data that Redis had when we last looked; None until it has said.
        self._identity: str | None = None

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        prefix: str = "parley:",
        secret: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        lease_seconds: float = 10.0,
        keep_seconds: float = 600.0,
        idempotency_seconds: float = 86400.0,
        idle_seconds: float = 0.0,
        quotas: Quotas | None = None,
    ) -> Self:
        """A store that raises `StoreUnavailable` for every call, until `verify` has returned.

        Servers on one Redis must give the same `secret`, if any. Raises `ValueError` for a
        malformed url or prefix.
        """
        client = RedisClient(url, timeout_seconds=timeout_seconds)
        client.is_trusted = False
        context = StoreContext(
            client,
            Keys(prefix),
            lease_seconds=lease_seconds,
            keep_seconds=keep_seconds,
            idempotency_seconds=idempotency_seconds,
            idle_seconds=idle_seconds,
            quotas=quotas,
        )
        return cls(context, secret=secret)

    @classmethod
    async def open(cls, url: str, **options: Unpack[StoreOptions]) -> Self:
        """A store on a Redis that was checked; see `connect` and `verify` for what they raise."""
        store = cls.connect(url, **options)
        try:
            await store.verify()
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def is_verified(self) -> bool:
        """Whether this Redis was checked."""
        return self.client.is_trusted

    async def verify(self) -> None:
        """Check that this Redis can keep our promises, and use it from now on.

        Raises `StoreUnavailable` when nothing answers, and `StoreRefused`, with one line for the
        operator, when that server would lose data or does not have a command.
        """
        client = RedisClient(self.client.url, timeout_seconds=self.client.timeout_seconds)
        try:
            self._identity = await check_redis(client, self.keys, secret=self._secret)
        finally:
            await client.close()
        self.client.is_trusted = True

    async def close(self) -> None:
        """Fail what is still waiting and close the connection. May be called twice."""
        await self.client.close()

    # ---- the state of Redis ----------------------------------------------------------------------

    async def ping(self) -> bool:
        """Return if every primary answers in time; False if the data was lost meanwhile.

        Lost means that somebody flushed it, or started Redis without it.
        """
        identity, _ = await asyncio.gather(
            read_identity(self.client, self.keys), self.client.everywhere("PING")
        )
        known, self._identity = self._identity, identity or self._identity
        return known in (None, self._identity)

    async def now_ms(self) -> int:
        """Redis' clock, by which leases and stored moments are dated."""
        return await self.client.now_ms()

    async def check_writes(self) -> None:
        """Return if every primary takes writes that need memory and disk."""
        keys = await self.client.key_for_each_primary(f"{self.keys.prefix}sys:probe")
        await self.client.calls(*(("SET", key, "", "PX", PROBE_MS) for key in keys))

    async def check_removals(self, session_id: str) -> None:
        """Return if what keeps this session takes writes that need no memory."""
        check_session_id(session_id)
        await self.client.call("UNLINK", self.keys.session(session_id, "probe"))

    async def find_faults(self) -> list[StoreFault]:
        """What an operator must mend although everything works so far."""
        return await find_faults(self.client)

    # ---- messages between workers, limits --------------------------------------------------------

    async def publish_user(self, uid: str, frame: Mapping[str, Any]) -> None:
        """Send a frame to every worker that has this user connected. It is not stored."""
        check_uid(uid)
        await self.client.call(PUBLISH, self.keys.user_channel(uid), orjson.dumps(dict(frame)))

    async def publish_control(self, replica: str, command: Mapping[str, Any]) -> bool:
        """Send a command to one worker; False means that nobody listened. It is not stored.

        A cluster's node counts its own listeners alone, so there True means nothing.
        """
        channel = self.keys.control_channel(replica)
        receivers = await self.client.call(PUBLISH, channel, orjson.dumps(dict(command)))
        return int(receivers) > 0 or self.client.address.kind == "cluster"
