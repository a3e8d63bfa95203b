"""The processes of a server by what they are, and what they have taken of processor and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from tests.end_to_end.site.harness import Server
from tests.helpers.redis_topology import RedisCluster

MIB = 2**20
SUPERVISOR, CORE, WORKER, TEMPLATES, REDIS = "supervisor", "core", "worker", "templates", "redis"
# The first of these words in a command line says what a child is.
WORDS = {"server.worker": WORKER, "_core": CORE, "templates/child": TEMPLATES, "-server": REDIS}


class ReplayServer(Server):
    """Its engine core takes the time of recorded steps, and next to none of a processor."""

    module = "bench.relay.replay_server"


@dataclass(frozen=True, slots=True)
class Parts:
    """All processes of one server, its cluster's nodes among them if it has one."""

    processes: Mapping[str, Sequence[psutil.Process]]

    @classmethod
    def of(cls, server: Server, cluster: RedisCluster | None = None) -> Parts:
        assert server.process is not None
        supervisor = psutil.Process(server.process.pid)
        found: dict[str, list[psutil.Process]] = {SUPERVISOR: [supervisor], REDIS: []}
        for process in supervisor.children(recursive=True):
            line = " ".join(process.cmdline())
            kinds = [kind for word, kind in WORDS.items() if word in line]
            if kinds:
                found.setdefault(kinds[0], []).append(process)
        if cluster is not None:
            pids = [node.redis.pid for node in cluster.servers]
            found[REDIS] = [psutil.Process(pid) for pid in pids if pid is not None]
        return cls(found)

    def seconds(self, part: str) -> float:
        """Processor time so far."""
        times = [process.cpu_times() for process in self.processes[part]]
        return float(sum(each.user + each.system for each in times))

    def own_bytes(self, part: str) -> int:
        """Memory that no other process shares."""
        return int(sum(process.memory_full_info().uss for process in self.processes[part]))

    def fair_bytes(self, part: str) -> int:
        """Memory, with a part of what several processes share."""
        return int(sum(process.memory_full_info().pss for process in self.processes[part]))


class Stopwatch:
    """Processor time of the parts since it was started, in seconds."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._before = self._now()

    def elapsed(self) -> dict[str, float]:
        return {part: now - self._before[part] for part, now in self._now().items()}

    def _now(self) -> dict[str, float]:
        return {part: self._parts.seconds(part) for part in self._parts.processes}
