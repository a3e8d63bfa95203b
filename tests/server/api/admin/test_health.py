"""What an admin's console is told of the parts, whatever is away."""

import asyncio
import time
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest

from server.api.admin import health
from server.api.admin.health import AdminHealthOperations, HealthObject, engines_wire
from server.engines.client import CoreState, ServedModel
from server.engines.models import Models
from sessions.directory.replicas import Replica, Roll
from sessions.model.errors import StoreUnavailable
from tests.server.helpers.engines import IdleEngine

FIGURES = {
    "version": "0.2",
    "host": "h",
    "pid": "7",
    "draining": "0",
    "connections": "2",
    "active_responses": "1",
    "engine": "ok",
}
ROLL = Roll(5_000, (Replica("w1", 4_000, FIGURES),), ())


class Listing:
    async def num_sessions(self) -> int:
        return 7


class Replicas:
    """Redis says this, or raises it; None: it says nothing."""

    def __init__(self) -> None:
        self.says: Roll | Exception | None = ROLL

    async def roll(self) -> Roll:
        if self.says is None:
            await asyncio.Event().wait()
        if isinstance(self.says, Exception):
            raise self.says
        assert self.says is not None
        return self.says


@pytest.fixture
def replicas() -> Replicas:
    return Replicas()


@pytest.fixture
def operations(replicas: Replicas) -> AdminHealthOperations:
    context = MagicMock()
    context.services.models = Models.of_one(ServedModel("oracle", ""), IdleEngine(100))
    context.services.replica = "w1"
    context.health.state = {"store": "ok"}
    context.health.since = {"store": 1_000}
    context.health.store_heard_at = time.monotonic()
    context.health.store_problems = []
    return AdminHealthOperations(context, MagicMock(replicas=replicas, listing=Listing()))


async def told(operations: AdminHealthOperations) -> dict[str, Any]:
    body = bytes((await operations.read(MagicMock())).body)
    msgspec.json.decode(body, type=HealthObject)  # as the OpenAPI document says
    found: dict[str, Any] = msgspec.json.decode(body)
    return found


async def test_it_tells_the_workers_the_engines_and_redis(
    operations: AdminHealthOperations,
) -> None:
    found = await told(operations)
    assert found["replica"] == "w1" and found["redis"]["state"] == "ok"
    assert found["engines"] == [
        {"name": "oracle", "model": "oracle", "state": "ready", "kind": "native"}
    ]
    assert found["live"] == {
        "replicas": 1,
        "sessions": 7,
        "connections": 2,
        "active_responses": 1,
        "queued_responses": 0,
    }
    assert [one["id"] for one in found["replicas"]] == ["w1"]


@pytest.mark.parametrize("says", [None, StoreUnavailable()])
async def test_while_redis_is_away_what_was_known_is_told_with_its_age(
    operations: AdminHealthOperations,
    replicas: Replicas,
    monkeypatch: pytest.MonkeyPatch,
    says: Exception | None,
) -> None:
    await told(operations)
    monkeypatch.setattr(health, "STORE_SECONDS", 0.01)
    replicas.says = says
    operations._roll_at -= 7
    found = await told(operations)
    assert found["now"] == 5_000 and [one["id"] for one in found["replicas"]] == ["w1"]
    assert 7_000 <= found["roll_age_ms"] < 60_000


def test_the_age_of_an_engines_last_word_is_told_while_it_should_speak() -> None:
    engine = IdleEngine(100)
    models = Models.of_one(ServedModel("oracle", ""), engine)
    engine.heard_at = 100.0
    (told,) = engines_wire(models, 103.5)
    assert told["heard_ms"] == 3_500
    engine.core_state = CoreState.DEAD
    (told,) = engines_wire(models, 103.5)
    assert told == {"name": "oracle", "model": "oracle", "state": "dead", "kind": "native"}
