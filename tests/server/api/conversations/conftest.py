"""One worker in this process, and somebody who asks it about conversations."""

from collections.abc import AsyncIterator

import pytest

from sessions.connection.embedded import EmbeddedRedis
from tests.helpers.redis_server import fresh_prefix
from tests.server.api.conversations.house import House
from tests.server.helpers.in_process import running_worker
from tests.server.helpers.scripted_engine import Dice, ScriptedEngine


@pytest.fixture
async def house(redis_server: EmbeddedRedis) -> AsyncIterator[House]:
    dice = Dice(30)
    engine = ScriptedEngine(dice)
    async with running_worker(redis_server.url, fresh_prefix(), engine, dice, "w0") as worker:
        yield House(worker, engine)
