"""Real engines of other kinds are killed amid answers, which go on from their next token.

`REMOTE_DEATHS` is how often each is killed.
"""

import asyncio
import os
from typing import Any

import psutil
import pytest
from tokenizers import Tokenizer as PlainTokenizer

from engine import AsyncLLM, Exactness, SamplingParams, TokensPrompt, demo_model
from server.engines.remote.dialect import Dialect
from server.engines.remote.wire.address import RemoteAddress
from server.engines.remote.wire.exchange import asking as asking_at
from tests.server.engines.remote.real.asking import MAX_TOKENS, Asker, Told, prompts_of
from tests.server.engines.remote.real.servers import Pair, Relay

pytestmark = pytest.mark.slow

NUM_DEATHS = int(os.environ.get("REMOTE_DEATHS", "10"))
MIN_TOKENS = 12  # that each answer has when its engine is killed, and more each time
GAP_SECONDS = 0.3  # in which nobody is behind the address
IDLE_SECONDS = 30.0  # in which an engine is free of what was stopped: those that look, look often
MAX_GAP = 0.05  # of the logprobs of two tokens that are nearly alike
MIN_EQUAL = 0.75  # at least: of a dozen answers one or two have such a place


async def test_a_stop_frees_the_engine(
    llm: AsyncLLM, pair: Pair, dialect: Dialect, relay: Relay
) -> None:
    """vLLM says that it has; llama.cpp sees that nobody listens any more."""
    asker = Asker(llm, await prompts_of(llm))
    asking = asyncio.create_task(asker.ask("stop"))
    await asker.until_all_have(MIN_TOKENS)
    await llm.abort([f"stop-{number}" for number in range(len(asker.told))])
    await asking
    assert {told.reason for told in asker.told} == {"abort"}
    assert {told.is_confirmed for told in asker.told} == {pair.kind == "vllm"}
    ask = asking_at(RemoteAddress(f"http://127.0.0.1:{relay.port}"), IDLE_SECONDS)
    async with asyncio.timeout(IDLE_SECONDS):
        while (await dialect.look(ask)).num_running != 0:  # noqa: ASYNC110  (nothing else tells)
            await asyncio.sleep(0.2)


async def test_what_was_shown_stays_and_the_rest_follows_from_the_next_token(
    llm: AsyncLLM, pair: Pair, relay: Relay, capsys: pytest.CaptureFixture[str]
) -> None:
    assert llm.exactness is Exactness.TOKENS
    prompts = await prompts_of(llm)
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
        shown = [(told, list(told.ids), told.text) for told in asker.told if not told.is_over]
        assert len(shown) >= 10
        pair.kill(is_core if pair.kind == "vllm" and death % 2 else lambda _: True)
        await asyncio.sleep(GAP_SECONDS)  # a gap, as there is one in the time of a restart
        pair.replace()
        await asking
        num_running += len(shown)
        for told, ids, text in shown:
            assert (told.ids[: len(ids)], told.text[: len(text)]) == (ids, text)
        check_text(asker)
        check_asked(asker, relay.asked)
        for told, unkilled in zip(asker.told, whole.told, strict=True):
            num_told += 1
            num_equal += told.ids == unkilled.ids
            if told.ids != unkilled.ids:
                gaps.append(await gap_between(llm, told, unkilled))
    apart = [round(gap, 3) for gap in gaps]
    with capsys.disabled():
        print(f"\n{pair.kind}, killed {NUM_DEATHS} times: {num_running} answers ran; no character")
        print(
            f"that was shown has changed; {num_equal} of {num_told} are as the unkilled ones, the"
        )
        print(f"others part between tokens whose logprobs are {apart} apart")
    assert all(gap <= MAX_GAP for gap in gaps)
    assert num_equal >= MIN_EQUAL * num_told


def check_text(asker: Asker) -> None:
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
