"""`RedisClient`: commands and scripts, for each kind of url.

One server, the primary that sentinels name, or the primaries of a cluster: each is a `Link`, which
sends all calls of one event-loop tick in one pipeline (a quarter of a pool's CPU for many small
calls) and answers them in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, TypeVar

from redis.asyncio.connection import AbstractConnection
from redis.crc import key_slot

from sessions.connection.address import RedisAddress
from sessions.connection.cluster import Cluster, slot_of
from sessions.connection.link import Argument as Argument
from sessions.connection.link import Call, Link
from sessions.connection.link import Command as Command
from sessions.connection.scripts import Scripts, Value
from sessions.connection.sentinel import connect_to_primary
from sessions.model.errors import StoreUnavailable

T = TypeVar("T")

TIMEOUT_SECONDS: Final = 1.0  # for a whole batch; scripts take microseconds
MAX_READS: Final = 256  # of one script: Redis does nothing else for half a millisecond


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """An EVALSHA on its way, with the name to find the source if Redis has forgotten it."""

    name: str
    command: Command


class RedisClient:
    """Commands and scripts on one connection for each server, batched by tick.

    Calls of one task on one slot are applied in the order they were made, and so are all of them
    where there is no cluster, unless a script had to be loaded again. Raises `ValueError` for a
    malformed url.
    """

    def __init__(self, url: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.url = url
        self.address = RedisAddress.parse(url)
        self.num_calls = 0  # a script counts as one
        self.is_trusted = True  # while False, every call raises `StoreUnavailable`
        self._timeout_seconds = timeout_seconds
        self._scripts = Scripts()
        self._link = Link(self.open_connection, self._scripts, timeout_seconds)
        self._cluster: Cluster | None = None
        if self.address.kind == "cluster":
            self._cluster = Cluster(self.address, self._scripts, timeout_seconds)

    @property
    def is_cluster(self) -> bool:
        return self._cluster is not None

    @property
    def timeout_seconds(self) -> float:
        """How long a batch may take, its connection included."""
        return self._timeout_seconds

    @timeout_seconds.setter
    def timeout_seconds(self, seconds: float) -> None:
        self._timeout_seconds = self._link.timeout_seconds = seconds
        if self._cluster is not None:
            self._cluster.set_timeout(seconds)

    async def open_connection(self, protocol: int = 3) -> AbstractConnection:
        """A connected connection of its own, to the primary or to any of the cluster's."""
        self._check_trust()
        if self._cluster is not None:
            return await self._cluster.connect(protocol=protocol)
        if self.address.kind == "sentinel":
            return await connect_to_primary(
                self.address, protocol=protocol, timeout_seconds=self._timeout_seconds
            )
        return await self.address.connect(protocol=protocol, timeout_seconds=self._timeout_seconds)

    def enqueue(self, command: Command | ScriptRun) -> asyncio.Future[Any]:
        """Send a command with the others of this tick; the future is its reply's.

        Raises `StoreUnavailable` if it cannot be sent at all.
        """
        return self._enqueue(command).future

    async def call(self, *command: Argument) -> Any:
        """Send one command and return its raw reply (RESP3, bytes not decoded)."""
        return await self._enqueue(command).future

    async def now_ms(self) -> int:
        """Redis' clock, in ms since 1970: that of a machine here may be another."""
        seconds, microseconds = await self.call("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def script(self, name: str, keys: Sequence[str], /, **arguments: Value) -> Any:
        """Run one of `lua/` and return its reply; `read_args` in the script names its arguments."""
        return await self._enqueue(self._script_run(name, keys, arguments)).future

    async def calls(self, *commands: Command | ScriptRun) -> list[Any]:
        """Send several commands together; raises the first error after all ended.

        In this order for each slot of a cluster, and in this order anyway without one. They must be
        safe to repeat: those after a script that had to be loaded again, or after a slot that had
        moved, are sent again.
        """
        sent = [self._enqueue(command) for command in commands]
        replies = await asyncio.gather(*(call.future for call in sent), return_exceptions=True)
        late = next((n for n, call in enumerate(sent, 1) if call.is_late), len(sent))
        if late < len(sent):
            replies[late:] = await self.calls(*commands[late:])
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        return replies

    async def calls_in_order(self, *commands: Command | ScriptRun) -> list[Any]:
        """Like `calls`, and in a cluster no slot's commands before those in front of them."""
        if self._cluster is None:
            return await self.calls(*commands)
        replies: list[Any] = []
        for _, group in groupby(commands, lambda command: slot_of(_words(command))):
            replies += await self.calls(*group)
        return replies

    async def read_each(self, keys: Sequence[str], name: str, *words: Argument) -> list[Any]:
        """The reply of one reading command for each key, as one script where slots allow it.

        That is a third of our CPU. Replies are those that Lua knows: a map is a flat list, a score
        is text.
        """
        batches = [
            group[start : start + MAX_READS]
            for group in self.by_slot(keys, lambda key: key)
            for start in range(0, len(group), MAX_READS)
        ]
        answers = await self.calls(
            *(self.script_run("read_each", batch, command=name, words=words) for batch in batches)
        )
        replies: dict[str, Any] = {}
        for batch, (_, answered) in zip(batches, answers, strict=True):
            replies |= zip(batch, answered, strict=True)
        return [replies[key] for key in keys]

    async def send(self, *commands: Command | ScriptRun) -> None:
        """Send commands for their effect alone: wait for no reply, except in a cluster.

        Only there could a later call overtake them. Without one, their errors are dropped.
        """
        if self._cluster is not None:
            await self.calls(*commands)
            return
        for command in commands:
            self._enqueue(command).future.add_done_callback(_drop_error)

    async def everywhere(self, *command: Argument) -> list[Any]:
        """Send one command to every primary; raises the first error after all ended."""
        if self._cluster is None:
            return [await self.call(*command)]
        self._check_trust()
        calls = []
        for node in await self._cluster.ready():
            calls.append(Call(command))
            self._cluster.enqueue_at(node, calls[-1])
        replies = await asyncio.gather(*(c.future for c in calls), return_exceptions=True)
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        return replies

    async def key_for_each_primary(self, name: str) -> list[str]:
        """`name` with hash tags, so that each primary owns one of these keys."""
        if self._cluster is None:
            return [name]
        wanted = set(await self._cluster.ready())
        keys = []
        for number in range(100 * len(wanted)):
            key = f"{name}:{{{number}}}"
            if (node := self._cluster.owner(key)) in wanted:
                wanted.discard(node)
                keys.append(key)
        return keys

    def script_run(self, name: str, keys: Sequence[str], /, **arguments: Value) -> ScriptRun:
        """A script run, to stand among the commands of `calls`."""
        return self._script_run(name, keys, arguments)

    def _script_run(
        self, name: str, keys: Sequence[str], arguments: Mapping[str, Value]
    ) -> ScriptRun:
        script = self._scripts[name]
        packed = script.pack(arguments)
        return ScriptRun(name, ("EVALSHA", script.digest, len(keys), *keys, *packed))

    def by_slot(self, items: Iterable[T], key_of: Callable[[T], str]) -> list[list[T]]:
        """These items as groups whose keys one script may touch."""
        if self._cluster is None:
            return [[*items]]
        groups: dict[int, list[T]] = {}
        for item in items:
            groups.setdefault(key_slot(key_of(item).encode()), []).append(item)
        return list(groups.values())

    async def close(self) -> None:
        """Fail what still waits, close every connection. May be called twice."""
        await self._link.close()
        if self._cluster is not None:
            await self._cluster.close()

    def _check_trust(self) -> None:
        if not self.is_trusted:
            raise StoreUnavailable("Redis was not checked yet")

    def _enqueue(self, command: Command | ScriptRun) -> Call:
        self._check_trust()
        name = command.name if isinstance(command, ScriptRun) else ""
        call = Call(_words(command), name)
        self.num_calls += 1
        if self._cluster is not None:
            self._cluster.enqueue(call)
        else:
            self._link.enqueue(call)
        return call


def _drop_error(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def _words(command: Command | ScriptRun) -> Command:
    return command.command if isinstance(command, ScriptRun) else command
