"""`GroupKeeper`: several engines of one model, for the supervisor.

It serves as soon as one of them does, and as long as one of them starts. Each is replaced by its
own keeper when it dies. Engines come and go while it serves: `add`, `drain`, `remove`. All methods
but `clean_up` and `release` belong to the supervisor's own thread.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from server.config.engines import EngineEntry
from server.config.models import EngineStatus, ModelFacts
from server.engines.managed import EngineRefused, EngineSetupError, ManagedEngine

logger = structlog.get_logger("server")

PARTING_SECONDS = 5.0  # between the word that an engine goes and its end: answers move meanwhile

# Gets one engine ready, in any thread. Raises `EngineSetupError`.
Prepare = Callable[[EngineEntry], ManagedEngine]
# Raises `EngineSetupError` for engines that cannot stand for each other.
Check = Callable[[Sequence[EngineEntry]], None]


class KeptEngine:
    """One of them; `engine` is None as long as it is made ready, and where that has failed."""

    def __init__(self, entry: EngineEntry, engine: ManagedEngine | None = None) -> None:
        self.entry = entry
        self.engine = engine
        self.outcome: ManagedEngine | str | None = None  # of a thread that makes it ready
        self.is_given_up = False
        self.status = EngineStatus.of(entry)
        if engine is not None:
            self.change(options=dict(engine.connect_options))

    def change(self, **fields: Any) -> None:
        self.status = msgspec.structs.replace(self.status, **fields)


class GroupKeeper:
    """`prepare` makes an engine ready, `check` says what may come, `wake` has `watch` called.

    `on_change` hears that `engines` are others.
    """

    def __init__(
        self,
        engines: Sequence[tuple[EngineEntry, ManagedEngine]],
        *,
        prepare: Prepare,
        wake: Callable[[], None],
        check: Check = lambda entries: None,
    ) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._kept = [KeptEngine(entry, engine) for entry, engine in engines]
        self._prepare, self._check, self._wake = prepare, check, wake
        self._leaving: list[ManagedEngine] = []  # which end soon
        self._unready: list[KeptEngine] = []  # removed, and a thread may still make them ready
        lead = self._kept[0]
        # What workers must know before they join any of them is the same of all.
        self.connect_options: Mapping[str, Any] = {
            "kind": lead.status.kind,
            "options": lead.status.options,
        }

    @property
    def engines(self) -> tuple[EngineStatus, ...]:
        """What workers and administrators know of them."""
        return tuple(kept.status for kept in self._kept)

    # ---- as one engine --------------------------------------------------------------------------

    @property
    def _managed(self) -> list[ManagedEngine]:
        return [kept.engine for kept in self._kept if kept.engine is not None]

    @property
    def _lead(self) -> ManagedEngine:
        return self._managed[0]

    @property
    def model_name(self) -> str:
        return self._lead.model_name

    @property
    def facts(self) -> ModelFacts:
        all_facts = [engine.facts for engine in self._managed]
        needs = [facts.needs_bytes for facts in all_facts if facts.needs_bytes is not None]
        return msgspec.structs.replace(all_facts[0], needs_bytes=sum(needs) if needs else None)

    @property
    def is_current(self) -> bool:
        return all(engine.is_current for engine in self._managed)

    @property
    def memory_bytes(self) -> int | None:
        known = [size for engine in self._managed if (size := engine.memory_bytes) is not None]
        return sum(known) if known else None

    @property
    def taken_bytes(self) -> int:
        return sum(engine.taken_bytes for engine in self._managed)

    @property
    def is_starting(self) -> bool:
        """None serves, and one may soon."""
        managed = self._managed
        return not any(map(_serves, managed)) and any(engine.is_starting for engine in managed)

    @property
    def start_error(self) -> str | None:
        """Of the first, if none serves, nor will soon."""
        managed = self._managed
        if any(_serves(engine) or engine.is_starting for engine in managed):
            return None
        return next((engine.start_error for engine in managed if engine.start_error), None)

    @property
    def num_failed_starts(self) -> int:
        return max(engine.num_failed_starts for engine in self._managed)

    @property
    def is_refusal(self) -> bool:
        return any(engine.is_refusal for engine in self._managed)

    @property
    def due(self) -> float | None:
        return min((at for engine in self._managed if (at := engine.due) is not None), default=None)

    def start(self) -> None:
        for engine in self._managed:
            engine.start()

    def watch(self) -> bool:
        for kept in [*self._kept, *self._unready]:
            self._take_outcome(kept)
        for kept in list(self._kept):
            if kept.engine is None or kept.is_given_up or kept.engine.watch():
                continue
            kept.is_given_up = True
            problem = kept.engine.start_error or "it does not start any more"
            logger.error("engine given up", engine=kept.status.name, error=problem)
            kept.change(problem=problem)
            self.on_change()
        return not self._are_all_given_up

    @property
    def _are_all_given_up(self) -> bool:
        return all(kept.is_given_up for kept in self._kept)

    def release(self) -> None:
        _at_once(engine.release for engine in self._managed)
        for kept in self._kept:
            kept.is_given_up = False

    def stop(self) -> None:
        _at_once(engine.stop for engine in [*self._managed, *self._leaving])

    def clean_up(self) -> None:
        for engine in [*self._managed, *self._leaving]:
            engine.clean_up()

    # ---- while it serves ------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        return any(kept.status.name == name for kept in self._kept)

    def engine(self, name: str) -> ManagedEngine | None:
        """None: it is made ready, or that has failed. Raises `EngineRefused`."""
        return self._named(name).engine

    def drain(self, name: str, *, is_draining: bool, must_move: bool = False) -> None:
        """Let one take no new answers, or take them again; with `must_move` it keeps none.

        The last one that takes them goes on: workers that were asked at the same time did not know
        of each other. Raises `EngineRefused`.
        """
        kept = self._named(name)
        is_first = is_draining and not kept.status.is_draining
        if is_first and not self._has_others(kept):
            raise EngineRefused("no other engine takes answers")
        kept.change(is_draining=is_draining, must_move=must_move and is_draining)
        logger.info("engine drains" if is_draining else "engine is back", engine=name)
        self.on_change()

    def _named(self, name: str) -> KeptEngine:
        kept = next((kept for kept in self._kept if kept.status.name == name), None)
        if kept is None:
            raise EngineRefused(f"there is no engine {name}")
        return kept

    def _has_others(self, kept: KeptEngine) -> bool:
        """Whether another one takes new answers, or soon may."""
        others = [each for each in self._kept if each is not kept and each.engine is not None]
        return any(not (each.status.is_draining or each.is_given_up) for each in others)

    def add(self, entry: EngineEntry) -> None:
        """One more, which is made ready in a thread and then started. Raises `EngineRefused` for
        one that could not stand for those that are there by now.
        """
        try:
            self._check([*(kept.entry for kept in self._kept), entry])
        except EngineSetupError as error:
            raise EngineRefused(str(error)) from None
        kept = KeptEngine(entry)
        self._kept.append(kept)

        def prepare() -> None:
            try:
                kept.outcome = self._prepare(entry)
            except EngineSetupError as error:
                kept.outcome = str(error)
            except Exception as error:
                logger.exception("engine cannot be prepared", engine=entry.name)
                kept.outcome = f"it cannot be prepared: {type(error).__name__}"
            self._wake()

        logger.info("engine is added", engine=entry.name, kind=entry.kind, url=entry.url)
        self.on_change()
        threading.Thread(target=prepare, name="engine-prepare", daemon=True).start()

    def remove(self, name: str) -> None:
        """One less. What still runs there goes on at others, if it can. Raises `EngineRefused` for
        the last one that takes answers.
        """
        kept = self._named(name)
        if kept.engine is not None and not self._has_others(kept):
            raise EngineRefused("no other engine takes answers")
        self._kept.remove(kept)
        logger.info("engine is removed", engine=name)
        self.on_change()
        if kept.engine is not None:
            self._leaving.append(kept.engine)
            timer = threading.Timer(PARTING_SECONDS, self._part, (kept.engine,))
            timer.daemon = True
            timer.start()
        elif kept.status.problem is None:
            self._unready.append(kept)

    def _part(self, engine: ManagedEngine) -> None:
        """In a thread of its own. `stop` does it first where everything ends."""
        engine.stop()
        self._leaving.remove(engine)

    def _take_outcome(self, kept: KeptEngine) -> None:
        outcome, kept.outcome = kept.outcome, None
        if kept in self._unready and outcome is not None:
            self._unready.remove(kept)
            if not isinstance(outcome, str):
                outcome.clean_up()  # it was never started
        elif isinstance(outcome, str):
            logger.error("engine cannot be added", engine=kept.status.name, error=outcome)
            kept.change(problem=outcome)
            self.on_change()
        elif outcome is not None:
            kept.engine = outcome
            kept.change(options=dict(outcome.connect_options))
            outcome.start()
            self.on_change()


def _serves(engine: ManagedEngine) -> bool:
    return not engine.is_starting and engine.start_error is None


def _at_once(calls: Iterable[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
