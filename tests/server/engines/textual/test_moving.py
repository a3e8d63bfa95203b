"""Answers of several engines of texts, when one of them is to keep nothing, or is away."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from server.config.models import EngineStatus
from server.engines.client import CoreState, EngineClient, RequestOutputKind
from server.engines.placement.group import EngineGroup
from server.engines.remote.wire.address import RemoteAddress
from server.engines.textual.engine import TextEngine
from server.engines.textual.line import Line
from tests.helpers.patience import PATIENCE
from tests.server.engines.textual.asking import Asker
from tests.server.engines.textual.stand_in import (
    DONE,
    JSON,
    Reply,
    StandIn,
    call_chunk,
    chunk,
    said,
)


class Pair:
    """Two stand-ins behind a group. The next answer is written by `mine`, `other` is idle."""

    def __init__(self) -> None:
        self.stand_ins = {name: StandIn() for name in ("a", "b")}
        self.statuses = [
            EngineStatus(name=name, kind="openai", options={"n": 1}) for name in self.stand_ins
        ]
        self.engines: dict[str, TextEngine] = {}
        self.group = EngineGroup(self._connect, lambda state, reason: None)
        self.asker = Asker(self.group)  # type: ignore[arg-type]  # which is asked as an engine is
        self.rest = asyncio.Event()  # of the answer, which waits for that

    def _connect(
        self, status: EngineStatus, take_state: Callable[[CoreState, str], None]
    ) -> EngineClient:
        line = Line(RemoteAddress(self.stand_ins[status.name].base))
        engine = TextEngine(line, name="m", on_core_state=take_state, look_seconds=0.01)
        self.engines[status.name] = engine
        return engine

    async def settle(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110  (conditions of plain objects)
                await asyncio.sleep(0.001)

    async def ask(self, *begin: bytes, end: str = "stop") -> "asyncio.Task[Any]":
        """An answer that has said so much, and waits."""
        for stand_in in self.stand_ins.values():
            stand_in.replies.append(
                Reply([*begin, self.rest, chunk(" two."), chunk(reason=end), DONE])
            )
        params = {"output_kind": RequestOutputKind.DELTA}
        asking = asyncio.create_task(self.asker.ask(params=params))
        await asyncio.wait_for(self.asker.heard.wait(), PATIENCE)
        for stand_in in self.stand_ins.values():  # the one that was not asked
            stand_in.replies.clear()
        return asking

    @property
    def mine(self) -> str:
        return next(name for name, each in self.stand_ins.items() if each.asked)

    @property
    def other(self) -> StandIn:
        return self.stand_ins["b" if self.mine == "a" else "a"]

    def move(self) -> None:
        self.statuses = [
            msgspec.structs.replace(status, is_draining=True, must_move=True)
            if status.name == self.mine
            else status
            for status in self.statuses
        ]
        self.group.take(self.statuses)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        pair = Pair()
        for stand_in in pair.stand_ins.values():
            await stack.enter_async_context(stand_in)
        stack.callback(pair.group.shutdown)
        pair.group.take(pair.statuses)
        await pair.settle(lambda: all(engine.is_ready for engine in pair.engines.values()))
        yield pair


async def test_an_answer_that_is_text_alone_moves(pair: Pair) -> None:
    asking = await pair.ask(chunk("One,"))
    pair.other.replies.append(said(" two."))
    pair.move()
    last = await asking
    assert (pair.asker.text, last.outputs[0].finish_reason) == ("One, two.", "stop")
    assert pair.other.asked[0]["messages"][-1]["content"] == "One,"


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ([chunk(reasoning_content="Hm")], "stop"),
        ([chunk(reasoning_content="Hm"), chunk("One,")], "stop"),
        ([call_chunk(0, "weather", '{"city"')], "tool_calls"),
    ],
)
async def test_an_answer_with_thoughts_or_calls_ends_where_it_was_begun(
    pair: Pair, begin: list[bytes], end: str
) -> None:
    asking = await pair.ask(*begin, end=end)
    pair.move()
    await pair.settle(lambda: pair.group.figures()[0].is_draining or pair.mine == "b")
    pair.rest.set()
    last = await asking
    assert (last.outputs[0].finish_reason, last.error) == ("stop", None)
    assert pair.other.asked == []


async def test_an_answer_that_still_comes_outlives_the_list_of_models_of_its_engine(
    pair: Pair,
) -> None:
    asking = await pair.ask(chunk(reasoning_content="Hm"))
    mine = pair.stand_ins[pair.mine]
    mine.models = Reply([b"{}"], 500, JSON)
    await pair.settle(lambda: pair.engines[pair.mine].core_state is CoreState.DEAD)
    pair.rest.set()
    last = await asking
    assert (last.outputs[0].finish_reason, last.error) == ("stop", None)
    assert pair.other.asked == []
