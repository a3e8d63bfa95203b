"""Several real redis-servers that form one thing: a cluster of primaries, a primary with sentinels.

Nothing here knows pytest, so a script may use it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sessions.connection.embedded import EmbeddedRedis
from sessions.connection.redis_binary import find_server
from tests.helpers.patience import PATIENCE

NUM_SLOTS = 16384
BUS_OFFSET = 10_000  # a cluster node's second port
HOST = "127.0.0.1"

Reply = bytes | int | list["Reply"] | None


@dataclass(frozen=True)
class Server:
    """One redis-server that listens on a TCP port, too."""

    redis: EmbeddedRedis
    port: int

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    def command(self, *words: str | int) -> Reply:
        """Send one command the plain way and return its reply; raises `OSError` for an error."""
        return command(self.port, *words)


class RedisCluster:
    """Primaries that share the slots evenly, each with no replica."""

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"{HOST}:{s.port}" for s in self.servers)

    def join(self) -> None:
        """Give out the slots and return when all agree."""
        share = NUM_SLOTS // len(self.servers) + 1
        for number, server in enumerate(self.servers):
            first, last = number * share, min(NUM_SLOTS, (number + 1) * share)
            server.command("CLUSTER", "ADDSLOTS", *range(first, last))
            server.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            server.command("CLUSTER", "MEET", HOST, self.servers[0].port)
        self.wait_until_ok()

    def wait_until_ok(self) -> None:
        """Return when every node sees every slot served by a node that answers."""
        wait_for(lambda: all(self._is_ok(server) for server in self.servers))

    def _is_ok(self, server: Server) -> bool:
        info = server.command("CLUSTER", "INFO")
        nodes = server.command("CLUSTER", "NODES")
        assert isinstance(info, bytes) and isinstance(nodes, bytes)
        return (
            b"cluster_state:ok" in info
            and b"cluster_known_nodes:%d" % len(self.servers) in info
            and nodes.count(b" connected ") == len(self.servers)
        )

    def id_of(self, server: Server) -> str:
        reply = server.command("CLUSTER", "MYID")
        assert isinstance(reply, bytes)
        return reply.decode()


@contextlib.contextmanager
def running_cluster(binary: str | None = None, *, size: int = 3) -> Iterator[RedisCluster]:
    """A cluster of primaries on empty directories, gone with them at the end."""
    flags = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(running_server(binary, extra_args=flags)) for _ in range(size)
        ]
        cluster = RedisCluster(servers)
        cluster.join()
        yield cluster


@contextlib.contextmanager
def running_server(
    binary: str | None = None, *, extra_args: Sequence[str] = ()
) -> Iterator[Server]:
    """A server on an empty directory, with a TCP port on loopback."""
    port = free_port()
    flags = ("--port", str(port), "--bind", HOST, *extra_args)
    with tempfile.TemporaryDirectory(prefix="parley-test-") as directory:
        redis = EmbeddedRedis(Path(directory) / "redis", binary=binary, extra_args=flags)
        redis.start()
        try:
            yield Server(redis, port)
        finally:
            if redis.poll() is None and redis.pid is not None:
                os.kill(redis.pid, signal.SIGKILL)  # a new replica ignores SIGTERM for a while
            redis.stop()


@dataclass
class Guarded:
    """A primary, its replica, and the sentinels that know them as `parley`."""

    primary: Server
    replica: Server
    sentinels: list[int]  # ports

    @property
    def url(self) -> str:
        return "redis+sentinel://" + ",".join(f"{HOST}:{p}" for p in self.sentinels) + "/parley"

    def primary_port(self) -> int:
        """Who is the primary now, by the first sentinel."""
        reply = command(self.sentinels[0], "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "parley")
        assert isinstance(reply, list) and isinstance(reply[1], bytes)
        return int(reply[1])


@contextlib.contextmanager
def running_pair(binary: str | None = None) -> Iterator[tuple[Server, Server]]:
    """A primary and its replica, in step."""
    with running_server(binary) as primary:
        flags = ("--replicaof", HOST, str(primary.port))
        with running_server(binary, extra_args=flags) as replica:
            wait_for(lambda: b"master_link_status:up" in _info(replica))
            yield primary, replica


@contextlib.contextmanager
def running_sentinels(binary: str | None = None, *, size: int = 1) -> Iterator[Guarded]:
    """A primary and a replica under so many sentinels, which fail over within about a second."""
    with running_pair(binary) as (primary, replica), contextlib.ExitStack() as stack:
        ports = [
            stack.enter_context(_running_sentinel(binary, primary.port, size // 2 + 1))
            for _ in range(size)
        ]
        for port in ports:
            wait_for(lambda port=port: _sees(port, num_sentinels=size))  # type: ignore[misc]
        yield Guarded(primary, replica, ports)


@contextlib.contextmanager
def _running_sentinel(binary: str | None, primary_port: int, quorum: int) -> Iterator[int]:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="parley-test-") as directory:
        config = Path(directory) / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind {HOST}\ndir {directory}\n"
            f"sentinel monitor parley {HOST} {primary_port} {quorum}\n"
            "sentinel down-after-milliseconds parley 500\n"
            "sentinel failover-timeout parley 3000\n"
        )
        process = subprocess.Popen(
            [binary or find_server().binary, str(config), "--sentinel"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        try:
            wait_for(lambda: _answers(port))
            yield port
        finally:
            process.terminate()
            process.wait()


def _sees(port: int, *, num_sentinels: int) -> bool:
    """Whether this sentinel knows the replica and the others."""
    reply = command(port, "SENTINEL", "MASTER", "parley")
    assert isinstance(reply, list)
    facts = dict(zip(reply[::2], reply[1::2], strict=True))
    others = int(facts[b"num-other-sentinels"])  # type: ignore[arg-type]
    replicas = command(port, "SENTINEL", "REPLICAS", "parley")
    assert isinstance(replicas, list)
    is_linked = any(b"ok" in replica for replica in replicas if isinstance(replica, list))
    return is_linked and others == num_sentinels - 1


def _answers(port: int) -> bool:
    try:
        return command(port, "PING") == b"PONG"
    except OSError:
        return False


def _info(server: Server) -> bytes:
    reply = server.command("INFO")
    assert isinstance(reply, bytes)
    return reply


def wait_for(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Return when it is true; what other processes do has no event to wait for."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s")
        time.sleep(0.02)


def free_port() -> int:
    """A port whose cluster bus port is free as well."""
    while True:
        port = random.randrange(20_000, 32_000)  # below what the kernel gives to clients
        try:
            for number in (port, port + BUS_OFFSET):
                with socket.socket() as trial:
                    trial.bind((HOST, number))
        except OSError:
            continue
        return port


def command(port: int, *words: str | int) -> Reply:
    """One command on a connection of its own; raises `OSError` for an error reply."""
    with socket.create_connection((HOST, port), timeout=PATIENCE) as connection:
        encoded = [str(word).encode() for word in words]
        parts = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)
        connection.sendall(b"*%d\r\n%s" % (len(words), parts))
        with connection.makefile("rb") as file:
            return _read(file.readline, file.read)


def _read(readline: Callable[[], bytes], read: Callable[[int], bytes]) -> Reply:
    line = readline().strip()
    kind, rest = line[:1], line[1:]
    if kind == b"$":
        return None if rest == b"-1" else read(int(rest) + 2)[:-2]
    if kind == b"*":
        return None if rest == b"-1" else [_read(readline, read) for _ in range(int(rest))]
    if kind == b":":
        return int(rest)
    if kind == b"+":
        return rest
    raise OSError(rest.decode() or "no reply")
