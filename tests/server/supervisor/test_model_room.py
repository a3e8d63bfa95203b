"""Which models go for another, and why one does not fit."""

from types import SimpleNamespace
from typing import Any

from server.config.models import ModelFacts, ModelSource, ModelState, ModelStatus
from server.supervisor.kept_model import KeptModel
from server.supervisor.model_room import ModelRoom

GB = 10**9


def kept(
    name: str,
    state: ModelState = ModelState.LOADED,
    *,
    taken: int = 0,
    promised: int = 0,
    users: tuple[str, ...] = (),
    used_at: float = 0.0,
) -> KeptModel:
    engine: Any = SimpleNamespace(taken_bytes=taken * GB, facts=ModelFacts())
    status = ModelStatus(name=name, kind="native", state=state, memory_bytes=promised * GB)
    model = KeptModel(ModelSource(name), status, lambda: None, engine, set(users))
    model.used_at = used_at
    return model


def test_what_models_were_promised_is_not_free() -> None:
    models = [
        kept("half filled", taken=2, promised=5),
        kept("goes", ModelState.UNLOADING, taken=1, promised=2),
        kept("away", ModelState.NOT_LOADED, promised=9),
    ]
    room = ModelRoom(models, lambda: 20 * GB)
    assert room.free_bytes() == 16 * GB
    assert room.most_free_bytes() == 23 * GB
    assert ModelRoom(models, lambda: 2 * GB).free_bytes() == 0
    assert ModelRoom(models, lambda: None).free_bytes() is None


def test_those_go_that_nobody_has_used_for_longest_and_no_more_than_must() -> None:
    models = [
        kept("new", promised=4, used_at=3),
        kept("old", promised=2, used_at=1),
        kept("used", promised=8, users=("w1",)),
        kept("older", promised=1, used_at=0.5),
    ]
    room = ModelRoom(models, lambda: 0)
    assert [model.name for model in room.that_make_room(2 * GB)] == ["older", "old"]
    assert room.that_make_room(8 * GB) == []  # all of them would not do


def test_the_refusal_of_a_model_that_does_not_fit_names_what_is_in_its_way_and_what_would_fit() -> (
    None
):
    room = ModelRoom([kept("chat", users=("w1",)), kept("idle")], lambda: 0)
    facts = ModelFacts(smaller={"--quantize int8": 9 * GB, "--quantize int4": 5 * GB})
    said = room.misfit(facts, 12 * GB, 6 * GB)
    assert said == (
        "it needs 12.0 GB of memory, 6.0 GB are free while chat is in use: try --quantize int4"
    )
