"""Real engines of other kinds are killed amid answers, which go on from their next token.

`REMOTE_DEATHS` is how often each is killed.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from tokenizers import Tokenizer as PlainTokenizer

from engine import AsyncLLM, RequestOutputKind, SamplingParams, TokensPrompt, demo_model
from engine.client.requests.core_link import Exactness
from server.engines.remote.checkpoint import read_checkpoint
from server.engines.remote.dialect import Dialect
from server.engines.remote.link import RemoteLink
from server.engines.remote.llamacpp import LlamaCpp
from server.engines.remote.vllm import VLLM
from server.engines.remote.wire.address import RemoteAddress
from tests.server.engines.remote.real.servers import SERVERS, Pair, Relay

pytestmark = pytest.mark.slow

NUM_DEATHS = int(os.environ.get("REMOTE_DEATHS", "10"))
MIN_TOKENS = 12  # that each answer has when its engine is killed, and more each time
MAX_TOKENS = 160
READY_SECONDS = 60.0
GAP_SECONDS = 0.3  # in which nobody is behind the address
MAX_GAP = 0.05  # of the logprobs of two tokens that are nearly alike
MIN_EQUAL = 0.75  # at least: of a dozen answers one or two have such a place
DIALECTS: dict[str, type[Any]] = {"llamacpp": LlamaCpp, "vllm": VLLM}
TOPICS = (
    *("a boat", "the sea", "a lost key", "the mayor", "a storm", "the lighthouse"),
    *("a birthday", "the bridge", "a whale", "the market", "winter", "a fiddle"),
)
PARAMS = SamplingParams(
    temperature=0.0,
    max_tokens=MAX_TOKENS,  # the model tells longer stories: all are amid theirs
    output_kind=RequestOutputKind.DELTA,
)


@dataclass
class Told:
    """One answer as it was shown."""

    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    text: str = ""
    is_over: bool = False
    reason: str | None = None
    num_resubmits: int = 0


class Asker:
    """Asks all questions at once. `shown` is called whenever something was shown."""

    def __init__(self, llm: AsyncLLM, prompts: list[list[int]]) -> None:
        self._llm = llm
        self.told = [Told(prompt) for prompt in prompts]
        self.changed = asyncio.Event()

    async def ask(self, name: str) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number, told in enumerate(self.told):
                tasks.create_task(self._follow(told, f"{name}-{number}"))

    async def _follow(self, told: Told, request_id: str) -> None:
        prompt = TokensPrompt(prompt_token_ids=told.prompt)
        async for output in self._llm.generate(prompt, PARAMS, request_id):
            told.ids += output.outputs[0].token_ids
            told.text += output.outputs[0].text
            if output.finished:
                told.is_over, told.reason = True, output.outputs[0].finish_reason
                assert output.metrics is not None
                told.num_resubmits = output.metrics.num_resubmits
            self.changed.set()

    async def until_all_have(self, num_tokens: int) -> None:
        while min(len(told.ids) for told in self.told) < num_tokens:
            self.changed.clear()
            await self.changed.wait()


@pytest.fixture(params=sorted(SERVERS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    async with Relay() as relay:
        yield relay


@pytest.fixture
async def pair(kind: str, relay: Relay, tmp_path: Path) -> AsyncIterator[Pair]:
    servers = [SERVERS[kind](tmp_path, number) for number in range(2)]
    try:
        pair = Pair(relay, servers)
        await pair.begin()
        yield pair
    finally:
        for server in servers:
            server.end()


@pytest.fixture
async def llm(kind: str, relay: Relay, pair: Pair) -> AsyncIterator[AsyncLLM]:
    checkpoint = read_checkpoint(demo_model())
    dialect: Dialect = DIALECTS[kind](checkpoint.tokenizer, None)
    address = RemoteAddress(f"http://127.0.0.1:{relay.port}")
    link = RemoteLink(address, dialect, checkpoint, served_model_name="demo")
    llm = AsyncLLM.connect(link, model=str(demo_model()), tokenizer=checkpoint.tokenizer)
    try:
        await llm.wait_ready(READY_SECONDS)
        yield llm
    finally:
        llm.shutdown()


async def test_what_was_shown_stays_and_the_rest_follows_from_the_next_token(
    kind: str, llm: AsyncLLM, pair: Pair, relay: Relay, capsys: pytest.CaptureFixture[str]
) -> None:
    assert llm.exactness is Exactness.TOKENS
    prompts = [await prompt_of(llm, topic) for topic in TOPICS]
    whole = Asker(llm, prompts)
    await whole.ask("whole")
    num_running = num_equal = num_told = 0
    gaps = []
    for death in range(NUM_DEATHS):
        await pair.prepare_next()
        relay.asked.clear()
        asker = Asker(llm, prompts)
        asking = asyncio.create_task(asker.ask(f"death-{death}"))
        await asker.until_all_have(MIN_TOKENS + 9 * death)
        shown = [(list(told.ids), told.text) for told in asker.told if not told.is_over]
        assert len(shown) >= 10
        pair.kill(is_core if kind == "vllm" and death % 2 else lambda _: True)
        await asyncio.sleep(GAP_SECONDS)  # a gap, as there is one in the time of a restart
        pair.replace()
        await asking
        num_running += len(shown)
        check_shown(asker)
        check_asked(asker, relay.asked)
        for told, unkilled in zip(asker.told, whole.told, strict=True):
            num_told += 1
            num_equal += told.ids == unkilled.ids
            if told.ids != unkilled.ids:
                gaps.append(await gap_between(llm, told, unkilled))
    apart = [round(gap, 3) for gap in gaps]
    with capsys.disabled():
        print(f"\n{kind}, killed {NUM_DEATHS} times: of {num_running} answers that ran, no shown")
        print(f"character changed; {num_equal} of {num_told} have the tokens of the unkilled ones,")
        print(f"the others part between tokens whose logprobs are {apart} apart")
    assert all(gap <= MAX_GAP for gap in gaps)
    assert num_equal >= MIN_EQUAL * num_told


def check_shown(asker: Asker) -> None:
    """The text is that of the tokens, as another tokenizer than ours reads them in one go."""
    plain = PlainTokenizer.from_file(str(demo_model() / "tokenizer.json"))
    for told in asker.told:
        assert (told.reason, len(told.ids)) == ("length", MAX_TOKENS)
        assert told.text == plain.decode(told.ids, skip_special_tokens=True)


def check_asked(asker: Asker, bodies: list[dict[str, Any]]) -> None:
    """What an engine was asked to go on with is the prompt and the tokens that were shown."""
    num_continued = 0
    for told in asker.told:
        asked = [ids for body in bodies if (ids := ids_of(body))[: len(told.prompt)] == told.prompt]
        assert asked[0] == told.prompt
        for ids in asked[1:]:
            assert ids == told.prompt + told.ids[: len(ids) - len(told.prompt)]
        num_continued += len(asked) > 1 and len(asked[-1]) > len(told.prompt)
    assert num_continued >= 10


def ids_of(body: dict[str, Any]) -> list[int]:
    ids: list[int] = body.get("token_ids") or body.get("prompt") or []
    return ids if isinstance(ids, list) else []


async def gap_between(llm: AsyncLLM, told: Told, other: Told) -> float:
    """How much more likely the one token is than the other, where two answers part.

    Neither kind computes the same bits in batches of another size, and a prompt is read in another
    way than an answer is written. That decides only between tokens that are nearly alike.
    """
    pairs = zip(told.ids, other.ids, strict=True)
    place, parted = next((place, pair) for place, pair in enumerate(pairs) if pair[0] != pair[1])
    prompt = TokensPrompt(prompt_token_ids=told.prompt + told.ids[:place])
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=2)
    async for output in llm.generate(prompt, params, f"gap-{place}-{told.prompt}"):
        scores = output.outputs[0].logprobs
    assert scores is not None
    assert set(scores[0]) == set(parted)
    return abs(scores[0][parted[0]].logprob - scores[0][parted[1]].logprob)


def is_core(process: psutil.Process) -> bool:
    """The process that computes: vLLM's door lives on for a moment, and says that it has gone."""
    return "EngineCor" in process.name()


async def prompt_of(llm: AsyncLLM, topic: str) -> list[int]:
    message = {"role": "user", "content": f"Tell me a story about {topic}."}
    return await llm.get_tokenizer().apply_chat_template_async([message])
