"""What a question does to the models of a server that has several."""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from server.config.models import ModelState, ModelStatus
from server.engines import on_demand
from server.engines.client import LoRARequest, ServedModel
from server.engines.models import Models
from server.engines.on_demand import OnDemandEngine
from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from tests.end_to_end.oracle.history import History
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_word
from tests.server.helpers.in_process import LocalClient, running_worker
from tests.server.helpers.scripted_engine import Dice, ScriptedEngine

OPTIONS = {"address": "somewhere"}


class Several(ScriptedEngine):
    """The engine of the models `a`, the default, and `b`; and the supervisor's side of them."""

    def __init__(self) -> None:
        super().__init__(Dice(0))
        self.told: list[dict[str, Any]] = []
        self.used: list[bool] = []  # whether `b` was, each time that one of its prompts was made
        self.statuses = {name: ModelStatus(name=name, kind="native") for name in "ab"}
        self.engines = [self._engine(status) for status in self.statuses.values()]
        self.models = Models(
            list(self.statuses.values()),
            self.engines,
            ServedModel("a", "1"),
            tell=self.told.append,
        )
        self.models.add(ServedModel("b", "1"), None)

    def _engine(self, status: ModelStatus) -> OnDemandEngine:
        return OnDemandEngine(
            status,
            connect=lambda options, on_core_state: self,
            load=lambda: self.models.ask(status.name),
            on_use=lambda: self.models.note_use(),
            on_core_state=lambda state, reason: None,
        )

    async def say(self, name: str, state: ModelState, **fields: Any) -> None:
        """Return when the worker has joined a model that is loaded now."""
        self.statuses[name] = ModelStatus(
            name=name, kind="native", state=state, options=OPTIONS, **fields
        )
        self.models.take(list(self.statuses.values()))
        if state is ModelState.LOADED:
            await self.models.engine(name).wait_ready(PATIENCE)

    @property
    def loads(self) -> list[str]:
        return [line["model"] for line in self.told if line["type"] == "load"]

    async def apply_chat_template_async(
        self, messages: Sequence[Mapping[str, Any]], answer: str = "", **options: object
    ) -> list[int]:
        self.used.append(self.engines[1].is_used)
        return await super().apply_chat_template_async(messages, answer, **options)

    def shutdown(self) -> None:
        pass


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> Several:
    monkeypatch.setattr(on_demand, "LINGER_SECONDS", 0.0)
    return Several()


@contextlib.asynccontextmanager
async def client_of(several: Several, redis: EmbeddedRedis) -> AsyncIterator[LocalClient]:
    url, prefix, dice = redis.url, fresh_prefix(), Dice(0)
    worker: Worker
    async with (
        running_worker(url, prefix, several, dice, "w", models=several.models) as worker,
        LocalClient(worker, History(lambda: None)) as client,
    ):
        yield client


async def test_a_model_is_used_from_its_question_to_its_end_while_prompts_are_made_too(
    several: Several, redis_server: EmbeddedRedis
) -> None:
    settings = {"model": "b", "max_output_tokens": 3}
    async with client_of(several, redis_server) as client:
        await several.say("b", ModelState.LOADED)
        session = await client.new_session()
        first = await client.ask(session, oracle_word(10), settings=settings)
        second = await client.ask(session, oracle_word(20), settings=settings, on_busy="queue")
        for response in (first, second):  # whose prompt is made when its turn has come
            await client.done(response)
    assert len(several.used) >= 3 and all(several.used)
    assert not several.engines[1].is_used


async def test_a_name_of_no_model_has_none_loaded(
    several: Several, redis_server: EmbeddedRedis
) -> None:
    async with client_of(several, redis_server) as client:
        error = await client.reply(
            "response.create",
            session_id=await client.new_session(),
            input=oracle_word(1),
            idempotency_key="k",
            settings={"model": "nobody"},
        )
    assert error["error"]["code"] == "model_not_found"
    assert several.loads == []


@pytest.mark.parametrize("name", ["a", "adapted"])
async def test_those_who_wait_for_a_loading_hear_how_far_it_is(
    several: Several, redis_server: EmbeddedRedis, name: str
) -> None:
    several.models.add(ServedModel("adapted", "2", lora_request=LoRARequest("x", 1, "/x")), None)
    settings = {"model": name, "max_output_tokens": 3}
    async with client_of(several, redis_server) as client:
        await several.say("a", ModelState.LOADING, stage="loading", progress=0.25)
        session = await client.new_session()
        response = await client.ask(session, oracle_word(10), settings=settings)
        await client.next("response.queued")
        await several.say("a", ModelState.LOADING, stage="loading", progress=0.5)
        await several.say("a", ModelState.LOADED)
        await client.done(response)
    waits = [frame for frame in client.frames if frame["type"] == "response.queued"]
    shares = [frame["progress"] for frame in waits if frame["reason"] == "model_loading"]
    assert shares == [0.25, 0.5]
