"""Users of a server to measure: a socket each, a session each, and how long they ask."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from bench.harness.socket_client import BenchSocket
from sessions.directory.credentials import Credentials
from sessions.directory.users import Users
from sessions.store.store import SessionStore
from tests.end_to_end.site.harness import Server

QUESTION = "Tell me a story of the village, please, and of who lives there."
AT_ONCE = 50
PER_ADDRESS = 1000


@dataclass(frozen=True, slots=True)
class Visitor:
    """A user with one open socket."""

    socket: BenchSocket
    session_id: str = ""

    async def ask(self, num_tokens: int, session_id: str = "") -> str:
        """Begin an answer of so many tokens; its id."""
        session = session_id or self.session_id
        return await self.socket.ask(session, QUESTION, max_output_tokens=num_tokens, temperature=0)

    async def answer(self, num_tokens: int, session_id: str = "") -> int:
        """Ask and wait for the end; how many characters the answer has."""
        await self.ask(num_tokens, session_id)
        done = (await self.socket.next("response.done")).body["response"]
        self.socket.forget()
        return int(done["text_length"])


async def arrive(
    server: Server, redis_url: str, num_visitors: int, *, with_sessions: bool
) -> list[Visitor]:
    """So many users of their own connect."""
    store = await SessionStore.open(redis_url)
    try:
        users = Users(store.client, store.keys)
        credentials = Credentials(store.client, store.keys)
        made = [await users.create(f"visitor {number}") for number in range(num_visitors)]
        tokens = [await credentials.create_token(user.uid) for user in made]
    finally:
        await store.close()
    visitors: list[Visitor] = []
    for start in range(0, num_visitors, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, num_visitors))
        visitors += await asyncio.gather(
            *(_arrive(server, tokens[number], number, with_sessions) for number in numbers)
        )
    return visitors


async def _arrive(server: Server, token: str, number: int, with_session: bool) -> Visitor:
    socket = await BenchSocket.open(server, token, f"127.0.0.{2 + number // PER_ADDRESS}")
    return Visitor(socket, await socket.new_session() if with_session else "")


def leave(visitors: Sequence[Visitor]) -> None:
    for visitor in visitors:
        visitor.socket.close()
