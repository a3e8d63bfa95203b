"""`GroupKeeper` and `GroupKind`: the supervisor's several engines of one model."""

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from server.config.engines import EngineEntry, parse_engines
from server.config.models import ModelFacts, ModelSource
from server.config.settings import Settings, load_settings
from server.engines.kinds import KINDS, chosen_entry
from server.engines.managed import EngineRefused, EngineSetupError
from server.engines.placement import keeper as module
from server.engines.placement.keeper import GroupKeeper
from server.engines.placement.kind import GroupKind
from tests.helpers.patience import PATIENCE


class Managed:
    """One engine, which does what the test says."""

    model_name = "model"
    taken_bytes = 10
    is_refusal = False

    def __init__(self, name: str) -> None:
        self.connect_options: Mapping[str, Any] = {"address": name}
        self.facts = ModelFacts(context_length=64, needs_bytes=100)
        self.memory_bytes: int | None = 100
        self.is_current = self.is_alive = self.is_starting = True
        self.start_error: str | None = None
        self.due: float | None = None
        self.num_failed_starts = 0
        self.said: list[str] = []
        self.has_stopped = threading.Event()

    def start(self) -> None:
        self.said.append("start")

    def watch(self) -> bool:
        self.said.append("watch")
        return self.is_alive

    def release(self) -> None:
        self.said.append("release")

    def stop(self) -> None:
        self.said.append("stop")
        self.has_stopped.set()

    def clean_up(self) -> None:
        self.said.append("clean up")

    def come_up(self) -> None:
        self.is_starting = False

    def fail(self, problem: str) -> None:
        self.is_starting, self.start_error, self.num_failed_starts = False, problem, 10


class Kind:
    """Engines by their names."""

    def __init__(self) -> None:
        self.engines: dict[str, Managed] = {}
        self.problems: dict[str, str] = {}
        self.num_sharing: dict[str, int] = {}

    def manage(
        self, settings: Settings, model: ModelSource, entry: EngineEntry, *rest: Any
    ) -> Managed:
        if entry.name in self.problems:
            raise EngineSetupError(self.problems[entry.name])
        self.num_sharing[entry.name] = entry.num_sharing
        return self.engines.setdefault(entry.name, Managed(entry.name))

    def name_of(self, model: ModelSource) -> str:
        return model.given_name or model.source


class Group:
    """A keeper of these engines, and what it has said."""

    def __init__(self, engines: str = "native*2", **settings: Any) -> None:
        self.kind = Kind()
        self.settings = load_settings({"engines": engines, **settings}, {})
        kind: Any = self.kind
        group = GroupKind(dict.fromkeys(("native", "vllm", "openai"), kind))
        model, entry = self.settings.models[0], chosen_entry(self.settings)
        self.woken = threading.Event()
        self.keeper = group.manage(self.settings, model, entry, self.woken.set)
        self.num_changes = 0
        self.keeper.on_change = self._count

    def _count(self) -> None:
        self.num_changes += 1

    def __getitem__(self, name: str) -> Managed:
        return self.kind.engines[name]

    def settle(self) -> bool:
        assert self.woken.wait(PATIENCE)
        self.woken.clear()
        return self.keeper.watch()

    def shown(self) -> dict[str, tuple[bool, str | None, Any]]:
        return {
            each.name: (each.is_draining, each.problem, each.options)
            for each in self.keeper.engines
        }


@pytest.fixture(autouse=True)
def _built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("vllm", "openai"):
        monkeypatch.setitem(KINDS, name, KINDS["native"])


def test_it_serves_as_soon_as_one_of_them_does() -> None:
    group = Group()
    group.keeper.start()
    assert group.keeper.is_starting
    group["native-2"].come_up()
    assert not group.keeper.is_starting and group.keeper.start_error is None
    assert [engine.said for engine in group.kind.engines.values()] == [["start"], ["start"]]


def test_one_that_cannot_start_takes_nothing_from_the_other() -> None:
    group = Group()
    group["native-1"].fail("no memory")
    assert group.keeper.is_starting and group.keeper.start_error is None
    group["native-2"].come_up()
    assert not group.keeper.is_starting and group.keeper.start_error is None
    group["native-1"].is_alive = False
    assert group.keeper.watch()
    assert group.shown()["native-1"][1] == "no memory"
    assert group.keeper.watch() and group["native-1"].said.count("watch") == 1
    group["native-2"].is_alive = False
    assert not group.keeper.watch()


def test_when_all_fail_to_start_the_first_says_why() -> None:
    group = Group()
    group["native-1"].fail("no memory")
    group["native-2"].fail("no memory either")
    assert not group.keeper.is_starting
    assert group.keeper.start_error == "no memory"
    assert group.keeper.num_failed_starts == 10


