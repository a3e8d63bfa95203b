"""A dozen questions at once, whose answers are long, and what was shown of them."""

import asyncio
from dataclasses import dataclass, field

from engine import AsyncLLM, RequestOutputKind, SamplingParams, TokensPrompt

MAX_TOKENS = 160
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
    is_confirmed: bool = True  # that the engine has ended it


class Asker:
    """Asks all questions at once, under the names `NAME-0` and so on."""

    def __init__(self, llm: AsyncLLM, prompts: list[list[int]]) -> None:
        self._llm = llm
        self.told = [Told(prompt) for prompt in prompts]
        self._changed = asyncio.Event()

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
                told.is_confirmed = output.metrics.core_confirmed
            self._changed.set()

    async def until_all_have(self, num_tokens: int) -> None:
        while min(len(told.ids) for told in self.told) < num_tokens:
            self._changed.clear()
            await self._changed.wait()


async def prompts_of(llm: AsyncLLM) -> list[list[int]]:
    tokenizer = llm.get_tokenizer()
    asked = [[{"role": "user", "content": f"Tell me a story about {topic}."}] for topic in TOPICS]
    return [await tokenizer.apply_chat_template_async(messages) for messages in asked]
