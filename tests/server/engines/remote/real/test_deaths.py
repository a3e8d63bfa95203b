"""Real engines of other kinds are killed amid answers, which go on from their next token.

`REMOTE_DEATHS` is how often each is killed.
"""

import asyncio
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
from tokenizers import Tokenizer as PlainTokenizer

from engine import AsyncLLM, Exactness, SamplingParams, TokensPrompt, demo_model
from server.engines.remote.dialects.dialect import Dialect
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
    await pair.prepare_next()  # nothing is in its cache yet
    pair.replace()
    whole = Asker(llm, prompts)
    await whole.ask("whole")
    num_running, killed, undisturbed = 0, Compared(llm, whole), Compared(llm, whole)
    for death in range(NUM_DEATHS):
        again = Asker(llm, prompts)
        await again.ask(f"again-{death}")
        await undisturbed.compare(again, [MAX_TOKENS] * len(prompts))
        await pair.prepare_next()
        relay.asked.clear()
        asker = Asker(llm, prompts)
        asking = asyncio.create_task(asker.ask(f"death-{death}"))
        await asker.until_all_have(MIN_TOKENS + 9 * death)
        shown = [(told, list(told.ids), told.text) for told in asker.told if not told.is_over]
        num_shown = [len(told.ids) for told in asker.told]
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
        await killed.compare(asker, num_shown)
    with capsys.disabled():
        print(f"\n{pair.name}, killed {NUM_DEATHS} times: {num_running} answers ran, and no")
        print(f"character that was shown has changed. As the first ones are {killed.told}")
        print(f"Of those that no death has met {undisturbed.told}")
    assert all(parting.gap <= MAX_GAP for parting in killed.partings)
    assert killed.num_equal >= pair.min_equal * killed.num_told


@dataclass(frozen=True)
class Parting:
    """Where an answer has another token than the one that it is compared with."""

    num_shown: int  # tokens of it when its engine died
    place: int
    tokens: tuple[str, str]
    logprobs: tuple[float, float]

    @property
    def gap(self) -> float:
        """How much more likely the one token is than the other."""
        return abs(self.logprobs[0] - self.logprobs[1])

    def __str__(self) -> str:
        (token, other), (score, lower) = self.tokens, self.logprobs
        where = f"at {self.place} (killed at {self.num_shown})"
        return f"{where} {token!r} {score:.3f} for {other!r} {lower:.3f}"


class Compared:
    """Answers beside those of the same questions that no death has met.

    Neither kind computes the same bits in batches of another size, and a prompt is read in another
    way than an answer is written. That decides only between tokens that are nearly alike.
    """

    def __init__(self, llm: AsyncLLM, whole: Asker) -> None:
        self._llm = llm
        self._whole = whole
        self.num_told = self.num_equal = 0
        self.partings: list[Parting] = []

    @property
    def told(self) -> str:
        lines = [f"{self.num_equal} of {self.num_told}", *map(str, self.partings)]
        return "\n  ".join(lines)

    async def compare(self, asker: Asker, num_shown: Sequence[int]) -> None:
        for told, other, shown in zip(asker.told, self._whole.told, num_shown, strict=True):
            self.num_told += 1
            if told.ids == other.ids:
                self.num_equal += 1
            else:
                self.partings.append(await self._parting(told, other, shown))

    async def _parting(self, told: Told, other: Told, num_shown: int) -> Parting:
        pairs = zip(told.ids, other.ids, strict=True)
        place, (token, wanted) = next(
            (at, pair) for at, pair in enumerate(pairs) if len({*pair}) == 2
        )
        prompt = TokensPrompt(prompt_token_ids=told.prompt + told.ids[:place])
        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=2)
        async for output in self._llm.generate(prompt, params, f"parting-{secrets.token_hex(8)}"):
            scores = output.outputs[0].logprobs
        assert scores is not None
        assert {token, wanted} == set(scores[0])
        tokenizer = self._llm.get_tokenizer()
        return Parting(
            num_shown,
            place,
            (tokenizer.decode([token]), tokenizer.decode([wanted])),
            (scores[0][token].logprob, scores[0][wanted].logprob),
        )


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


def is_core(process: psutil.Process) -> bool:
    """The process that computes: vLLM's door lives on for a moment, and says that it has gone."""
    return "EngineCor" in process.name()
