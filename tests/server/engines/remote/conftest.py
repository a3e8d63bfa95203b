"""Engines at an address for the tests here, joined by a link as a worker joins them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine import AsyncLLM, CoreState, RequestOutput, SamplingParams, demo_model
from engine.client.requests.collector import RequestOutputCollector
from engine.sampling_params import RequestOutputKind
from server.engines.client import EngineClient
from server.engines.remote.checkpoint import Checkpoint, read_checkpoint
from server.engines.remote.dialects.dialect import Dialect
from server.engines.remote.dialects.llamacpp import LlamaCpp
from server.engines.remote.dialects.sglang import SGLang
from server.engines.remote.dialects.vllm import VLLM
from server.engines.remote.link import RemoteLink
from server.engines.remote.patience import Patience
from server.engines.remote.wire.address import RemoteAddress
from tests.helpers.patience import PATIENCE
from tests.server.engines.remote.stand_in import LlamaCppStandIn, SGLangStandIn, StandIn
from tests.server.engines.remote.vllm_stand_in import PlainVLLMStandIn, VLLMStandIn

PROMPT = [1, 649, 201, 1497, 1622, 318, 262, 471, 33, 2, 201, 1, 655, 201]
# It is looked at often, and everything that must come may take its time.
QUICK = Patience(
    look=0.01,
    reply=PATIENCE,
    stalled=PATIENCE,
    dead=PATIENCE,
    again=(0.01, 0.02),
    breaker=0.01,
    busy=0.01,
)


def asked(number: int = 12, **more: Any) -> SamplingParams:
    """Parameters of a greedy answer of so many tokens."""
    return SamplingParams(
        max_tokens=number, temperature=0, output_kind=RequestOutputKind.DELTA, **more
    )


@dataclass
class Joined:
    """An engine, the stand-in at the other end, and what the link has said of it."""

    engine: AsyncLLM
    link: RemoteLink
    stand_in: Any
    states: list[tuple[CoreState, str]] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)  # of these, by the event loop's clock

    def take_state(self, state: CoreState, reason: str) -> None:
        self.states.append((state, reason))
        self.moments.append(asyncio.get_running_loop().time())

    async def add(self, name: str = "r", **options: Any) -> RequestOutputCollector:
        params = options.pop("params", None) or asked()
        return await self.engine.add_request(name, PROMPT, params, **options)

    async def ask(self, name: str = "r", **options: Any) -> "Answer":
        return await read(await self.add(name, **options))


@dataclass
class Answer:
    """All that came of an answer."""

    text: str
    token_ids: list[int]
    last: RequestOutput

    @property
    def reason(self) -> str | None:
        return self.last.outputs[0].finish_reason

    @property
    def problem(self) -> str:
        return "" if self.last.error is None else self.last.error.message

    @property
    def is_confirmed(self) -> bool:
        assert self.last.metrics is not None
        return self.last.metrics.core_confirmed


async def read(stream: RequestOutputCollector) -> Answer:
    outputs = [output async for output in stream]
    answers = [output.outputs[0] for output in outputs]
    ids = [token_id for each in answers for token_id in each.token_ids]
    return Answer("".join(each.text for each in answers), ids, outputs[-1])


@pytest.fixture(scope="session")
def checkpoint() -> Checkpoint:
    return read_checkpoint(Path(demo_model()))


Join = Callable[..., Any]


@pytest.fixture
async def join(checkpoint: Checkpoint) -> AsyncIterator[Join]:
    """Joins an engine that listens already: `await join(stand_in)`."""
    joined: list[Joined] = []

    async def join(
        stand_in: StandIn, *, patience: Patience = QUICK, is_there: bool = True, **options: Any
    ) -> Joined:
        dialect: Dialect
        if isinstance(stand_in, LlamaCppStandIn | VLLMStandIn):
            stand_in.tokenize = lambda text: checkpoint.tokenizer.encode(  # type: ignore[method-assign]
                text, add_special_tokens=False
            )
            kind = LlamaCpp if isinstance(stand_in, LlamaCppStandIn) else VLLM
            dialect = kind(checkpoint.tokenizer, None)
        else:
            assert isinstance(stand_in, SGLangStandIn)
            dialect = SGLang(checkpoint.tokenizer, None)
        link = RemoteLink(
            options.pop("address", None) or RemoteAddress(stand_in.url),
            dialect,
            checkpoint,
            served_model_name="demo",
            patience=patience,
        )
        engine = AsyncLLM.connect(
            link,
            model=str(checkpoint.folder),
            tokenizer=checkpoint.tokenizer,
            on_core_state=lambda *state: joined[-1].take_state(*state),
        )
        joined.append(Joined(engine, link, stand_in))
        if is_there:
            await engine.wait_ready(PATIENCE)
        return joined[-1]

    yield join
    for each in joined:
        each.engine.shutdown()
        await each.stand_in.die()


@pytest.fixture(params=["llamacpp", "sglang", "sglang-incremental", "vllm", "vllm-completions"])
def stand_in(request: pytest.FixtureRequest) -> StandIn:
    """One of each kind, which does not listen yet."""
    if request.param == "llamacpp":
        return LlamaCppStandIn()
    if request.param.startswith("vllm"):
        return VLLMStandIn() if request.param == "vllm" else PlainVLLMStandIn()
    return SGLangStandIn(is_incremental=request.param != "sglang")


@pytest.fixture
async def remote(stand_in: StandIn, join: Join) -> Joined:
    """An engine of each kind that is well, and joined."""
    await stand_in.start()
    joined: Joined = await join(stand_in)
    return joined


async def read_all(engine: EngineClient, token_ids: list[int], number: int) -> list[int]:
    """The tokens of a greedy answer to these."""
    outputs = engine.generate({"prompt_token_ids": token_ids}, asked(number), "r")
    return [each async for output in outputs for each in output.outputs[0].token_ids]
