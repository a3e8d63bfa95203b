"""`ModelKeepers`: the engines of all models, one process each: which are loaded, and which are not.

The default model is loaded at the start, any other when a worker asks for it. Of several that do
not fit into the memory together, those go that nobody has used for longest; one that is in use
stays. What takes long (a download, the end of a process) is a thread's; everything else belongs to
the supervisor's own thread, which calls `watch` whenever `wake` was called or something is `due`.
"""

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

import structlog

from server.config.engines import GROUP, MAX_ENGINES, EngineEntry
from server.config.models import EngineStatus, ModelState, ModelStatus, discreet, gb
from server.config.settings import Settings
from server.engines.kind import EngineKind
from server.engines.managed import (
    EngineRefused,
    EngineSetupError,
    ManagedEngine,
    Restartable,
)
from server.engines.placement.keeper import GroupKeeper
from server.engines.placement.kind import GroupKind
from server.supervisor.kept_model import KeptModel
from server.supervisor.model_room import ModelRoom

logger = structlog.get_logger("server")

# Between the word that a model goes and the end of its process: who has just begun to use it says
# so meanwhile, and it stays.
GRACE_SECONDS = 0.5
PROGRESS_STEP = 0.02  # between two words of how far a loading is
LOG_PROGRESS_SECONDS = 10.0  # between two lines of the log on it


