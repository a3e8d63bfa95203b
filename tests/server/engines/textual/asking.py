"""`Asker`: who asks an engine, what it was shown, and the last output."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from server.engines.client import RequestOutput, SamplingParams
from server.engines.textual.answers import GRAMMAR
from server.engines.textual.engine import TextEngine
from server.engines.textual.line import Patience
from tests.helpers.patience import PATIENCE

HELLO = [{"role": "user", "content": "Hello"}]
HASTY = Patience(first=1.0, next=1.0, last=0.2)


class Asker:
    """It asks one thing at a time."""

    def __init__(self, engine: TextEngine) -> None:
        self.engine = engine
        self.text = ""
        self.token_ids: list[int] = []
        self.heard = asyncio.Event()

    def take(self, text: str, token_ids: Any, logprobs: Any) -> None:
        self.text += text
        self.token_ids += token_ids
        self.heard.set()

    async def ask(self, answer: str = "", **given: Any) -> RequestOutput:
        """All of an answer that has said `answer` already."""
        resumed = given.pop("resume_token_ids", ())
        params = {"max_tokens": 100, "temperature": 0.5, "seed": 3} | given.pop("params", {})
        said = given.pop("messages", HELLO)
        ids = await self.engine.get_tokenizer().apply_chat_template_async(said, answer, **given)
        outputs = self.engine.generate(
            {"prompt_token_ids": ids},
            SamplingParams(**params),
            "resp_1",
            on_delta=self.take,
            resume_token_ids=resumed,
            marks=GRAMMAR.marks,
        )
        async with asyncio.timeout(PATIENCE):
            *_, last = [output async for output in outputs]
        return last


Open = Callable[..., Awaitable[Asker]]  # a stand-in, and options of the engine
