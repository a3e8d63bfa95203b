"""`Models`: what one worker knows of the models that the supervisor names."""

import asyncio
from typing import Any

import pytest

from server.config.models import EngineStatus, ModelState, ModelStatus
from server.engines.client import ServedModel
from server.engines.managed import EngineRefused
from server.engines.models import Models
from tests.server.helpers.engines import IdleEngine


class Worker:
    """It serves `a`, the default, and `b`."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.tokenizers: dict[str, Any] = {}
        self.models = Models(
            [self.status("a"), self.status("b")],
            [IdleEngine(), IdleEngine()],
            ServedModel("a", "1"),
            tell=self.told.append,
            tokenizers=self.tokenizers,
        )

    def status(self, name: str, **fields: Any) -> ModelStatus:
        return ModelStatus(name=name, kind="native", **fields)


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_a_model_of_other_files_is_not_joined_with_the_tokenizer_of_those_before(
    worker: Worker,
) -> None:
    first = worker.status("b", options={"address": "1"})
    assert worker.models.take([worker.status("a"), first]) == [first]
    worker.models.add(ServedModel("b", "1"), "a tokenizer")
    loaded = worker.status("b", options={"address": "1"}, state=ModelState.LOADED)
    assert worker.models.take([worker.status("a"), loaded]) == []
    assert worker.tokenizers == {"b": "a tokenizer"}
    second = worker.status("b", options={"address": "2"})
    assert worker.models.take([worker.status("a"), second]) == [second]
    assert worker.tokenizers == {}


def test_files_are_read_once_for_their_options_and_again_if_that_fails(worker: Worker) -> None:
    options = {"address": "1"}
    known = worker.status("b", options=options)
    loading = worker.status("b", options=options, state=ModelState.LOADING)
    loaded = worker.status("b", options=options, state=ModelState.LOADED)
    default = worker.status("a")
    assert worker.models.take([default, known]) == [known]
    assert worker.models.take([default, loading]) == []  # they are being read
    worker.models.forget("b")
    assert worker.models.take([default, loaded]) == [loaded]


GROUPED = tuple(EngineStatus(name=name, kind="native") for name in ("native-1", "native-2"))


def test_engines_of_a_model_that_is_not_loaded_are_listed_as_that(worker: Worker) -> None:
    worker.models.take([worker.status("a"), worker.status("b", engines=GROUPED)])
    found = worker.models.engine_figures()
    assert {name: [one.name for one in figures] for name, figures in found.items()} == {
        "b": ["native-1", "native-2"]
    }
    assert {one.state for one in found["b"]} == {"not_loaded"}


async def test_a_change_of_engines_has_the_word_of_the_supervisor(worker: Worker) -> None:
    first = asyncio.ensure_future(worker.models.drain("x", "a", is_draining=True))
    second = asyncio.ensure_future(worker.models.remove_engine("y"))
    await asyncio.sleep(0)
    numbers = [line["number"] for line in worker.told]
    asked = [(line["type"], line["engine"], line["model"]) for line in worker.told]
    assert asked == [("drain_engine", "x", "a"), ("remove_engine", "y", None)]
    worker.models.hear(numbers[1], "no other engine takes answers")
    worker.models.hear(numbers[0], None)
    worker.models.hear(numbers[0], "again")
    await first
    with pytest.raises(EngineRefused, match="no other"):
        await second


async def test_a_supervisor_that_says_nothing_is_not_waited_for_for_ever(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.engines.models.ASK_SECONDS", 0.01)
    with pytest.raises(TimeoutError):
        await worker.models.add_engine("native")
    worker.models.hear(worker.told[0]["number"], None)  # late, which nobody minds
