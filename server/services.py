"""What the doors of one worker (websocket, HTTP) share: made once, passed to them."""

from dataclasses import dataclass

from engine import AsyncLLM
from server.audit import Auditor
from server.beginnings import Beginnings
from server.health import Health
from server.hub import Hub
from server.identities import Identities
from server.limits import ConnectionCounter, Limits
from server.metrics import Metrics
from server.peers import Peers
from server.runs import Runs
from server.takeover import Takeover
from sessions.store.store import SessionStore


@dataclass(frozen=True, slots=True)
class Services:
    """One worker's parts."""

    store: SessionStore
    engine: AsyncLLM
    hub: Hub
    runs: Runs
    beginnings: Beginnings
    peers: Peers
    takeover: Takeover
    health: Health
    identities: Identities
    auditor: Auditor
    metrics: Metrics
    limits: Limits
    connections: ConnectionCounter
    replica: str
    version: str
    model: str
