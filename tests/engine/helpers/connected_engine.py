"""An `AsyncLLM` at a scripted core: what tests ask it, and how they read what came of it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from engine.client.async_llm import AsyncLLM
from engine.outputs import RequestOutput
from engine.sampling_params import RequestOutputKind, SamplingParams
from tests.engine.helpers.scripted_core import ScriptedCore
from tests.helpers.patience import PATIENCE

M = TypeVar("M")
DELTA = SamplingParams(max_tokens=100, output_kind=RequestOutputKind.DELTA)
PROMPT = [40, 41, 42]
A, B, C = 67, 68, 69  # letters of the byte-level vocabulary


async def receive(core: ScriptedCore, kind: type[M]) -> M:
    """The core's next message, without holding up the event loop."""
    return await asyncio.to_thread(core.receive, kind)


async def settle(condition: Any) -> None:
    """Give the event loop turns until something holds; fails after five seconds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  (conditions of plain objects)
            await asyncio.sleep(0.001)


def texts(outputs: list[RequestOutput]) -> str:
    return "".join(output.outputs[0].text for output in outputs)


@pytest.fixture
async def engine(core: ScriptedCore, model: Path) -> AsyncIterator[AsyncLLM]:
    """With the defaults: what a dead core had is given to the next one."""
    engine = AsyncLLM.connect(core.address, model=str(model))
    await engine.wait_ready(PATIENCE)
    yield engine
    engine.shutdown()
