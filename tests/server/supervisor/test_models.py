"""`ModelKeepers`, stepped by hand: which models are loaded, which go for others, which fail."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from server.config.engines import GROUP, MAX_ENGINES, SOLE, EngineEntry, parse_engines
from server.config.models import ModelFacts, ModelSource, ModelState, ModelStatus
from server.config.settings import Settings, load_settings
from server.engines.kind import EngineKind
from server.engines.managed import EngineRefused, EngineSetupError
from server.engines.placement.kind import GroupKind
from server.supervisor.models import GRACE_SECONDS, ModelKeepers
from tests.helpers.patience import PATIENCE

GB = 10**9


class Engine:
    """What the supervisor sees of a process that does what the test says."""

    def __init__(self, name: str, needs: int) -> None:
        self.facts = ModelFacts(needs_bytes=needs, smaller={"--quantize int8": needs // 2})
        self.connect_options: Mapping[str, Any] = {"address": name}
        self.model_name = name
        self.memory_bytes: int | None = needs
        self.taken_bytes = 0
        self.is_starting = False
        self.start_error: str | None = None
        self.num_failed_starts = 0
        self.is_refusal = False
        self.due: float | None = None
        self.is_alive = self.is_current = True
        self.num_starts = 0
        self.has_stopped = self.is_releasing = False
        self.may_end = threading.Event()
        self.may_end.set()

    def start(self) -> None:
        self.num_starts += 1
        self.is_starting = True

    def come_up(self) -> None:
        self.taken_bytes = self.facts.needs_bytes or 0
        self.is_starting = False

    def watch(self) -> bool:
        return self.is_alive

    def restart(self) -> None:
        if self.is_starting:
            raise EngineRefused("it is starting")
        self.start()

    def release(self) -> None:
        assert not self.is_releasing, "by two threads at a time"
        self.is_releasing = True
        self.may_end.wait(PATIENCE)
        self.taken_bytes = 0
        self.is_releasing = False

    def stop(self) -> None:
        self.has_stopped = True
        self.release()

    def clean_up(self) -> None:
        pass


class Kind:
    """A machine with so much memory; all models are there but those that `broken` names."""

    def __init__(self, needs: dict[str, int], memory: int) -> None:
        self.needs, self.memory = needs, memory
        self.engines: dict[str, Engine] = {}
        self.broken: dict[str, str] = {}
        self.most_free: dict[str, int | None] = {}  # as it was said when each was prepared
        self.downloads: dict[str, threading.Event] = {}  # of those whose files come when it is set

    def manage(
        self,
        settings: Settings,
        model: ModelSource,
        entry: EngineEntry,
        wake: Callable[[], None],
        on_progress: Callable[[float], None] | None = None,
        most_free: Callable[[], int | None] | None = None,
    ) -> Engine:
        name = self.name_of(model)
        self.most_free[name] = None if most_free is None else most_free()
        if name in self.downloads and on_progress is not None:
            on_progress(0.5)
            self.downloads[name].wait(PATIENCE)
        if name in self.broken:
            raise EngineSetupError(self.broken[name])
        engine = self.engines[name] = Engine(name, self.needs[name])
        return engine

    def name_of(self, model: ModelSource) -> str:
        return model.given_name or model.source

    def is_here(self, model: ModelSource) -> bool:
        return True

    def free_bytes(self, settings: Settings) -> int | None:
        return self.memory - sum(engine.taken_bytes for engine in self.engines.values())


class Machine:
    """The keepers of the models `a` (the default), `b` and `c`, and a clock."""

    def __init__(self, needs: dict[str, int], memory: int, **settings: Any) -> None:
        self.kind = Kind(needs, memory)
        self.now = 1000.0
        self.told: list[tuple[ModelStatus, ...]] = []
        kind: Any = self.kind
        protocol: EngineKind = kind
        self.keepers = ModelKeepers(
            load_settings({"model": ",".join(needs), **settings}, {}),
            SOLE,
            protocol,
            wake=lambda: None,
            on_change=lambda: self.told.append(self.keepers.statuses),
            now=lambda: self.now,
        )
        self.keepers.prepare_default()
        self.keepers.start_default()
        self.come_up(next(iter(needs)))

    def status(self, name: str) -> ModelStatus:
        return next(status for status in self.keepers.statuses if status.name == name)

    def state(self, name: str) -> ModelState:
        return self.status(name).state

    def settle(self) -> None:
        """Go on until no thread has anything to say."""
        for _ in range(4):
            for model in self.keepers._models.values():
                if model.thread is not None:
                    model.thread.join(PATIENCE)
            assert self.keepers.watch()

    def come_up(self, name: str) -> None:
        self.settle()
        self.kind.engines[name].come_up()
        assert self.keepers.watch()

    def load(self, name: str) -> None:
        self.keepers.load(name)
        self.come_up(name)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.settle()


def test_the_default_one_is_loaded_at_the_start_and_others_when_they_are_asked_for() -> None:
    machine = Machine({"a": GB, "b": GB}, 8 * GB)
    assert [machine.state(name) for name in "ab"] == [ModelState.LOADED, ModelState.NOT_LOADED]
    machine.keepers.load("b")
    assert machine.state("b") is ModelState.LOADING
    machine.come_up("b")
    assert machine.state("b") is ModelState.LOADED
    assert machine.status("b").options == {"address": "b"}
    assert machine.status("b").memory_bytes == GB


def test_a_loading_tells_how_far_it_is() -> None:
    machine = Machine({"a": GB, "b": GB}, 8 * GB)
    machine.keepers.load("b")
    machine.settle()
    machine.kind.engines["b"].taken_bytes = GB // 2
    machine.keepers.watch()
    assert (machine.status("b").stage, machine.status("b").progress) == ("loading", 0.5)
    machine.kind.engines["b"].taken_bytes = 2 * GB  # more than was foreseen is not more than all
    machine.keepers.watch()
    assert machine.status("b").progress == 0.99


def test_a_download_tells_how_far_it_is_and_others_are_loaded_meanwhile() -> None:
    machine = Machine({"a": GB, "b": GB, "c": GB}, 8 * GB)
    arrived = machine.kind.downloads["b"] = threading.Event()
    machine.keepers.load("b")
    deadline = time.monotonic() + PATIENCE
    while machine.status("b").progress is None and time.monotonic() < deadline:
        machine.keepers.watch()  # a thread has begun to fetch it
    assert (machine.status("b").stage, machine.status("b").progress) == ("preparing", 0.5)
    machine.keepers.load("c")
    while "c" not in machine.kind.engines and time.monotonic() < deadline:
        machine.keepers.watch()
    arrived.set()
    machine.come_up("c")
    machine.come_up("b")
    assert [machine.state(name) for name in "bc"] == ["loaded", "loaded"]


def test_before_a_download_all_memory_counts_that_other_models_may_give_back() -> None:
    machine = Machine({"a": 3 * GB, "b": 4 * GB}, 6 * GB)
    machine.keepers.note_uses("w1", ["a"])
    machine.keepers.load("b")
    machine.settle()
    assert machine.kind.most_free["b"] == 6 * GB
    assert machine.state("b") is ModelState.FAILED  # as it is here, and does not fit now


def test_a_model_goes_when_nobody_has_used_it_for_a_while_and_the_default_one_stays() -> None:
    machine = Machine({"a": GB, "b": GB}, 8 * GB, model_idle_seconds=60)
    machine.load("b")
    machine.keepers.note_uses("w1", ["b"])
    machine.pass_time(100)
    assert machine.state("b") is ModelState.LOADED
    machine.keepers.note_uses("w1", [])
    machine.pass_time(59)
    assert machine.state("b") is ModelState.LOADED
    machine.pass_time(1)
    assert machine.state("b") is ModelState.UNLOADING
    machine.pass_time(GRACE_SECONDS)
    assert [machine.state(name) for name in "ab"] == [ModelState.LOADED, ModelState.NOT_LOADED]
    machine.load("b")
    assert machine.kind.engines["b"].num_starts == 2


def test_who_begins_to_use_a_model_that_is_about_to_go_keeps_it() -> None:
    machine = Machine({"a": GB, "b": GB}, 8 * GB, model_idle_seconds=60)
    machine.load("b")
    machine.pass_time(60)
    assert machine.state("b") is ModelState.UNLOADING
    machine.keepers.note_uses("w1", ["b"])
    machine.pass_time(GRACE_SECONDS)
    assert machine.state("b") is ModelState.LOADED


def test_a_model_that_is_asked_for_while_it_goes_comes_again() -> None:
    machine = Machine({"a": GB, "b": GB}, 8 * GB, model_idle_seconds=60)
    machine.load("b")
    machine.pass_time(60)
    machine.now += GRACE_SECONDS
    machine.keepers.watch()  # its process is being ended
    machine.keepers.load("b")
    machine.come_up("b")
    assert machine.state("b") is ModelState.LOADED


def test_the_uses_of_a_worker_end_with_it() -> None:
    machine = Machine({"a": GB, "b": GB}, 8 * GB, model_idle_seconds=60)
    machine.load("b")
    machine.keepers.note_uses("w1", ["b"])
    machine.keepers.note_uses("w1", [])
    machine.pass_time(60)
    machine.pass_time(GRACE_SECONDS)
    assert machine.state("b") is ModelState.NOT_LOADED


def test_the_longest_unused_model_goes_for_one_that_does_not_fit() -> None:
    machine = Machine({"a": 2 * GB, "b": 2 * GB, "c": 3 * GB}, 6 * GB)
    machine.load("b")
    machine.now += 1
    machine.keepers.note_uses("w1", ["a"])
    machine.keepers.note_uses("w1", [])  # so `b` is the one that was used longest ago
    machine.keepers.load("c")
    machine.settle()
    assert [machine.state(name) for name in "abc"] == ["loaded", "unloading", "loading"]
    machine.pass_time(GRACE_SECONDS)
    machine.come_up("c")
    assert [machine.state(name) for name in "abc"] == ["loaded", "not_loaded", "loaded"]


def test_a_model_that_fits_beside_none_in_use_says_what_it_needs_and_what_is_free() -> None:
    machine = Machine({"a": 3 * GB, "b": 4 * GB}, 6 * GB)
    machine.keepers.note_uses("w1", ["a"])
    machine.keepers.load("b")
    machine.settle()
    assert [machine.state(name) for name in "ab"] == ["loaded", "failed"]
    problem = "it needs 4.0 GB of memory, 3.0 GB are free while a is in use: try --quantize int8"
    assert machine.status("b").problem == problem
    machine.keepers.note_uses("w1", [])
    machine.keepers.load("b")  # the next question tries again, and `a` goes for it
    machine.settle()
    machine.pass_time(GRACE_SECONDS)
    machine.come_up("b")
    assert [machine.state(name) for name in "ab"] == ["not_loaded", "loaded"]
    assert machine.status("b").attempt == 2


def test_nobody_goes_for_a_model_that_would_not_fit_even_then() -> None:
    machine = Machine({"a": 2 * GB, "b": 9 * GB}, 6 * GB)
    machine.keepers.load("b")
    machine.settle()
    assert [machine.state(name) for name in "ab"] == ["loaded", "failed"]


def test_what_a_loaded_model_has_not_taken_yet_is_not_free() -> None:
    machine = Machine({"a": 2 * GB, "b": 2 * GB}, 8 * GB)
    machine.kind.engines["a"].taken_bytes = GB  # its cache fills over time
    assert machine.keepers.free_bytes() == 6 * GB


def test_a_load_that_fails_leaves_the_others_and_is_tried_from_the_files_on() -> None:
    machine = Machine({"a": GB, "b": GB}, 8 * GB)
    machine.keepers.load("b")
    machine.settle()
    failed = machine.kind.engines["b"]
    failed.is_starting, failed.start_error = False, "its weights are cut"
    machine.keepers.watch()
    assert [machine.state(name) for name in "ab"] == ["loaded", "failed"]
    assert machine.status("b").problem == "its weights are cut"
    assert failed.has_stopped
    machine.load("b")
    assert machine.state("b") is ModelState.LOADED and machine.kind.engines["b"] is not failed


def test_a_model_whose_files_have_changed_is_loaded_from_the_files_on() -> None:
    machine = Machine({"a": GB, "b": GB}, 8 * GB, model_idle_seconds=60)
    machine.load("b")
    machine.pass_time(60)
    machine.pass_time(GRACE_SECONDS)
    before = machine.kind.engines["b"]
    before.is_current = False
    machine.kind.needs["b"] = 2 * GB
    machine.load("b")
    assert before.has_stopped and before.num_starts == 1
    assert machine.status("b").memory_bytes == 2 * GB


def test_files_that_cannot_be_served_are_known_before_anybody_asks() -> None:
    machine = Machine({"a": GB, "b": GB}, 8 * GB)
    machine.kind.broken["b"] = "there is no folder b"
    machine.keepers.load("b")
    machine.settle()
    assert machine.status("b").problem == "there is no folder b"


def test_a_core_that_dies_again_and_again_fails_its_model_alone() -> None:
    machine = Machine({"a": GB, "b": GB}, 8 * GB)
    machine.load("b")
    machine.kind.engines["b"].is_alive = False
    machine.settle()
    assert [machine.state(name) for name in "ab"] == ["loaded", "failed"]


def test_the_only_model_that_does_not_start_any_more_ends_the_server() -> None:
    machine = Machine({"a": GB}, 8 * GB)
    machine.kind.engines["a"].is_alive = False
    assert not machine.keepers.watch()


def test_an_administrator_lets_a_model_go_when_its_answers_have_ended() -> None:
    machine = Machine({"a": GB, "b": GB}, 8 * GB)
    machine.load("b")
    machine.keepers.note_uses("w1", ["b"])
    machine.keepers.unload("b")
    machine.pass_time(GRACE_SECONDS)
    assert machine.state("b") is ModelState.LOADED
    machine.keepers.note_uses("w1", [])
    machine.settle()
    machine.pass_time(GRACE_SECONDS)
    assert machine.state("b") is ModelState.NOT_LOADED


def test_a_model_that_is_to_go_while_it_is_loaded_goes_when_it_is_there() -> None:
    machine = Machine({"a": GB, "b": GB}, 8 * GB)
    machine.keepers.load("b")
    machine.settle()
    machine.keepers.unload("b")
    machine.come_up("b")
    machine.settle()
    machine.pass_time(GRACE_SECONDS)
    assert machine.state("b") is ModelState.NOT_LOADED
    machine.load("b")  # and stays then
    machine.pass_time(GRACE_SECONDS)
    assert machine.state("b") is ModelState.LOADED


def test_the_end_waits_for_a_model_that_goes_already_and_leaves_nothing_behind() -> None:
    machine = Machine({"a": GB, "b": GB, "c": GB}, 8 * GB, model_idle_seconds=60)
    machine.load("b")
    going = machine.kind.engines["b"]
    going.may_end.clear()
    machine.now += 60
    machine.keepers.watch()
    machine.now += GRACE_SECONDS
    machine.keepers.watch()
    machine.keepers.load("c")  # nobody takes up any more what is found of it
    preparing = machine.keepers._models["c"].thread
    assert preparing is not None
    preparing.join(PATIENCE)
    threading.Timer(0.05, going.may_end.set).start()
    machine.keepers.stop()
    assert all(engine.has_stopped for engine in machine.kind.engines.values())


def test_two_models_of_one_name_are_refused() -> None:
    with pytest.raises(EngineSetupError, match="two models have the name b"):
        Machine({"b": GB, "b=c": GB}, GB)


# ---- several engines ----------------------------------------------------------------------------


def groups(engines: str = "native*2", model: str = "a b") -> ModelKeepers:
    """Keepers of models that have several engines, of which the default one is prepared."""
    settings = load_settings({"engines": engines, "model": model}, {})
    kind: Any = Kind({"a": GB, "b": GB}, 8 * GB)
    group = GroupKind(dict.fromkeys(("native", "openai"), kind))
    keepers = ModelKeepers(settings, EngineEntry(GROUP, GROUP), group, wake=lambda: None)
    keepers.prepare_default()
    return keepers


def names(keepers: ModelKeepers) -> list[list[str]]:
    return [[engine.name for engine in status.engines] for status in keepers.statuses]


def test_engines_are_known_before_their_model_is_loaded() -> None:
    keepers = groups("native native;for=b;name=own")
    assert names(keepers) == [["native-1"], ["native-1", "own"]]
    (entry,) = parse_engines(["native;name=c;for=b"])
    with pytest.raises(EngineRefused, match="nobody has asked b yet"):
        keepers.add_engine(entry)
    with pytest.raises(EngineRefused, match="nobody has asked b yet"):
        keepers.drain_engine("own", is_draining=True, must_move=False)
    with pytest.raises(EngineRefused, match="no other engine takes answers"):  # of a
        keepers.drain_engine("native-1", is_draining=True, must_move=False)


def test_there_are_as_many_engines_as_there_may_be_whichever_worker_was_asked() -> None:
    keepers = groups(f"native*{MAX_ENGINES - 1}", model="a")
    first, second = (parse_engines([f"native;name={name}"])[0] for name in ("x", "y"))
    keepers.add_engine(first)
    for entry, problem in ((first, "there is an engine x"), (second, f"are {MAX_ENGINES}")):
        with pytest.raises(EngineRefused, match=problem):
            keepers.add_engine(entry)
    assert len(names(keepers)[0]) == MAX_ENGINES


def test_what_cannot_be_changed_is_refused_in_one_line() -> None:
    machine = Machine({"a": GB}, 8 * GB)
    entry = parse_engines(["native;name=x"])[0]
    with pytest.raises(EngineRefused, match="one engine alone"):
        machine.keepers.add_engine(entry)
    for name, ask in (("x", groups().remove_engine), ("y", groups(model="a").remove_engine)):
        with pytest.raises(EngineRefused, match=f"no engine {name}"):
            ask(name)


# ---- an engine that starts again ----------------------------------------------------------------


def why_not_restarted(machine: Machine, name: str, model: str | None = None) -> str:
    with pytest.raises(EngineRefused) as refusal:
        machine.keepers.restart_engine(name, model)
    return str(refusal.value)


def test_an_engine_starts_again_once_however_many_ask_and_the_others_stay() -> None:
    machine = Machine({"a": GB, "b": GB}, 8 * GB)
    machine.load("b")
    machine.keepers.restart_engine("b")
    assert why_not_restarted(machine, "b") == "b: it is starting"
    assert [machine.kind.engines[name].num_starts for name in "ab"] == [1, 2]
    machine.come_up("b")
    machine.keepers.restart_engine("b", "b")
    assert machine.kind.engines["b"].num_starts == 3


def test_who_asks_for_the_restart_of_what_is_not_there_hears_why_it_is_not() -> None:
    machine = Machine({"a": GB, "b": GB}, 8 * GB)
    assert why_not_restarted(machine, "c") == "there is no engine c"
    assert why_not_restarted(machine, "a", "b") == "there is no engine a"
    assert "not loaded" in why_not_restarted(machine, "b")
    machine.keepers.load("b")
    assert "is loading" in why_not_restarted(machine, "b")


class Elsewhere(Engine):
    """Nobody here restarts it."""

    # As engines at an address have none, though the type of ours says a method.
    restart = None  # type: ignore[assignment]


def test_an_engine_elsewhere_is_restarted_by_nobody() -> None:
    machine = Machine({"a": GB}, 8 * GB)
    machine.kind.engines["a"].__class__ = Elsewhere
    assert why_not_restarted(machine, "a") == "a is not ours: restart it where it runs"


def test_of_engines_of_one_name_the_model_tells_which_starts_again() -> None:
    with pytest.raises(EngineRefused, match="name the model, too"):
        groups("native").restart_engine("native")


def test_of_engines_of_one_name_the_model_tells_which_is_drained_and_removed() -> None:
    keepers = groups()
    keepers.drain_engine("native-1", "a", is_draining=True, must_move=False)
    drained = [[engine.is_draining for engine in status.engines] for status in keepers.statuses]
    assert drained == [[True, False], [False, False]]
    keepers.remove_engine("native-1", "a")
    assert names(keepers) == [["native-2"], ["native-1", "native-2"]]
    with pytest.raises(EngineRefused, match="nobody has asked b yet"):
        keepers.remove_engine("native-1", "b")
    with pytest.raises(EngineRefused, match="no engine native-1"):
        keepers.remove_engine("native-1", "a")
