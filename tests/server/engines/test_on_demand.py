"""`OnDemandEngine`: joined while the supervisor has it loaded, asked for when somebody asks it."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import pytest

from server.config.models import ModelFacts, ModelState, ModelStatus
from server.engines import on_demand
from server.engines.client import (
    CoreState,
    ModelLoadError,
    QueueOverflowError,
    RetryableRequestError,
    SamplingParams,
    UnsupportedModelError,
)
from server.engines.on_demand import OnCoreState, OnDemandEngine
from tests.helpers.patience import PATIENCE
from tests.server.helpers.answering import Engine, output

OPTIONS = {"address": "somewhere"}


class Supervised:
    """An engine, and the supervisor's side of it."""

    def __init__(self, **fields: Any) -> None:
        self.status = ModelStatus(name="m", kind="native", **fields)
        self.inner = Engine()
        self.problem: str | None = None
        self.num_loads = self.num_joined = 0
        self.uses: list[bool] = []
        self.engine = OnDemandEngine(
            self.status,
            connect=self._connect,
            load=self._load,
            on_use=lambda: self.uses.append(self.engine.is_used),
            on_core_state=lambda state, reason: None,
            max_waiting=2,
        )
        self.engine.begin()

    def _connect(self, options: Mapping[str, Any], on_core_state: OnCoreState) -> Engine:
        self.num_joined += 1
        if self.problem is not None:
            raise UnsupportedModelError(self.problem)
        return self.inner

    def _load(self) -> None:
        self.num_loads += 1

    def say(self, state: ModelState, attempt: int = 1, **fields: Any) -> None:
        self.status = ModelStatus(name="m", kind="native", state=state, attempt=attempt, **fields)
        self.engine.take(self.status)


@pytest.fixture(autouse=True)
def no_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "LINGER_SECONDS", 0.0)


async def test_who_waits_for_it_has_it_loaded() -> None:
    model = Supervised()
    waiting = asyncio.create_task(model.engine.wait_ready(PATIENCE))
    await asyncio.sleep(0)
    assert (model.num_loads, model.uses) == (1, [True])
    model.say(ModelState.LOADING)
    model.say(ModelState.LOADED, options=OPTIONS)
    await asyncio.wait_for(waiting, PATIENCE)
    assert model.engine.is_ready and model.engine.core_state is CoreState.READY


async def test_a_loading_that_fails_says_why_and_soon_after_without_another_try() -> None:
    model = Supervised()
    waiting = asyncio.create_task(model.engine.call(PATIENCE))
    await asyncio.sleep(0)
    model.say(ModelState.LOADING)
    model.say(ModelState.FAILED, problem="it needs 21 GB")
    with pytest.raises(ModelLoadError, match="m: it needs 21 GB"):
        await waiting
    with pytest.raises(ModelLoadError):
        await model.engine.call(PATIENCE)
    assert model.num_loads == 1


async def test_a_failure_of_before_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "RETRY_SECONDS", 0.0)
    model = Supervised()
    model.say(ModelState.FAILED, problem="once")
    waiting = asyncio.create_task(model.engine.call(PATIENCE))
    await asyncio.sleep(0)
    assert model.num_loads == 1
    model.say(ModelState.LOADING, attempt=2, stage="loading")
    await asyncio.wait_for(waiting, PATIENCE)


async def test_a_worker_that_cannot_join_says_so_to_who_waits() -> None:
    model = Supervised()
    model.problem = "tokenizer.json: is missing"
    waiting = asyncio.create_task(model.engine.wait_ready())
    await asyncio.sleep(0)
    model.say(ModelState.LOADING, options=OPTIONS, stage="loading")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json: is missing"):
        await asyncio.wait_for(waiting, PATIENCE)
    model.say(ModelState.LOADING, options=OPTIONS, stage="loading", progress=0.5)
    assert model.num_joined == 1


async def test_what_was_let_go_counts_as_ready_and_is_let_go_here_too() -> None:
    model = Supervised(state=ModelState.LOADED, options=OPTIONS)
    await model.engine.wait_ready(PATIENCE)
    model.say(ModelState.NOT_LOADED)
    assert model.engine.core_state is CoreState.READY and not model.engine.is_ready
    with pytest.raises(RetryableRequestError):
        model.engine.get_tokenizer()
    assert model.engine.model_config.max_model_len == model.inner.model_config.max_model_len


async def test_the_context_is_what_the_files_say_until_it_is_loaded() -> None:
    model = Supervised()
    with pytest.raises(RetryableRequestError):
        _ = model.engine.model_config
    model.say(ModelState.NOT_LOADED, facts=ModelFacts(context_length=2048))
    assert model.engine.model_config.max_model_len == 2048


async def test_it_is_used_while_it_answers_and_no_longer() -> None:
    model = Supervised(state=ModelState.LOADED, options=OPTIONS)
    await model.engine.wait_ready(PATIENCE)
    await asyncio.sleep(0.01)
    model.uses.clear()
    model.inner.say(output("r", "word "), output("r", "", "stop"))
    prompt: Any = {"prompt_token_ids": [1]}
    async with aclosing(model.engine.generate(prompt, SamplingParams(), "r")) as outputs:
        texts = [one.outputs[0].text async for one in outputs]
    await asyncio.sleep(0.01)
    assert texts == ["word ", ""] and model.uses == [True, False]


async def test_one_that_goes_while_it_is_used_is_asked_for_again() -> None:
    model = Supervised(state=ModelState.LOADED, options=OPTIONS)
    await model.engine.wait_ready(PATIENCE)
    with model.engine.using():
        model.say(ModelState.NOT_LOADED)
        assert model.num_loads == 1
        model.say(ModelState.LOADING, attempt=2, options=OPTIONS)
        model.say(ModelState.LOADED, attempt=2, options=OPTIONS)
        assert model.engine.is_ready and model.num_joined == 1  # its open requests have stayed


async def test_a_core_that_is_away_is_waited_for_as_long_as_was_asked() -> None:
    model = Supervised(state=ModelState.LOADED, options=OPTIONS)
    model.inner.ready.clear()
    with pytest.raises(TimeoutError):
        await model.engine.wait_ready(0.01)


async def test_a_process_that_listens_elsewhere_is_joined_anew() -> None:
    model = Supervised(state=ModelState.LOADED, options=OPTIONS)
    await model.engine.wait_ready(PATIENCE)
    model.say(ModelState.LOADING, attempt=2, options=OPTIONS, stage="preparing")
    assert model.num_joined == 1
    model.say(ModelState.LOADED, attempt=2, options={"address": "elsewhere"})
    await asyncio.wait_for(model.engine.wait_ready(), PATIENCE)
    assert model.num_joined == 2


async def test_not_more_answers_wait_for_a_loading_than_for_an_engine() -> None:
    supervised = Supervised(state=ModelState.LOADING)
    with supervised.engine.using(), supervised.engine.using():
        supervised.engine.check_admission()
        with supervised.engine.using():
            with pytest.raises(QueueOverflowError):
                supervised.engine.check_admission()
            supervised.say(ModelState.LOADED, options=OPTIONS)
            await supervised.engine.wait_ready(PATIENCE)
            supervised.engine.check_admission()  # from now on it is the engine that counts