class ModelKeepers:
    """`entry` is the engine of each model, and `kind` its kind.

    `on_change` hears that a status has changed. `now` is replaced in tests.
    """

    def __init__(
        self,
        settings: Settings,
        entry: EngineEntry,
        kind: EngineKind,
        *,
        wake: Callable[[], None],
        on_change: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._entry, self._kind = entry, kind
        self._wake = wake
        self._now = now
        self._models: dict[str, KeptModel] = {}
        for source in settings.models:
            name = kind.name_of(source)
            if name in self._models:
                raise EngineSetupError(f"two models have the name {name}: give one as NAME={name}")
            engines = kind.statuses_of(settings, source) if isinstance(kind, GroupKind) else ()
            status = ModelStatus(name=name, kind=entry.kind, url=entry.url, engines=engines)
            self._models[name] = KeptModel(source, status, on_change)
        self._default = next(iter(self._models.values()))
        self._room = ModelRoom(self._models.values(), partial(kind.free_bytes, settings))

    @property
    def are_many(self) -> bool:
        return len(self._models) > 1

    @property
    def statuses(self) -> tuple[ModelStatus, ...]:
        return tuple(model.status for model in self._models.values())

    @property
    def default_engine(self) -> ManagedEngine:
        """Prepared before everything else."""
        assert self._default.engine is not None
        return self._default.engine

    @property
    def is_preparing(self) -> bool:
        """Whether files of a model are found or fetched."""
        return any(model.lock.locked() for model in self._models.values())

    def free_bytes(self) -> int | None:
        """Memory for further models."""
        return self._room.free_bytes()

    @property
    def due(self) -> float | None:
        """When `watch` has something to do (`time.monotonic()`)."""
        moments = [model.goes_at for model in self._models.values()]
        moments += [model.engine.due for model in self._models.values() if model.engine]
        return min((at for at in moments if at is not None), default=None)

    # ---- the start ------------------------------------------------------------------------------

    def prepare_default(self) -> ManagedEngine:
        """Its files are known when this returns. Raises `EngineSetupError`."""
        model = self._default
        engine = self._kind.manage(self._settings, model.source, self._entry, self._wake)
        self._know(model, engine)
        return engine

    def start_default(self) -> None:
        """Begin to load it."""
        model = self._default
        model.enter(ModelState.LOADING, attempt=1, stage="loading", progress=0.0)
        assert model.engine is not None
        model.engine.start()

    def look_ahead(self) -> None:
        """Find out what the other models are, those of them that lie here."""
        others = [model for model in self._models.values() if model is not self._default]

        def look() -> None:
            for model in others:
                if model.outcome is None and model.engine is None and model.thread is None:
                    if self._kind.is_here(model.source):
                        self._prepare(model)

        if others:
            threading.Thread(target=look, name="model-look", daemon=True).start()

    # ---- what workers say -----------------------------------------------------------------------

    def note_uses(self, replica: str, names: Iterable[str]) -> None:
        """A worker uses these models now, and no others."""
        used = set(names)
        for name, model in self._models.items():
            if name in used:
                model.users.add(replica)
                if model.goes_at is not None:  # it has not gone yet
                    self._stay(model)
            elif replica in model.users:
                model.users.remove(replica)
                model.used_at = self._now()

    def load(self, name: str) -> None:
        """Somebody asks for a model: load it, if it is not loaded."""
        model = self._models.get(name)
        if model is None:
            return
        model.is_leaving = False
        if model.goes_at is not None:
            self._stay(model)
        elif model.status.state is ModelState.UNLOADING:
            model.is_wanted = True
        elif model.status.state in (ModelState.NOT_LOADED, ModelState.FAILED):
            self._begin(model)

    def unload(self, name: str) -> None:
        """Let a model go as soon as it is there and nobody uses it."""
        model, here = self._models.get(name), (ModelState.LOADING, ModelState.LOADED)
        if model is not None and model.status.state in here and self.are_many:
            model.is_leaving = True

    def drain_engine(
        self, name: str, model_name: str | None = None, *, is_draining: bool, must_move: bool
    ) -> None:
        """Have one of several engines take no new answers, or take them again.

        That of one model, or all of this name. Raises `EngineRefused`, as the two that follow.
        """
        for group in self._groups_with(name, model_name):
            group.drain(name, is_draining=is_draining, must_move=must_move)

    def add_engine(self, entry: EngineEntry) -> None:
        """One more engine, of the model that it is for, or of the default one."""
        names = {status.name for model in self._models.values() for status in model.status.engines}
        model = self._models.get(entry.serves or self._default.name)
        if model is None:
            raise EngineRefused(f"there is no model {entry.serves}")
        if entry.name in names:
            raise EngineRefused(f"there is an engine {entry.name}: add ;name=NAME")
        if len(names) >= MAX_ENGINES:
            raise EngineRefused(f"there are {MAX_ENGINES} engines by now")
        self._group_of(model).add(entry)

    def remove_engine(self, name: str, model_name: str | None = None) -> None:
        """One less, of one model or of all that have one of this name; the last one stays."""
        for group in self._groups_with(name, model_name):
            group.remove(name)

    def restart_engine(self, name: str, model_name: str | None = None) -> None:
        """Replace the process of an engine of ours; the name of a model is that of its only one.

        `model_name` tells apart those of several models. Raises `EngineRefused`.
        """
        found = [
            model
            for model in self._models.values()
            if name in model.engine_names and model_name in (None, model.name)
        ]
        if not found:
            raise EngineRefused(f"there is no engine {name}")
        if len(found) > 1:
            raise EngineRefused(f"several models have an engine {name}: name the model, too")
        (model,) = found
        if model.status.state is not ModelState.LOADED:
            state = model.status.state.replace("_", " ")
            raise EngineRefused(f"the model of {name} is {state}: there is nothing to restart")
        engine = model.engine
        if isinstance(engine, GroupKeeper):
            engine = engine.engine(name)
        if engine is None:
            raise EngineRefused(f"{name} is not ready")
        if not isinstance(engine, Restartable):
            raise EngineRefused(f"{name} is not ours: restart it where it runs")
        try:
            engine.restart()
        except EngineRefused as refusal:
            raise EngineRefused(f"{name}: {refusal}") from None

    def _groups_with(self, name: str, model_name: str | None) -> list[GroupKeeper]:
        """Of each model that has an engine of this name: `native` alone is one of each."""
        models = [
            model
            for model in self._models.values()
            if any(status.name == name for status in model.status.engines)
            and model_name in (None, model.name)
        ]
        if not models:
            raise EngineRefused(f"there is no engine {name}")
        known = [model.engine for model in models if isinstance(model.engine, GroupKeeper)]
        return known or [self._group_of(models[0])]

    def _group_of(self, model: KeptModel) -> GroupKeeper:
        if isinstance(model.engine, GroupKeeper):
            return model.engine
        if self._entry.kind != GROUP:
            raise EngineRefused("this server was started with one engine alone")
        raise EngineRefused(f"nobody has asked {model.name} yet: load it first")

    # ---- the life of a model --------------------------------------------------------------------

    def watch(self) -> bool:
        """Go on with what is under way. False when the only model will not start any more."""
        for model in self._models.values():
            if model.outcome is not None:
                self._take_outcome(model)
            if model.has_ended:
                self._end_unloading(model)
            match model.status.state:
                case ModelState.LOADING if model.status.stage == "loading":
                    self._watch_loading(model)
                case ModelState.LOADING if model.engine is not None:
                    self._start_if_it_fits(model)
                case ModelState.LOADING:
                    self._show_fetched(model)
                case ModelState.LOADED if not self._watch_loaded(model):
                    return False
                case ModelState.UNLOADING if model.goes_at is not None:
                    self._let_go_if_due(model)
        return True

    def stop(self) -> None:
        """End all, at the same time."""
        for model in self._models.values():
            if model.status.state is ModelState.UNLOADING and model.thread is not None:
                model.thread.join()  # it ends that process already
            if model.outcome is not None:
                self._take_outcome(model)
        engines = [model.engine for model in self._models.values() if model.engine is not None]
        threads = [threading.Thread(target=engine.stop) for engine in engines]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def clean_up(self) -> None:
        """Remove what they leave, from any thread: this process exits now."""
        for model in self._models.values():
            if model.engine is not None:
                model.engine.clean_up()

    # ---- loading --------------------------------------------------------------------------------

    def _begin(self, model: KeptModel) -> None:
        attempt = model.status.attempt + 1
        model.enter(ModelState.LOADING, attempt=attempt, stage="preparing")
        logger.info("model asked for", model=model.name)
        if model.engine is not None and not model.engine.is_current:
            model.engine.stop()  # workers and forecast know other files: from the files on
            model.engine = None
        if model.engine is None and model.outcome is None and model.thread is None:
            model.thread = threading.Thread(
                target=partial(self._prepare, model), name="model-prepare", daemon=True
            )
            model.thread.start()
        self._wake()

    def _prepare(self, model: KeptModel) -> None:
        """In a thread: find its files, or fetch them."""
        with model.lock:
            if model.engine is None and model.outcome is None:  # else somebody has just looked
                model.outcome = self._prepared(model)
        self._wake()

    def _prepared(self, model: KeptModel) -> ManagedEngine | str:
        try:
            return self._kind.manage(
                self._settings,
                model.source,
                self._entry,
                self._wake,
                partial(self._note_fetched, model),
                self._room.most_free_bytes,
            )
        except EngineSetupError as error:
            return str(error)
        except Exception as error:
            logger.exception("model cannot be prepared", model=model.name)
            return f"it cannot be prepared: {type(error).__name__}"

    def _note_fetched(self, model: KeptModel, share: float) -> None:
        """In any thread."""
        if share - (model.fetched or 0.0) >= PROGRESS_STEP:
            model.fetched = share
            self._wake()

    def _show_fetched(self, model: KeptModel) -> None:
        if model.fetched is None or model.fetched == model.status.progress:
            return
        model.change(progress=model.fetched)
        if self._now() - model.logged_at >= LOG_PROGRESS_SECONDS:
            model.logged_at = self._now()
            percent = round(100 * model.fetched)
            logger.info("model is downloaded", model=model.name, percent=percent)

    def _take_outcome(self, model: KeptModel) -> None:
        outcome, model.outcome, model.thread, model.fetched = model.outcome, None, None, None
        if isinstance(outcome, str):
            self._fail(model, outcome)
        elif outcome is not None:
            self._know(model, outcome)

    def _know(self, model: KeptModel, engine: ManagedEngine) -> None:
        model.engine = engine
        options = dict(engine.connect_options)
        engines: tuple[EngineStatus, ...] = ()
        if isinstance(engine, GroupKeeper):
            engine.on_change = partial(self._show_engines, model, engine)
            engines = engine.engines
        model.change(facts=engine.facts, options=options, engines=engines)

    def _show_engines(self, model: KeptModel, engine: GroupKeeper) -> None:
        if model.engine is engine:
            model.change(facts=engine.facts, engines=engine.engines)

    def _start_if_it_fits(self, model: KeptModel) -> None:
        """Start its process, when there is room: others that nobody uses go for it."""
        engine = model.engine
        assert engine is not None
        needs, free = engine.facts.needs_bytes, self._room.free_bytes()
        if needs is None or free is None or needs <= free or not self.are_many:
            fields = {} if needs is None or free is None else {"needs": gb(needs), "free": gb(free)}
            logger.info("loading the model", model=model.name, **fields)
            model.logged_at = self._now()
            model.change(stage="loading", progress=0.0)
            engine.start()
            return
        if any(other.status.state is ModelState.UNLOADING for other in self._models.values()):
            return  # it is looked at again when that has gone
        for other in self._room.that_make_room(needs - free):
            logger.info("model goes for another", model=other.name, other=model.name)
            self._unload(other)
        if not any(other.goes_at is not None for other in self._models.values()):
            self._fail(model, self._room.misfit(engine.facts, needs, free))

    def _watch_loading(self, model: KeptModel) -> None:
        engine, name = model.engine, model.name
        assert engine is not None
        if engine.is_starting:
            self._show_progress(model, engine)
            return
        if engine.start_error is not None:
            if model is self._default and model.status.attempt == 1 and model.used_at == 0.0:
                return  # of the start itself: the supervisor says so, and ends
            self._fail(model, engine.start_error)
            return
        model.used_at = self._now()
        memory = engine.memory_bytes
        model.enter(ModelState.LOADED, memory_bytes=memory)
        if self.are_many:
            logger.info("model is loaded", model=name, **({"memory": gb(memory)} if memory else {}))

    def _show_progress(self, model: KeptModel, engine: ManagedEngine) -> None:
        """By the memory that its process has taken, of what it is going to take."""
        needs = engine.facts.needs_bytes
        if not needs or not self.are_many:
            return
        progress = min(engine.taken_bytes / needs, 0.99)
        if progress - (model.status.progress or 0.0) >= PROGRESS_STEP:
            model.change(progress=progress)
        if self._now() - model.logged_at >= LOG_PROGRESS_SECONDS:
            model.logged_at = self._now()
            logger.info("model loads", model=model.name, percent=round(100 * progress))

    def _fail(self, model: KeptModel, problem: str) -> None:
        """The others serve on. The next question tries again, from the files on."""
        logger.error("model cannot be loaded", model=model.name, error=problem)
        engine, model.engine = model.engine, None
        if engine is not None:
            engine.stop()
        model.is_leaving = False
        model.enter(ModelState.FAILED, problem=discreet(problem))

    # ---- loaded ---------------------------------------------------------------------------------

    def _watch_loaded(self, model: KeptModel) -> bool:
        """False when the only model will not start any more."""
        engine = model.engine
        assert engine is not None
        if not engine.watch():
            if not self.are_many:
                return False
            times, why = engine.num_failed_starts, engine.start_error
            self._fail(model, f"it failed to start {times} times in a row: {why}")
        elif self.are_many and not model.users and (model.is_leaving or self._is_unused(model)):
            self._unload(model)
        return True

    def _is_unused(self, model: KeptModel) -> bool:
        seconds = self._settings.model_idle_seconds
        is_kept = model is self._default or seconds == 0
        return not is_kept and self._now() - model.used_at >= seconds

    def _unload(self, model: KeptModel) -> None:
        model.goes_at = self._now() + GRACE_SECONDS
        model.enter(ModelState.UNLOADING, memory_bytes=model.status.memory_bytes)

    def _stay(self, model: KeptModel) -> None:
        model.goes_at = None
        model.used_at = self._now()
        model.enter(ModelState.LOADED, memory_bytes=model.status.memory_bytes)

    def _let_go_if_due(self, model: KeptModel) -> None:
        engine = model.engine
        assert engine is not None and model.goes_at is not None
        if self._now() < model.goes_at:
            return
        model.goes_at = None
        model.is_leaving = False

        def release() -> None:
            engine.release()
            model.has_ended = True
            self._wake()

        model.thread = threading.Thread(target=release, name="model-release", daemon=True)
        model.thread.start()

    def _end_unloading(self, model: KeptModel) -> None:
        model.has_ended, model.thread = False, None
        logger.info("model is not loaded any more", model=model.name)
        model.enter(ModelState.NOT_LOADED)
        if model.is_wanted:
            model.is_wanted = False
            self._begin(model)