def test_it_takes_what_all_of_them_take_together() -> None:
    group = Group("native*3")
    assert group.keeper.facts == ModelFacts(context_length=64, needs_bytes=300)
    assert (group.keeper.memory_bytes, group.keeper.taken_bytes) == (300, 30)
    group["native-2"].due = 7.0
    assert group.keeper.due == 7.0
    assert group.keeper.is_current
    group["native-3"].is_current = False
    assert not group.keeper.is_current


def test_workers_learn_the_model_by_the_first_and_join_each() -> None:
    group = Group("native*2;weight=3")
    first = {"address": "native-1"}
    assert group.keeper.connect_options == {"kind": "native", "options": first}
    assert group.shown() == {
        name: (False, None, {"address": name}) for name in ("native-1", "native-2")
    }
    assert [each.weight for each in group.keeper.engines] == [3.0, 3.0]


def test_one_drains_and_is_back() -> None:
    group = Group()
    group.keeper.drain("native-2", is_draining=True, must_move=True)
    (first, second) = group.keeper.engines
    assert (first.is_draining, second.is_draining, second.must_move) == (False, True, True)
    group.keeper.drain("native-2", is_draining=False)
    assert not group.keeper.engines[1].is_draining and not group.keeper.engines[1].must_move
    with pytest.raises(EngineRefused, match="no engine nothing"):
        group.keeper.drain("nothing", is_draining=True)
    assert group.num_changes == 2


def test_of_two_that_are_drained_at_the_same_time_one_goes_on() -> None:
    group = Group()
    group.keeper.drain("native-1", is_draining=True)
    with pytest.raises(EngineRefused, match="no other engine takes answers"):
        group.keeper.drain("native-2", is_draining=True)
    assert [each.is_draining for each in group.keeper.engines] == [True, False]
    group.keeper.drain("native-1", is_draining=True, must_move=True)
    assert group.keeper.engines[0].must_move


def test_one_stays_while_all_others_drain() -> None:
    group = Group()
    group.keeper.drain("native-1", is_draining=True)
    with pytest.raises(EngineRefused, match="no other engine takes answers"):
        group.keeper.remove("native-2")
    assert list(group.shown()) == ["native-1", "native-2"]
    group.keeper.remove("native-1")
    assert list(group.shown()) == ["native-2"]


def test_one_is_added_made_ready_in_a_thread_and_started() -> None:
    group = Group("native*1")
    (entry,) = parse_engines(["vllm=https://gpu1;name=gpu"])
    group.keeper.add(entry)
    assert group.shown()["gpu"] == (False, None, None)
    assert group.settle()
    assert group.shown()["gpu"] == (False, None, {"address": "gpu"})
    assert group["gpu"].said[0] == "start"
    assert group.num_changes == 2


def test_what_is_added_must_be_able_to_stand_for_all_that_are_there_by_then() -> None:
    group = Group("openai=http://x openai=http://y")
    (first, second) = (parse_engines([text])[0] for text in ("openai=http://z;name=z", "native"))
    group.keeper.add(first)
    assert group.settle()
    for name in ("openai-1", "openai-2"):
        group.keeper.remove(name)
    assert list(group.shown()) == ["z"]
    with pytest.raises(EngineRefused, match="z knows no token ids"):
        group.keeper.add(second)
    assert list(group.shown()) == ["z"]


def test_one_that_cannot_be_made_ready_says_why_until_it_is_removed() -> None:
    group = Group("native*1")
    group.kind.problems["gpu"] = "it has another tokenizer"
    (entry,) = parse_engines(["vllm=https://gpu1;name=gpu"])
    group.keeper.add(entry)
    assert group.settle()
    assert group.shown()["gpu"] == (False, "it has another tokenizer", None)
    group.keeper.remove("gpu")
    assert list(group.shown()) == ["native-1"]


def test_one_that_is_removed_ends_when_its_answers_have_had_time_to_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PARTING_SECONDS", 0.0)
    group = Group()
    group.keeper.remove("native-2")
    assert list(group.shown()) == ["native-1"]
    assert group["native-2"].has_stopped.wait(PATIENCE)
    assert group.keeper.watch() and "watch" not in group["native-2"].said


def test_one_that_is_removed_before_it_is_ready_leaves_nothing_behind() -> None:
    group = Group("native*1")
    (entry,) = parse_engines(["vllm=https://gpu1;name=gpu"])
    group.keeper.add(entry)
    group.keeper.remove("gpu")
    assert group.settle()
    assert list(group.shown()) == ["native-1"]
    assert group["gpu"].said == ["clean up"]


def test_the_last_one_stays() -> None:
    group = Group("native*1")
    with pytest.raises(EngineRefused):
        group.keeper.remove("native-1")
    assert list(group.shown()) == ["native-1"]


