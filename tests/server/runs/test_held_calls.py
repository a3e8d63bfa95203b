"""Answers that must call, through `parley serve`: their owner or the core is killed under them."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.end_to_end.frames.client_model import Frame
from tests.end_to_end.site.harness import TESTING, Client, Server
from tests.end_to_end.site.owned_answer import owner_and_other
from tests.helpers.tiny_model import build_tiny_model, give_marks

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
    "{% for message in messages %}{{ message.content }}\n{% endfor %}<think>\n"
)
CITY: Frame = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 30, "maxLength": 40}},
    "required": ["city"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
SETTINGS: Frame = {
    "temperature": 1.0,
    "top_p": 1.0,
    "max_output_tokens": 200,
    "thinking_token_budget": 6,
    "tools": [{"type": "function", "name": name, "parameters": CITY} for name in ("map", "clock")],
}
CHOICES: tuple[Any, ...] = ("required", {"type": "function", "name": "clock"})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("held")
    model = give_marks(build_tiny_model(folder / "model", chat_template=TEMPLATE), MARKS)
    environment = {**TESTING, "PARLEY_WORKERS": "2", "PARLEY_PACE": "60"}
    server = Server(folder / "data", model, None, **environment)
    try:
        yield server.start()
    finally:
        server.close()


async def begin(client: Client) -> list[tuple[str, str]]:
    """Sessions, and their answers."""
    begun = []
    for seed, choice in enumerate(CHOICES, 3):
        session = await client.new_session()
        settings = {**SETTINGS, "seed": seed, "tool_choice": choice}
        begun.append((session, await client.ask(session, "Where?", settings=settings)))
    return begun


async def stored(client: Client, session: str, response: str) -> Frame:
    """What is stored of an answer that has ended."""
    answer = await client.done(response)
    assert answer.done is not None and answer.final == ""
    subscribed = await client.reply("session.subscribe", session_id=session)
    message = subscribed["snapshot"]["messages"][-1]
    calls = [(call["name"], call["arguments"], call["status"]) for call in message["tool_calls"]]
    reason = message["status_details"]["reason"]
    return {"reasoning": message["reasoning"], "calls": calls, "reason": reason}


async def undisturbed(server: Server) -> list[Frame]:
    async with Client(server) as client:
        return [await stored(client, *each) for each in await begin(client)]


async def has_begun_to_call(client: Client, response: str) -> None:
    kind = "response.function_call_arguments.delta"
    await client.wait(
        lambda: any(
            each["type"] == kind and each["response_id"] == response for each in client.frames
        ),
        kind,
    )


async def test_an_answer_thinks_so_much_and_calls_what_it_must(server: Server) -> None:
    required, named = await undisturbed(server)
    for answer in (required, named):
        assert answer["reasoning"]
        names, arguments, statuses = zip(*answer["calls"], strict=True)
        assert set(names) <= {"map", "clock"}
        assert {*statuses[:-1]} <= {"completed"}  # the last one may be cut
        assert all(30 <= len(json.loads(each)["city"]) <= 40 for each in arguments[:-1])
    assert named["reason"] == "tool_calls"
    assert [(name, status) for name, _, status in named["calls"]] == [("clock", "completed")]


@pytest.mark.slow
async def test_after_a_kill_of_the_core_each_call_is_the_same(server: Server) -> None:
    expected = await undisturbed(server)
    async with Client(server) as client:
        begun = await begin(client)
        await asyncio.gather(*(has_begun_to_call(client, response) for _, response in begun))
        server.kill_child("engine.core")
        assert [await stored(client, *each) for each in begun] == expected


async def test_after_a_kill_of_the_owner_each_call_is_the_same(server: Server) -> None:
    expected = await undisturbed(server)
    async with owner_and_other(server) as (owner, other, pid):
        begun = await begin(owner)
        for session, response in begun:
            await other.reply("session.subscribe", session_id=session)
            await has_begun_to_call(other, response)
        os.kill(pid, signal.SIGKILL)
        assert [await stored(other, *each) for each in begun] == expected
