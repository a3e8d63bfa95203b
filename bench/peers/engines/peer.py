"""What every peer has: a name and a precision, something to prepare, and a server to start."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bench.peers.load.doors import ChatDoor, JoinedDoor
from bench.peers.machine.environments import Environments
from bench.peers.machine.processes import running
from bench.peers.models import Checkpoint
from bench.peers.record.figures import family

MAX_MODEL_LEN = 4096
KV_TOKENS = 10_240  # what all chats of any workload need together, with room
MAX_CHATS = 32
START_SECONDS = 600.0  # vLLM compiles the model when it starts
PROCESS_BYTES = 3 << 29  # of a server besides weights, keys and values, about


@dataclass(frozen=True, slots=True)
class Site:
    """Where a run takes place, and what each engine is given."""

    environments: Environments
    checkpoint: Checkpoint
    threads: int

    @property
    def kv_cache_bytes(self) -> int:
        """For `KV_TOKENS`, in 16 bits."""
        return KV_TOKENS * self.checkpoint.kv_values * 2

    @property
    def converted(self) -> Path:
        """Where formats of other engines lie, under this path and a suffix."""
        folder = self.environments.cache / "converted"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / self.checkpoint.name

    def log(self, engine: str) -> Path:
        return self.environments.cache / "logs" / f"server-{engine.replace(':', '-')}.log"


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is up: its process, and the ways into it, the usual one first."""

    pid: int
    doors: dict[str, ChatDoor]
    engine: JoinedDoor | None = None  # without the server around it
    url: str = ""  # of a server that is entered over HTTP

    @property
    def door(self) -> ChatDoor:
        return next(iter(self.doors.values()))


class Peer(ABC):
    """One engine in one precision."""

    name: ClassVar[str]
    precisions: ClassVar[dict[str, float]]  # name → bytes that a weight takes in memory
    note: ClassVar[str] = ""  # what its precision does not say
    keeps_log: ClassVar[bool] = True  # where `Site.log` says

    def __init__(self, site: Site, precision: str) -> None:
        self.site = site
        self.precision = precision

    @property
    def engine(self) -> str:
        """As the command line and the tables name it."""
        return f"{self.name}:{self.precision}"

    @property
    def family(self) -> str:
        return family(self.precision)

    @property
    @abstractmethod
    def value_bytes(self) -> float:
        """What a number of keys and values takes in memory, with its share of a scale."""

    @property
    def memory_bytes(self) -> int:
        """What its server takes, about."""
        weights = self.site.checkpoint.num_weights * self.precisions[self.precision]
        return int(weights) + self.site.kv_cache_bytes + PROCESS_BYTES

    @abstractmethod
    def prepare(self) -> str:
        """Build and convert what is missing; its version. Raises `Unavailable`."""

    @abstractmethod
    def running(self) -> AbstractContextManager[Running]:
        """Its server, ready. Raises `Unavailable`."""

    @contextlib.contextmanager
    def _serve(
        self,
        command: list[str],
        environment: dict[str, str],
        port: int,
        door: ChatDoor,
        health: str = "/health",
    ) -> Iterator[Running]:
        """A server that is one command, and is entered over HTTP."""
        url = f"http://127.0.0.1:{port}"
        threads = {"OMP_NUM_THREADS": str(self.site.threads), "HF_HUB_OFFLINE": "1"}
        with running(
            self.engine,
            command,
            {**threads, **environment},
            url + health,
            self.site.log(self.engine),
            START_SECONDS,
        ) as pid:
            yield Running(pid, {"http": door}, url=url)