def test_the_end_ends_also_one_that_was_just_removed() -> None:
    group = Group()
    group.keeper.remove("native-2")
    group.keeper.stop()
    assert all(group[name].has_stopped.is_set() for name in ("native-1", "native-2"))
    group.keeper.clean_up()
    assert "clean up" in group["native-2"].said


@pytest.mark.parametrize(
    ("engines", "num_sharing"),
    [("native*3", 3), ("native*1", 1), ("native*2 vllm=http://x", 2), ("vllm=http://x native", 1)],
)
def test_cores_on_this_machine_share_its_processors_also_with_one_that_comes_later(
    engines: str, num_sharing: int
) -> None:
    group = Group(engines)
    (late,) = parse_engines(["native;name=late"])
    group.keeper.add(late)
    group.settle()
    assert set(group.kind.num_sharing.values()) == {num_sharing}


def test_if_one_cannot_be_made_ready_at_the_start_nothing_is_left_behind() -> None:
    kind = Kind()
    kind.problems["native-2"] = "no such model"
    known: Any = {"native": kind}
    settings = load_settings({"engines": "native*2"}, {})
    with pytest.raises(EngineSetupError, match="no such model"):
        GroupKind(known).manage(settings, settings.models[0], chosen_entry(settings), print)
    assert kind.engines["native-1"].said == ["clean up"]


@pytest.mark.parametrize(
    ("engines", "of_a", "of_b"),
    [
        ("native*2", ["native-1", "native-2"], ["native-1", "native-2"]),
        ("native vllm=http://x", ["native-1", "vllm-1"], ["native-1"]),
        ("native;for=b vllm=http://x", ["vllm-1"], ["native-1"]),
        ("vllm=http://x vllm=http://y;for=b", ["vllm-1"], ["vllm-2"]),
    ],
)
def test_each_model_has_the_engines_that_are_for_it(
    engines: str, of_a: list[str], of_b: list[str]
) -> None:
    settings = load_settings({"engines": engines, "model": "a b"}, {})
    known: Any = {"native": Kind()}
    group = GroupKind(known)
    names = [[each.name for each in group.entries_of(settings, model)] for model in settings.models]
    assert names == [of_a, of_b]


@pytest.mark.parametrize(
    ("engines", "problem"),
    [
        ("vllm=http://x", "no engine serves b"),
        ("native openai=http://x", "openai-1 knows no token ids"),
    ],
)
def test_engines_that_cannot_stand_for_each_other_are_refused_in_one_line(
    engines: str, problem: str
) -> None:
    settings = load_settings({"engines": engines, "model": "a b"}, {})
    known: Any = {"native": Kind()}
    with pytest.raises(EngineSetupError, match=problem):
        for model in settings.models:
            GroupKind(known).entries_of(settings, model)


def test_an_engine_that_is_alone_is_no_group_and_several_are_one() -> None:
    def kind_of(**flags: Any) -> str:
        return chosen_entry(load_settings(flags, {})).kind

    assert kind_of() == kind_of(engines="native") == "native"
    assert kind_of(engines="vllm=http://x") == "vllm"
    assert kind_of(engines="vllm=http://x", model="a b") == "group"
    for engines in ("native*1", "native;name=a", "native*2", "vllm=http://x native"):
        assert kind_of(engines=engines) == "group"


def test_a_group_has_names_of_models_as_its_first_engine_has() -> None:
    class Other(Kind):
        def name_of(self, model: ModelSource) -> str:
            return f"other {model.source}"

        def free_bytes(self, settings: Settings) -> int | None:
            return None

    class Ours(Kind):
        def free_bytes(self, settings: Settings) -> int | None:
            return 7

    known: Any = {"native": Ours(), "vllm": Other()}
    mixed = load_settings({"engines": "vllm=http://x native", "model": "m"}, {})
    remote = load_settings({"engines": "vllm=http://x vllm=http://y", "model": "m"}, {})
    group = GroupKind(known).led_by("vllm")
    assert group.name_of(mixed.models[0]) == "other m"
    assert (group.free_bytes(mixed), group.free_bytes(remote)) == (7, None)


def test_a_kind_that_is_not_built_in_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(KINDS, "vllm")
    with pytest.raises(EngineSetupError, match="the kind vllm are not built in"):
        chosen_entry(load_settings({"engines": "vllm=http://x"}, {}))


def test_what_a_thread_cannot_explain_is_told_by_its_name() -> None:
    def prepare(entry: EngineEntry) -> Managed:
        raise KeyError("x")

    woken = threading.Event()
    first, entry = Managed("a"), parse_engines(["native;name=b"])[0]
    keeper = GroupKeeper([(EngineEntry("native", "a"), first)], prepare=prepare, wake=woken.set)
    keeper.add(entry)
    assert woken.wait(PATIENCE) and keeper.watch()
    assert keeper.engines[1].problem == "it cannot be prepared: KeyError"
