"""`StatelessAnswer`: what a question is answered, which may be several answers side by side."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from server.commands.stateless.asked import Ended, Heard
from server.commands.stateless.choice import Choice, Work
from sessions.background import start
from sessions.model.quotas import Budget

AT_ONCE = 16  # of one call: the engine's queue is there for others, too


class StatelessAnswer:
    """`events` are read once, to the end or until they are closed: that ends the generation. `tell`
    in their place spares a task's turn for each of them.
    """

    def __init__(self, response_id: str, work: Work, budget: Budget | None = None) -> None:
        self.id = response_id
        self.budget = budget  # what was left of the user's tokens before; None: not counted
        self._work = work
        self._room = asyncio.Semaphore(AT_ONCE)
        self._hear: Callable[[Heard], None] = lambda _: None  # until `tell`
        self._choices = [
            Choice(number, f"{response_id}-{number}", work, self._said)
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
        per_prompt = len(self._choices) // len(self._work.prompts)
        said = [choice.num_prompt_tokens for choice in self._choices[::per_prompt]]
        pairs = zip(said, map(len, self._work.prompts), strict=True)
        return sum(counted if number is None else number for number, counted in pairs)

    @property
    def num_cached_tokens(self) -> int:
        """Of the prompts, as the first answer to each found them."""
        per_prompt = len(self._choices) // len(self._work.prompts)
        return sum(choice.num_cached_tokens for choice in self._choices[::per_prompt])

    @property
    def num_output_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self._choices)

    def end(self, problem: str) -> None:
        """Let those who read hear that nothing more comes, and why."""
        for number in range(len(self._choices)):
            self._hear(Ended(number, "error", problem=problem))

    async def events(self) -> AsyncGenerator[Heard, None]:
        """What is said, in the order in which it comes, until each answer has ended."""
        said: asyncio.Queue[Heard] = asyncio.Queue()
        telling, num_open = start(self.tell(said.put_nowait)), len(self._choices)
        try:
            while num_open:
                heard = await said.get()
                num_open -= isinstance(heard, Ended)
                yield heard
        finally:
            if num_open:
                telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    async def tell(self, hear: Callable[[Heard], object]) -> None:
        """Call `hear` with what is said, in the turn in which it comes, until each has ended.

        Raises what that raises, and nothing is said then any more.
        """
        open_choices, over = set(range(len(self._choices))), asyncio.Event()
        problem: Exception | None = None

        def take(heard: Heard) -> None:
            nonlocal problem
            if over.is_set() or heard.choice not in open_choices:
                return
            if isinstance(heard, Ended):
                open_choices.remove(heard.choice)
            try:
                hear(heard)
            except Exception as error:  # the engine, which calls this, has no part in it
                problem = error
            if problem is not None or not open_choices:
                over.set()

        self._hear = take
        running = [start(self._run(number)) for number in range(len(self._choices))]
        try:
            await over.wait()
            if problem is not None:
                raise problem
        finally:
            for number, task in enumerate(running):
                await self._leave(task, number)

    async def _run(self, number: int) -> None:
        ended = Ended(number, "error", problem="the server has failed")
        try:
            async with self._room:
                ended = await self._choices[number].produce()
        finally:
            self._hear(ended)

    def _said(self, heard: Heard) -> None:
        self._hear(heard)

    async def _leave(self, task: asyncio.Task[None], number: int) -> None:
        """Its blocks are free within a step, also if nobody waits any more."""
        if not task.done():
            task.cancel()
            await self._choices[number].abort()
            await asyncio.gather(task, return_exceptions=True)
