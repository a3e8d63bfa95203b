"""The parts of one worker, and who builds them, each from those that it takes.

given ─► others ─► live ─► answers ─► services, which the doors get
                     └───► access ───────┘
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from server import __version__
from server.access.audit import Auditor
from server.access.auth import Authenticator, Origins
from server.access.identities import BUILT_IN, Identities
from server.access.rates import ConnectionCounter
from server.commands.adapters import Adapters
from server.commands.admission import Admission
from server.commands.create_response import ResponseCreator
from server.commands.queue.queue_changes import QueueChanges
from server.commands.queue.queue_runner import QueueRunner
from server.commands.services import Services, Stateless
from server.commands.stateless.answers import StatelessAnswers
from server.commands.stateless.embeddings import StatelessEmbeddings
from server.commands.stateless.entry import Entry
from server.commands.stateless.relay import Relay
from server.commands.stateless.repeats import Repeats
from server.commands.stateless.tries import Names
from server.config.worker import WorkerConfig
from server.engines.models import Models
from server.generation.prompts import PromptBuilders
from server.live.health import Health
from server.live.hub import Hub
from server.live.notices.board import NoticeBoard
from server.runs.abandonment import Abandonment
from server.runs.peers import Figures, Peers
from server.runs.quotas.active_limit import ActiveLimit
from server.runs.runs import Runs
from server.runs.takeover import Takeover
from server.runs.tools.runner import ToolRunner
from server.telemetry.metrics import LogCollector, Metrics, SpanCollector, StoreCollector
from server.telemetry.stats import Recorder
from server.telemetry.tracing import AnswerTracing
from sessions.connection.feed import LiveFeed
from sessions.directory.adapters import AdapterBook
from sessions.directory.audit import AuditLog
from sessions.directory.calls import Calls
from sessions.directory.credentials import Credentials
from sessions.directory.finding.names import UserNames
from sessions.directory.notices import Notices
from sessions.directory.replicas import Replicas
from sessions.directory.samples import Samples
from sessions.directory.users import Users
from sessions.indexes.sweep import IndexSweep
from sessions.model.errors import StoreRefused
from sessions.store.appends.appender import Appender
from sessions.store.store import SessionStore

if TYPE_CHECKING:
    from server.commands.tools.offering import ToolOffers
    from server.engines.tracing import Tracing
    from server.tools.client import ToolClient


@dataclass(frozen=True, slots=True)
class Given:
    """What a worker begins with."""

    config: WorkerConfig
    store: SessionStore
    models: Models
    metrics: Metrics
    tracing: AnswerTracing | None


@dataclass(frozen=True, slots=True)
class Others:
    """The other workers, and what this one says to them and to operators."""

    peers: Peers
    recorder: Recorder


@dataclass(frozen=True, slots=True)
class Live:
    """What is heard and sent."""

    feed: LiveFeed
    hub: Hub
    health: Health  # of the store and the engine
    notices: NoticeBoard


@dataclass(frozen=True, slots=True)
class Answers:
    """Who makes answers, ends those that nobody watches, and takes over those of the dead."""

    limit: ActiveLimit
    runs: Runs
    abandonment: Abandonment
    creator: ResponseCreator
    stateless: Stateless
    takeover: Takeover
    queue_runner: QueueRunner
    offers: "ToolOffers | None"  # of tools that the server runs


@dataclass(frozen=True, slots=True)
class Access:
    """Who may come in."""

    credentials: Credentials
    identities: Identities
    authenticator: Authenticator


def build_metrics(store: SessionStore, tracing: "Tracing | None") -> Metrics:
    metrics = Metrics()
    metrics.registry.register(LogCollector())
    metrics.registry.register(StoreCollector(lambda: store.client.num_calls))
    if tracing is not None:
        metrics.registry.register(SpanCollector(tracing))
    return metrics


def build_others(given: Given, figures: Callable[[], Figures]) -> Others:
    """`figures` is what the worker says of itself, asked for when it serves."""
    config, store = given.config, given.store
    intervals = config.settings.intervals
    replicas = Replicas(
        store.client,
        store.keys,
        life_seconds=intervals.heartbeat_life,
        late_seconds=intervals.heartbeat_late,
    )
    samples = Samples(store.client, store.keys)
    return Others(
        peers=Peers(
            replicas,
            config.replica,
            figures,
            report_seconds=intervals.report,
            look_seconds=intervals.heartbeat,
        ),
        recorder=Recorder(samples, given.metrics, given.models, figures, config.replica),
    )


def build_adapters(given: Given, peers: Peers) -> Adapters | None:
    """None without a folder of adapters."""
    settings, store = given.config.settings, given.store
    if settings.lora_dir is None:
        return None

    async def announce() -> None:
        for other in await peers.replicas.all():
            if other.id != given.config.replica:
                await store.publish_control(other.id, {"type": "adapters"})

    return Adapters(
        folder=Path(settings.lora_dir),
        base=given.models.default,
        models=given.models.served,
        taken={status.name for status in given.models.statuses},
        book=AdapterBook(store.client, store.keys),
        engine=given.models.default_engine,
        announce=announce,
        interval_seconds=settings.intervals.heartbeat,
    )


def build_live(given: Given, peers: Peers, on_refused: Callable[[StoreRefused], None]) -> Live:
    """`on_refused` is called when the store must not be used any more."""
    config, store = given.config, given.store
    settings = config.settings
    feed = LiveFeed(store.client, store.keys)
    hub = Hub(store, feed, store.keys, config.replica, hides_observers=settings.hide_observers)
    health = Health(
        store,
        given.models.default_engine,
        hub,
        given.metrics,
        settings.intervals,
        on_refused,
        on_change=peers.beat_soon,
        folder=None if config.redis_folder is None else Path(config.redis_folder),
    )
    return Live(feed, hub, health, NoticeBoard(Notices(store.client, store.keys), hub))


def build_tools(config: WorkerConfig) -> "ToolClient | None":
    """None without a tool process."""
    if config.tools_path is None:
        return None
    from server.tools.client import ToolClient

    return ToolClient(Path(config.tools_path))


def build_answers(
    given: Given,
    live: Live,
    peers: Peers,
    adapters: Adapters | None,
    tools: "ToolClient | None" = None,
) -> Answers:
    config, store, hub = given.config, given.store, live.hub
    settings = config.settings
    limit = ActiveLimit(store, hub, settings.limits.max_active_responses_per_user)
    prompts = PromptBuilders(store.messages, given.models)
    appender = Appender(
        store.appends, renewal_seconds=settings.intervals.renewal, listener=live.feed
    )
    runs = Runs(
        appender=appender,
        limit=limit,
        prompts=prompts,
        store=store,
        models=given.models,
        hub=hub,
        metrics=given.metrics,
        intervals=settings.intervals,
        has_peers=peers.are_known,
        cache_secret=config.token,
        answer_seconds=settings.limits.answer_seconds,
        tools=ToolRunner(
            tools, store=store, hub=hub, metrics=given.metrics, intervals=settings.intervals
        ),
    )
    admission = Admission(store, runs, given.models)
    offers = build_offers(tools)
    creator = ResponseCreator(
        store=store,
        hub=hub,
        runs=runs,
        prompts=prompts,
        replica=config.replica,
        models=given.models,
        admission=admission,
        refresh_models=None if adapters is None else adapters.refresh,
        limit=limit,
        tracing=given.tracing,
        tools=offers,
    )
    stateless = build_stateless(given, live, admission, runs, limit)
    takeover = build_takeover(given, hub, peers, runs, adapters)
    queue_runner = QueueRunner(
        store=store,
        runs=runs,
        creator=creator,
        prompts=prompts,
        intervals=settings.intervals,
    )
    abandonment = Abandonment(store, hub, runs)
    return Answers(limit, runs, abandonment, creator, stateless, takeover, queue_runner, offers)


def build_stateless(
    given: Given, live: Live, admission: Admission, runs: Runs, limit: ActiveLimit
) -> Stateless:
    config, store = given.config, given.store
    entry = Entry(given.store, given.models, admission, limit)
    seconds = config.settings.limits.answer_seconds
    answers = StatelessAnswers(entry, given.models, admission, runs.salt_of, seconds)
    calls = Calls(store.client, store.keys)
    repeats = Repeats(
        calls,
        Relay(calls, live.feed, store.keys),
        Names(config.token),
        config.replica,
        config.settings.intervals.repeat,
    )
    return Stateless(entry, answers, StatelessEmbeddings(entry, runs.salt_of), repeats)


def build_offers(tools: "ToolClient | None") -> "ToolOffers | None":
    if tools is None:
        return None
    from server.commands.tools.offering import ToolOffers

    return ToolOffers(tools)


def build_takeover(
    given: Given, hub: Hub, peers: Peers, runs: Runs, adapters: Adapters | None
) -> Takeover:
    config, store = given.config, given.store
    settings = config.settings
    return Takeover(
        store=store,
        hub=hub,
        metrics=given.metrics,
        runs=runs,
        peers=peers,
        replica=config.replica,
        models=given.models,
        refresh_models=None if adapters is None else adapters.refresh,
        intervals=settings.intervals,
        index_sweep=IndexSweep(
            store.client,
            store.keys,
            idle_seconds=min(
                settings.limits.session_idle_seconds, settings.limits.stored_response_seconds
            ),
            uids=BUILT_IN,
        ),
        tracing=given.tracing,
    )


def build_access(given: Given, feed: LiveFeed) -> Access:
    config, store = given.config, given.store
    credentials = Credentials(store.client, store.keys)
    identities = Identities(
        credentials,
        Users(store.client, store.keys),
        token=config.token,
        admin_token=config.admin_token,
    )
    feed.on_resync(identities.on_resync)
    origins = Origins(config.settings.origins)
    return Access(credentials, identities, Authenticator(identities, origins=origins))


def build_services(
    given: Given,
    others: Others,
    live: Live,
    answers: Answers,
    identities: Identities,
    adapters: Adapters | None,
) -> Services:
    config, store = given.config, given.store
    limits = config.settings.limits
    built_in = {uid: user.name for uid, user in BUILT_IN.items()}
    names = UserNames(store.client, store.keys, built_in)
    live.feed.on_resync(names.on_resync)
    return Services(
        store=store,
        hub=live.hub,
        runs=answers.runs,
        creator=answers.creator,
        queue_changes=QueueChanges(store, answers.queue_runner),
        peers=others.peers,
        takeover=answers.takeover,
        health=live.health,
        notices=live.notices,
        identities=identities,
        names=names,
        auditor=Auditor(AuditLog(store.client, store.keys)),
        metrics=given.metrics,
        limits=limits,
        connections=ConnectionCounter(limits),
        replica=config.replica,
        version=__version__,
        models=given.models,
        stateless=answers.stateless,
        settings=config.shown_settings,
        adapters=adapters,
        tools=answers.offers,
    )
