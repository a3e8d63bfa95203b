"""`Cluster`: each command to the primary that owns its key's slot, on one `Link` for a primary.

All keys of a session share a hash tag, so a script and the commands around it meet on one node and
keep their order; between nodes there is none. A command that a node redirects (MOVED, ASK,
TRYAGAIN) is sent once more; a second redirect is an outage, because a moving slot settles within
seconds.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from redis import exceptions
from redis.asyncio.connection import AbstractConnection
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from sessions.background import start
from sessions.connection.address import Node, RedisAddress
from sessions.connection.link import Argument, Call, Link, translate
from sessions.connection.scripts import Scripts
from sessions.model.errors import StoreUnavailable

logger = logging.getLogger("parley.sessions")

TRY_AGAIN_SECONDS: Final = 0.05
REFRESH_SECONDS: Final = 0.1  # between two looks at the slots while a node is away
# Of the commands that are sent, those whose first argument is no key: any node may answer them.
KEYLESS: Final = frozenset({"CLIENT", "CONFIG", "ECHO", "INFO", "PING", "SCRIPT", "TIME"})


def slot_of(command: Iterable[Argument]) -> int | None:
    """The slot that a command is about; None if any node will do. A channel counts as a key."""
    name, *arguments = command
    if name in KEYLESS:
        return None
    key = arguments[2] if name in ("EVAL", "EVALSHA") else arguments[0]
    return key_slot(key if isinstance(key, bytes) else str(key).encode())


class Cluster:
    """The primaries, which slots they own, and a link to each."""

    def __init__(self, address: RedisAddress, scripts: Scripts, timeout_seconds: float) -> None:
        self._address = address
        self._scripts = scripts
        self.timeout_seconds = timeout_seconds
        self._links: dict[Node, Link] = {}
        self._owners: list[Node | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        self.primaries: tuple[Node, ...] = ()  # that own a slot, as far as is known
        self._parked: list[Call] = []  # until the slots are known
        self._refresh_task: asyncio.Task[None] | None = None
        # No `Background`: the refresh is awaited by others than who starts it, and a task that is
        # cancelled here fails its call.
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshed_at = float("-inf")
        self._is_known = False
        self._closed = False

    def owner(self, key: str) -> Node | None:
        """The primary that owns the key's slot, as far as is known."""
        return self._owners[key_slot(key.encode())]

    def enqueue(self, call: Call) -> None:
        """Send the call to its slot's primary, with the others of this tick."""
        if self._closed:
            raise StoreUnavailable("the session store is closed")
        if not self._is_known:
            self._parked.append(call)
            self._refresh()
            return
        slot = slot_of(call.command)
        node = self.primaries[0] if slot is None else self._owners[slot]
        if node is None:
            call.fail(exceptions.ClusterDownError(f"no node owns slot {slot}"))
            self._refresh()
        else:
            self._link(node).enqueue(call)

    def enqueue_at(self, node: Node, call: Call) -> None:
        """Send the call to that primary, even if its slot is elsewhere."""
        self._link(node).enqueue(call)

    async def ready(self) -> tuple[Node, ...]:
        """The primaries; asks for them if need be. Raises `StoreUnavailable`."""
        if not self._is_known:
            self._refresh()
            assert self._refresh_task is not None
            await asyncio.shield(self._refresh_task)
        if not self._is_known:
            raise StoreUnavailable("Redis cannot be used: no node of the cluster answers")
        return self.primaries

    async def connect(self, *, protocol: int) -> AbstractConnection:
        """A connection to any primary."""
        node = random.choice(await self.ready())
        try:
            return await self._open(node, protocol=protocol)
        except (OSError, exceptions.RedisError):
            self._refresh()
            raise

    def set_timeout(self, seconds: float) -> None:
        """How long a batch may take on every link."""
        self.timeout_seconds = seconds
        for link in self._links.values():
            link.timeout_seconds = seconds

    async def close(self) -> None:
        """Fail what still waits, close every connection. May be called twice."""
        self._closed = True
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fail_parked(StoreUnavailable("the session store is closed"))
        for link in self._links.values():
            await link.close()

    # ---- links -----------------------------------------------------------------------------------

    def _link(self, node: Node) -> Link:
        if node not in self._links:
            self._links[node] = Link(
                lambda: self._open(node, protocol=3),
                self._scripts,
                self.timeout_seconds,
                redirect=self._redirect,
                on_failure=self._refresh,
            )
        return self._links[node]

    async def _open(self, node: Node, *, protocol: int) -> AbstractConnection:
        return await self._address.connect(
            node, protocol=protocol, timeout_seconds=self.timeout_seconds
        )

    def _redirect(self, call: Call, error: Exception) -> None:
        """A node sent the call elsewhere, or wants it a little later."""
        if call.is_redirected or self._closed:
            call.fail(error)
            return
        call.is_redirected = True
        with suppress(StoreUnavailable):  # only while closing; the call is failed there
            if isinstance(error, exceptions.MovedError):
                node = self._node_of(error)
                self._owners[error.slot_id] = node  # the look at all slots comes later
                self._refresh()
                self._link(node).enqueue(call)
            elif isinstance(error, exceptions.AskError):
                call.is_asking = True
                self._link(self._node_of(error)).enqueue(call)
            else:
                self._spawn(self._try_again(call))

    async def _try_again(self, call: Call) -> None:
        try:
            await asyncio.sleep(TRY_AGAIN_SECONDS)
            self.enqueue(call)
        except (asyncio.CancelledError, StoreUnavailable) as error:
            call.fail(StoreUnavailable("the session store is closed"))
            if isinstance(error, asyncio.CancelledError):
                raise

    def _node_of(self, error: exceptions.AskError) -> Node:
        host = error.host or (self.primaries or self._address.nodes)[0][0]
        return host, error.port

    # ---- slots -----------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Look at the slots again, unless somebody does."""
        if self._refresh_task is None and not self._closed:
            self._refresh_task = self._spawn(self._run_refresh())

    async def _run_refresh(self) -> None:
        try:
            loop = asyncio.get_running_loop()
            if self._is_known:
                await asyncio.sleep(self._refreshed_at + REFRESH_SECONDS - loop.time())
            self._refreshed_at = loop.time()
            slots = await self._first_answer([*dict.fromkeys([*self._links, *self._address.nodes])])
            self._take(slots)
            parked, self._parked = self._parked, []
            for call in parked:
                self.enqueue(call)
        except Exception as error:
            if not isinstance(translate(error), StoreUnavailable):
                logger.warning("cluster slots not read", extra={"error": type(error).__name__})
            self._fail_parked(error)
        finally:
            self._refresh_task = None

    async def _first_answer(self, nodes: list[Node]) -> list[tuple[int, int, Node]]:
        """The slots as the first node sees them that answers."""
        asking = [start(self._ask(node)) for node in nodes]
        errors: list[Exception] = []
        try:
            for answer in asyncio.as_completed(asking):
                try:
                    return await answer
                except Exception as error:
                    errors.append(error)
            raise errors[0]
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, node: Node) -> list[tuple[int, int, Node]]:
        async with asyncio.timeout(self.timeout_seconds):
            connection = await self._open(node, protocol=3)
            try:
                await connection.send_command("CLUSTER", "SLOTS")
                reply = await connection.read_response()
            finally:
                await connection.disconnect(nowait=True)
        slots = [
            (first, last, (_host(primary[0]) or node[0], int(primary[1])))
            for first, last, primary, *_ in reply
        ]
        if not slots:
            raise exceptions.ClusterDownError("no slots are assigned")
        return slots

    def _take(self, slots: list[tuple[int, int, Node]]) -> None:
        owners: list[Node | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, node in slots:
            owners[first : last + 1] = [node] * (last + 1 - first)
        self._owners = owners
        self.primaries = tuple(dict.fromkeys(node for _, _, node in slots))
        self._is_known = True

    def _fail_parked(self, error: BaseException) -> None:
        parked, self._parked = self._parked, []
        for call in parked:
            call.fail(error)

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = start(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _host(name: bytes | None) -> str:
    """A node's announced host; empty for one that does not know its own."""
    return "" if name in (None, b"?") else name.decode()
