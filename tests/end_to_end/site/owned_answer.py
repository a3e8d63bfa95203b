"""An answer at one of two workers, watched from the other one: whoever owns it then."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.end_to_end.frames.client_model import Answer, Frame
from tests.end_to_end.site.harness import Client, Server
from tests.end_to_end.site.wiring import at_both, pid_of, replica_of, two_workers_serve
from tests.helpers.tiny_model import oracle_word

NUM_TOKENS = 250
SETTINGS = {"temperature": 0, "max_output_tokens": NUM_TOKENS}
TEXT = "response.output_text.delta"


@asynccontextmanager
async def owner_and_other(server: Server) -> AsyncIterator[tuple[Client, Client, int]]:
    """Clients of both workers, and the pid of the first one's."""
    await two_workers_serve(server)
    async with at_both(server) as (owner, other):
        yield owner, other, pid_of(await replica_of(owner))


async def begin(owner: Client, other: Client, word: int = 0, **settings: object) -> tuple[str, str]:
    """An answer at the owner that the other one watches: session and response."""
    session = await owner.new_session()
    await other.reply("session.subscribe", session_id=session)
    response = await owner.ask(session, oracle_word(word), settings={**SETTINGS, **settings})
    await other.deltas(response, 5)
    return session, response


def position(response: str, known: Answer) -> Frame:
    return {
        "response_id": response,
        "fence": known.fence,
        "after_sequence_number": known.last,
    }


async def resume(client: Client, session: str, response: str, known: Answer) -> Answer:
    """Come back with what another connection knew, and wait for the end."""
    client.answers[response] = known
    responses = [position(response, known)]
    await client.reply("session.subscribe", session_id=session, responses=responses)
    return await client.done(response)


async def run_of(server: Server, response: str) -> dict[str, str]:
    stored = await asyncio.to_thread(server._read_store)
    assert stored is not None
    run = stored.run(response)
    assert run is not None
    return run.fields


def status_of(answer: Answer) -> tuple[str, str]:
    assert answer.done is not None
    response = answer.done["response"]
    return response["status"], response["status_details"]["reason"]
