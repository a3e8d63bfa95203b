"""`Models`: what one worker knows of the models that the supervisor names."""

from typing import Any

import pytest

from server.config.models import ModelState, ModelStatus
from server.engines.client import ServedModel
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
