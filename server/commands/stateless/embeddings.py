"""`StatelessEmbeddings`: texts, or token ids, as vectors."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from server.commands.stateless.entry import Entered, Entry
from server.engines.client import EngineError, PoolingParams, TokensPrompt, ValidationError
from server.protocol.errors import ApiError, invalid_field
from sessions.background import start
from sessions.model.quotas import Budget

AT_ONCE = 16  # of a call: the engine's queue is there for others, too


@dataclass(frozen=True, slots=True)
class Embedded:
    """A vector for each text, in their order."""

    vectors: list[list[float]]
    num_tokens: int
    budget: Budget | None  # what was left of the user's tokens before; None: not counted


class StatelessEmbeddings:
    """Those of one worker."""

    def __init__(self, entry: Entry, salt_of: Callable[[str], str]) -> None:
        self._entry = entry
        self._salt_of = salt_of

    async def embed(
        self, uid: str, model: str, texts: Sequence[str | Sequence[int]], dimensions: int | None
    ) -> Embedded:
        """Raises `ApiError` and the store's errors. Cancelling it ends the work."""
        async with AsyncExitStack() as leave:
            entered = await self._entry.enter(uid, model, leave)
            prompts = [await self._prompt(entered, place, text) for place, text in enumerate(texts)]
            num_tokens = sum(map(len, prompts))
            await self._entry.hold(entered, wanted=num_tokens, least=num_tokens)
            leave.callback(self._entry.charge, entered, num_tokens)
            room = asyncio.Semaphore(AT_ONCE)
            tasks = [
                start(self._vector(entered, place, prompt, dimensions, room))
                for place, prompt in enumerate(prompts)
            ]
            try:
                vectors = list(await asyncio.gather(*tasks))
                return Embedded(vectors, num_tokens, entered.budget)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _vector(
        self,
        entered: Entered,
        place: int,
        token_ids: list[int],
        dimensions: int | None,
        room: asyncio.Semaphore,
    ) -> list[float]:
        prompt: TokensPrompt = {
            "prompt_token_ids": token_ids,
            "cache_salt": self._salt_of(entered.uid),
        }
        try:
            async with room:
                outputs = entered.engine.encode(
                    prompt,
                    PoolingParams(dimensions=dimensions),
                    f"{entered.id}-{place}",
                    lora_request=entered.model.lora_request,
                )
                async for output in outputs:
                    if output.finished and output.error is None and output.outputs.data:
                        return output.outputs.data
        except ValidationError as error:
            raise invalid_field(error.parameter or f"input[{place}]", f"{error}") from error
        except EngineError as error:
            raise ApiError("engine_unavailable", "the engine has failed; try again") from error
        raise ApiError("engine_unavailable", "the engine has failed; try again")

    async def _prompt(self, entered: Entered, place: int, text: str | Sequence[int]) -> list[int]:
        engine = entered.engine
        if isinstance(text, str):
            token_ids = await engine.get_tokenizer().encode_async(text, owner=entered.uid)
        else:
            token_ids = [*text]
        limit = engine.model_config.max_model_len
        if not token_ids:
            raise invalid_field(f"input[{place}]", "it is empty")
        if len(token_ids) > limit:
            problem = f"it has {len(token_ids)} tokens; the model's context has {limit}"
            raise ApiError("context_length_exceeded", problem, param=f"input[{place}]")
        return token_ids
