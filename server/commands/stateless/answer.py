"""`StatelessAnswer`: what a question is answered, which may be several answers side by side."""

import asyncio
from collections.abc import AsyncGenerator

from server.commands.stateless.asked import Ended, Heard
from server.commands.stateless.choice import Choice, Work
from sessions.background import start
from sessions.model.quotas import Budget

AT_ONCE = 16  # of one call: the engine's queue is there for others, too


class StatelessAnswer:
    """`events` are read once, to the end or until they are closed: that ends the generation."""

    def __init__(self, response_id: str, work: Work, budget: Budget | None = None) -> None:
        self.id = response_id
        self.budget = budget  # what was left of the user's tokens before; None: not counted
        self._work = work
        self._room = asyncio.Semaphore(AT_ONCE)
        self._heard: asyncio.Queue[Heard] = asyncio.Queue()
        self._choices = [
            Choice(number, f"{response_id}-{number}", work, self._heard.put_nowait)
            for number in range(len(work.params))
        ]

    def prompt_of(self, choice: int) -> list[int]:
        """The token ids that it follows."""
        return self._work.prompts[self._work.prompt_number(choice)]

    @property
    def prompt_token_ids(self) -> list[int]:
        """Those of the only prompt, or of the first."""
        return self.prompt_of(0)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self._work.prompts))

    @property
    def num_cached_tokens(self) -> int:
        """Of the prompts, as the first answer to each found them."""
        per_prompt = len(self._choices) // len(self._work.prompts)
        return sum(choice.num_cached_tokens for choice in self._choices[::per_prompt])

    @property
    def num_output_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self._choices)

    def end(self, problem: str) -> None:
        """Whoever reads hears that nothing more comes, and why."""
        for number in range(len(self._choices)):
            self._heard.put_nowait(Ended(number, "error", problem=problem))

    async def events(self) -> AsyncGenerator[Heard, None]:
        """What is said, in the order in which it comes, until each answer has ended."""
        running = {number: start(self._run(number)) for number in range(len(self._choices))}
        try:
            while running:
                heard = await self._heard.get()
                if heard.choice in running:
                    if isinstance(heard, Ended):
                        await self._leave(running.pop(heard.choice), heard.choice)
                    yield heard
        finally:
            for number, task in running.items():
                await self._leave(task, number)

    async def _run(self, number: int) -> None:
        ended = Ended(number, "error", problem="the server has failed")
        try:
            async with self._room:
                ended = await self._choices[number].produce()
        finally:
            self._heard.put_nowait(ended)

    async def _leave(self, task: asyncio.Task[None], number: int) -> None:
        """Its blocks are free within a step, whoever has gone."""
        if not task.done():
            task.cancel()
            await self._choices[number].abort()
            await asyncio.gather(task, return_exceptions=True)
