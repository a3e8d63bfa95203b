"""What a client and a reader of the store find when a fault is over."""

import asyncio

from tests.end_to_end.site.harness import Client, Frame, Server
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import oracle_answer, oracle_word


async def blocks_come_back(server: Server, free: float) -> None:
    """The engine frees within a step; from outside, that is a few reads away at most."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if await asyncio.to_thread(server.metric, "parley_kv_blocks_free") == free:
                return


async def next_question_works(client: Client, session: str) -> None:
    """The session takes and finishes another answer within 15 s of the fault."""
    async with asyncio.timeout(PATIENCE):
        while True:
            await client.send(
                "response.create",
                session_id=session,
                idempotency_key=f"next-{len(client.frames)}",
                input=oracle_word(300),
                settings={"temperature": 0, "max_output_tokens": 10},
            )
            frame = await client.next("response.created", "error")
            if frame["type"] == "response.created":
                break
            assert frame["error"]["retry_after_ms"], frame
            await asyncio.sleep(0.2)
    answer = await client.done(frame["response"]["id"])
    assert answer.final == oracle_answer(300, 10)


async def ask_when_it_may(client: Client, session: str, text: str, settings: Frame) -> str:
    """The response, of a worker that has just come, or whose core has: they say when to ask."""
    create = {"session_id": session, "idempotency_key": session, "input": text}
    async with asyncio.timeout(PATIENCE):
        while True:
            frame = await client.reply("response.create", **create, settings=settings)
            if frame["type"] == "response.created":
                return str(frame["response"]["id"])
            assert frame["error"]["code"] == "engine_unavailable", frame
            await asyncio.sleep(frame["error"]["retry_after_ms"] / 1000)


def stored_text(server: Server, session: str) -> str:
    messages = server.get_json(f"/v1/sessions/{session}/messages")["messages"]
    return str(messages[1]["content"][0]["text"])


def is_stored(client: Client, response: str) -> bool:
    """Whether the client has heard that the answer's message has been stored as it ended."""
    return any(
        frame["type"] == "message.updated"
        and frame["message"].get("response_id") == response
        and frame["message"]["status"] != "in_progress"
        for frame in client.frames
    )


async def still_works(client: Client) -> None:
    """The connection takes another frame."""
    await client.send("ping", t=len(client.frames))
    assert (await client.next("pong", "error"))["type"] == "pong"
