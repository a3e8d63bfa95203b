"""Which engines an admin's words are about, where several models have engines of one name."""

from types import SimpleNamespace
from typing import Any

import pytest

from server.api.admin.engines import AdminEngineOperations, EngineOf
from server.engines.placement.figures import EngineFigures
from server.protocol.errors import ApiError

NAMES = ("native-1", "native-2")


class House:
    """Two models with two engines each, of which the second one of `small` is away."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.noted: list[tuple[str, ...]] = []
        self.auditor = self
        models: Any = self
        self.operations = AdminEngineOperations(models, models)

    def engine_figures(self) -> dict[str, list[EngineFigures]]:
        states: dict[str, tuple[Any, Any]] = {
            "large": ("ready", "ready"),
            "small": ("ready", "dead"),
        }
        return {
            model: [
                EngineFigures(name, "native", None, 1.0, state, False)
                for name, state in zip(NAMES, pair, strict=True)
            ]
            for model, pair in states.items()
        }

    @property
    def statuses(self) -> list[Any]:
        return [SimpleNamespace(name=model, engines=NAMES) for model in self.engine_figures()]

    async def note(self, actor: object, *words: str) -> None:
        self.noted.append(words)

    async def drain(self, *words: object, **wish: object) -> None:
        self.asked.append((*words, *wish.values()))

    async def remove_engine(self, *words: object) -> None:
        self.asked.append(words)


def call(name: str, **words: object) -> Any:
    async def body() -> dict[str, object]:
        return words

    model: Any = words.get("model")
    state = SimpleNamespace(actor=None)
    return SimpleNamespace(
        path=lambda _: name, body=body, query=EngineOf(model), request=SimpleNamespace(state=state)
    )


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setattr("server.api.admin.engines.actor_of", lambda call: None)
    return House()


async def test_the_model_says_whose_engine_is_drained_taken_back_and_removed(house: House) -> None:
    operations = house.operations
    await operations.drain(call("native-1", model="large", move=True))
    await operations.resume(call("native-1", model="large"))
    await operations.remove(call("native-1", model="large"))
    assert house.asked == [
        ("native-1", "large", True, True),
        ("native-1", "large", False),
        ("native-1", "large"),
    ]
    assert house.noted == [
        ("engine.drain", "native-1", "large"),
        ("engine.resume", "native-1", "large"),
        ("engine.remove", "native-1", "large"),
    ]


async def test_without_a_model_all_engines_of_the_name_are_meant(house: House) -> None:
    await house.operations.resume(call("native-1"))
    await house.operations.remove(call("native-2"))
    assert house.asked == [("native-1", None, False), ("native-2", None)]
    with pytest.raises(ApiError, match="no other engine takes answers"):  # of `small`
        await house.operations.drain(call("native-1"))


async def test_the_last_engine_of_its_model_and_one_of_no_such_model_are_refused(
    house: House,
) -> None:
    with pytest.raises(ApiError, match="no other engine takes answers"):
        await house.operations.remove(call("native-1", model="small"))
    for deed in (house.operations.drain, house.operations.resume, house.operations.remove):
        with pytest.raises(ApiError, match="no such model"):
            await deed(call("native-1", model="huge"))
    assert house.noted == house.asked == []
