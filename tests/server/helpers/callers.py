"""`CallingEngine`: its model says what a script says, token by token, in Hermes' format."""

import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from engine.client.parsing.formats import grammar_of
from engine.client.parsing.marks import Marks
from server.engines.client import RequestOutput, RequestProgress, SamplingParams, TokensPrompt
from tests.server.helpers.scripted_engine import Dice, Request, ScriptedEngine, scripted_output

GRAMMAR = grammar_of("<tool_call></tool_call>")
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "name": "weather",
        "description": "How the weather is",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
    {"type": "function", "name": "clock"},
]
CALLS = (
    "<think>\nHm: é😀.\n</think>\n\nI look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Brno é😀"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)
ANSWER = "It rains at noon."


def cut(text: str, seed: int) -> list[str]:
    """The text in random pieces: each is a token."""
    dice = random.Random(seed)
    pieces = []
    while text:
        length = dice.choice((1, 1, 2, 3, 5, 8, 13))
        pieces.append(text[:length])
        text = text[length:]
    return pieces


class CallingEngine(ScriptedEngine):
    """It calls its tools at each question, and answers when they have given something back.

    Token 1 is a prompt that ends in a question, token 2 one that ends in outputs; the others are
    the pieces of what follows either.
    """

    def __init__(self, seed: int = 0, said: str = CALLS, *, is_tireless: bool = False) -> None:
        """`is_tireless`: it calls again after each output, as long as tools are offered."""
        super().__init__(Dice(seed))
        self._is_tireless = is_tireless
        self.grammar = GRAMMAR
        self.prompts: list[tuple[Sequence[Mapping[str, Any]], Mapping[str, object]]] = []
        self.asked: list[SamplingParams] = []
        self.first = cut(said, seed)
        self.second = cut(ANSWER, seed)

    def words(self, prompt_token_ids: Sequence[int]) -> list[str]:
        return self.first if prompt_token_ids[-1] == 1 else self.second

    async def apply_chat_template_async(
        self, messages: Sequence[Mapping[str, Any]], answer: str = "", **options: object
    ) -> list[int]:
        self.prompts.append((messages, options))
        calls_again = self._is_tireless and "tools" in options
        return [2 if messages[-1]["role"] == "tool" and not calls_again else 1]

    def resumed_text(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        resume_token_ids: Sequence[int],
        marks: Marks | None = None,
    ) -> str:
        return "".join(self.words(prompt_token_ids)[: len(resume_token_ids)])

    async def generate(
        self,
        prompt: TokensPrompt,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        on_progress: Callable[[RequestProgress], None] | None = None,
        resume_token_ids: Sequence[int] = (),
        **_: object,
    ) -> AsyncGenerator[RequestOutput, None]:
        request: Request = self.requests[request_id]
        self.num_requests += 1
        self.asked.append(sampling_params)
        if on_progress is not None:
            on_progress(RequestProgress(None, 1, 0, 1, scheduled=True))
        words = self.words(prompt["prompt_token_ids"])[len(resume_token_ids) :]
        room = (sampling_params.max_tokens or len(words)) - len(resume_token_ids)
        for number, word in enumerate(words[:room]):
            await request.at("first" if number == 0 else "mid", self._dice)
            if request.aborted.is_set():
                yield scripted_output(request_id, "", [], "abort")
                return
            yield scripted_output(request_id, word, [7], None)
        request.reached["ended"].set()
        yield scripted_output(request_id, "", [], "length" if len(words) > room else "stop")
