"""Engines of texts, and who asks them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from server.engines.remote.wire.address import RemoteAddress
from server.engines.textual.engine import TextEngine
from server.engines.textual.line import Line, Patience
from tests.helpers.patience import PATIENCE
from tests.server.engines.textual.asking import Asker, Open
from tests.server.engines.textual.stand_in import StandIn


@pytest.fixture
async def open_engine() -> AsyncIterator[Open]:
    """Opens the engine behind a stand-in, and waits until it is there."""
    async with AsyncExitStack() as stack:

        async def opened(stand_in: StandIn, **options: Any) -> Asker:
            key_file = options.pop("key_file", None)
            patience = options.pop("patience", Patience())
            await stack.enter_async_context(stand_in)
            line = Line(RemoteAddress(stand_in.base, key_file), patience)
            engine = TextEngine(line, name="m", **options)
            stack.callback(engine.shutdown)
            await engine.wait_ready(PATIENCE)
            return Asker(engine)

        yield opened
