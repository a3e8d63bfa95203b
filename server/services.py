"""What the doors of one worker (websocket, HTTP) share: made once, passed to them."""

from dataclasses import dataclass

from engine import AsyncLLM
from server.beginnings import Beginnings
from server.health import Health
from server.hub import Hub
from server.limits import ConnectionCounter, Limits
from server.metrics import Metrics
from server.orphans import Orphans
from server.runs import Runs
from sessions.store import SessionStore


@dataclass(frozen=True, slots=True)
class User:
    """Who is asking."""

    uid: str
    name: str
    roles: tuple[str, ...] = ("user",)

    @property
    def is_admin(self) -> bool:
        return "admin" in self.roles


@dataclass(frozen=True, slots=True)
class Services:
    """One worker's parts."""

    store: SessionStore
    engine: AsyncLLM
    hub: Hub
    runs: Runs
    beginnings: Beginnings
    orphans: Orphans
    health: Health
    metrics: Metrics
    limits: Limits
    connections: ConnectionCounter
    replica: str
    version: str
    model: str
