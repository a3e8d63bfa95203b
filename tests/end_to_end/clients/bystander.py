"""Somebody else's answer on the same worker: it stays whole, no matter what happens meanwhile."""

import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tests.end_to_end.clients.http_client import admin_token
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.tiny_model import oracle_answer, oracle_word


@contextlib.asynccontextmanager
async def streaming_bystander(server: Server) -> AsyncIterator[Client]:
    """Another user's answer, from before until after: whole and in order."""
    async with Client(server, token=admin_token(server)) as client:
        session = await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": 16_000}
        response = await client.ask(session, oracle_word(0), settings=settings)
        before = (await client.deltas(response, 1)).num_deltas
        yield client
        await client.deltas(response, before + 2)
        await client.send("stop", response_id=response)
        answer = await client.done(response)
        assert answer.done is not None
        assert answer.done["response"]["status"] == "cancelled"
        assert answer.final
        assert oracle_answer(0, 16_000).startswith(answer.final)


def beside_a_stream(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Runs a test that takes `server` while a bystander streams."""

    @functools.wraps(test)
    async def run(**fixtures: Any) -> None:
        async with streaming_bystander(fixtures["server"]):
            await test(**fixtures)

    return run
