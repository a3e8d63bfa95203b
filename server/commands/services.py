"""What the doors of one worker (websocket, HTTP) share: made once, passed to them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from server.access.audit import Auditor
from server.access.identities import Identities
from server.access.rates import ConnectionCounter
from server.commands.adapters import Adapters
from server.commands.create_response import ResponseCreator
from server.commands.queue.queue_changes import QueueChanges
from server.commands.stateless.answers import StatelessAnswers
from server.commands.stateless.embeddings import StatelessEmbeddings
from server.commands.stateless.entry import Entry
from server.commands.stateless.repeats import Repeats
from server.config.limits import Limits
from server.config.shown import ShownSetting
from server.engines.models import Models
from server.live.health import Health
from server.live.hub import Hub
from server.live.notices.board import NoticeBoard
from server.runs.peers import Peers
from server.runs.runs import Runs
from server.runs.takeover import Takeover
from server.telemetry.metrics import Metrics
from sessions.directory.finding.names import UserNames
from sessions.store.store import SessionStore

if TYPE_CHECKING:  # a server without tools imports nothing of them
    from server.commands.tools.offering import ToolOffers


@dataclass(frozen=True, slots=True)
class Stateless:
    """What is asked of this worker, and stored nowhere."""

    entry: Entry
    answers: StatelessAnswers
    embeddings: StatelessEmbeddings
    repeats: Repeats


@dataclass(frozen=True, slots=True)
class Services:
    """One worker's parts."""

    store: SessionStore
    hub: Hub
    runs: Runs
    creator: ResponseCreator
    queue_changes: QueueChanges
    peers: Peers
    takeover: Takeover
    health: Health
    notices: NoticeBoard
    identities: Identities
    names: UserNames
    auditor: Auditor
    metrics: Metrics
    limits: Limits
    connections: ConnectionCounter
    replica: str
    version: str
    models: Models
    stateless: Stateless
    settings: tuple[ShownSetting, ...] = ()  # as they run, for admins
    adapters: Adapters | None = None  # None: there are to be none
    tools: "ToolOffers | None" = None  # likewise
