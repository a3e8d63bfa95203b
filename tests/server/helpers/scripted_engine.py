"""`ScriptedEngine`: counts like the oracle model of tests/helpers/tiny_model.py, and by `Dice`.

What a real engine decides by chance, dice decide here: before each step everybody gives way a
random number of times.
"""

import asyncio
import random
import re
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, cast

from engine import CompletionOutput, RequestOutput
from engine.outputs import RequestProgress
from server.engines.client import EngineTokenizer, Marks, SamplingParams, TokensPrompt
from tests.helpers.tiny_model import oracle_word
from tests.server.helpers.engines import IdleEngine

PHASES = ("queued", "prefill", "first", "mid", "last", "ended")


class Dice:
    """Random choices from a seed that a failing test prints."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)

    async def give_way(self) -> None:
        """Let others run, for a random while."""
        for _ in range(self.random.choice((0, 0, 1, 1, 2, 3, 5, 8, 20))):
            await asyncio.sleep(0)
        if self.random.random() < 0.1:
            await asyncio.sleep(self.random.random() * 0.003)


class Request:
    """One request at the scripted engine. Phases are reached in order and may be held."""

    def __init__(self) -> None:
        self.reached = {phase: asyncio.Event() for phase in PHASES}
        self.is_held: set[str] = set()
        self.held_at: str | None = None  # the phase that it really waits in, at this moment
        self.released = asyncio.Event()
        self.aborted = asyncio.Event()

    async def at(self, phase: str, dice: Dice) -> None:
        self.reached[phase].set()
        if phase in self.is_held:
            waits = [asyncio.ensure_future(e.wait()) for e in (self.released, self.aborted)]
            self.held_at = phase
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            self.held_at = None
            for wait in waits:
                wait.cancel()
        await dice.give_way()


class ScriptedEngine(IdleEngine):
    """An engine and its tokenizer. All workers share one, as they share a core."""

    chat_stop = ()
    takes_tools = True

    def __init__(self, dice: Dice) -> None:
        super().__init__(max_model_len=32_768)
        self._dice = dice
        self.requests: defaultdict[str, Request] = defaultdict(Request)
        self.num_requests = 0
        self.sessions: list[str | None] = []
        self.was_asked = asyncio.Event()
        self.num_running = 0

    def get_tokenizer(self) -> EngineTokenizer:
        return self

    async def encode_async(self, text: str, *, owner: str = "") -> list[int]:
        return [int(number) for number in re.findall(r"t(\d{5}) ?", text)] or [0]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(oracle_word, token_ids))

    async def apply_chat_template_async(
        self, messages: Sequence[Mapping[str, Any]], answer: str = "", **options: object
    ) -> list[int]:
        return await self.encode_async(messages[-1]["content"] + answer)

    def resumed_text(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        resume_token_ids: Sequence[int],
        marks: Marks | None = None,
    ) -> str:
        return "".join(map(oracle_word, resume_token_ids))

    async def metrics(self) -> dict[str, Any]:
        return defaultdict(float)

    async def abort(self, request_id: str) -> None:
        await self._dice.give_way()
        self.requests[request_id].aborted.set()

    async def generate(
        self,
        prompt: TokensPrompt,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        on_progress: Callable[[RequestProgress], None] | None = None,
        resume_token_ids: Sequence[int] = (),
        session_id: str | None = None,
        **_: object,
    ) -> AsyncGenerator[RequestOutput, None]:
        self.sessions.append(session_id)
        request, dice = self.requests[request_id], self._dice
        report = on_progress or (lambda _: None)
        self.num_requests += 1
        self.was_asked.set()
        self.num_running += 1
        token = [*prompt["prompt_token_ids"], *resume_token_ids][-1]
        assert sampling_params.max_tokens is not None
        num_left = sampling_params.max_tokens - len(resume_token_ids)
        try:
            await request.at("queued", dice)
            report(RequestProgress(0, 1, 0, 0, scheduled=False))
            await request.at("prefill", dice)
            if num_left <= 0:
                yield scripted_output(request_id, "", [], "length")
                return
            report(RequestProgress(None, 1, 0, 1, scheduled=True))
            for number in range(num_left):
                is_last = number == num_left - 1
                phase = "first" if number == 0 else "last" if is_last else "mid"
                await request.at(phase, dice)
                # A core that has heard of the stop may have decoded another token by then.
                if request.aborted.is_set() and dice.random.random() < 0.7:
                    yield scripted_output(request_id, "", [], "abort")
                    return
                token += 1
                yield scripted_output(
                    request_id, oracle_word(token), [token], "length" if is_last else None
                )
        finally:
            self.num_running -= 1
            request.reached["ended"].set()


def scripted_output(
    response_id: str, text: str, token_ids: list[int], finish_reason: str | None
) -> RequestOutput:
    answer = CompletionOutput(
        index=0, text=text, token_ids=token_ids, finish_reason=cast("Any", finish_reason)
    )
    return RequestOutput(response_id, None, None, None, [answer], finish_reason is not None)
