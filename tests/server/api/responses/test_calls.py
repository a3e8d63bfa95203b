"""Thoughts and calls of tools by `/v1/responses`: sent, sent again, and answered."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sessions.connection.embedded import EmbeddedRedis
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix
from tests.server.api.responses.test_operations import House, forget_run
from tests.server.helpers.callers import ANSWER, TOOLS, CallingEngine
from tests.server.helpers.in_process import running_workers
from tests.server.helpers.local_http import Http

ASKED: dict[str, Any] = {"input": "How is it?", "tools": TOOLS, "max_output_tokens": 200}
SENSELESS = ("id", "call_id", "item_id", "created_at", "completed_at")


@pytest.fixture
async def house(redis_server: EmbeddedRedis) -> AsyncIterator[House]:
    engine = CallingEngine()
    async with running_workers(
        redis_server.url, fresh_prefix(), engine, engine._dice, 2
    ) as workers:
        yield House(workers, engine)


def kinds_of(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def nameless(value: Any) -> Any:
    """Without what is another one for each answer."""
    if isinstance(value, dict):
        return {k: nameless(v) for k, v in value.items() if k not in SENSELESS}
    return [nameless(each) for each in value] if isinstance(value, list) else value


async def test_an_answer_thinks_speaks_and_calls(house: House) -> None:
    response = await house.answer(**ASKED)
    assert kinds_of(response) == ["reasoning", "message", "function_call", "function_call"]
    assert response["status"] == "completed" and response["tools"][0]["name"] == "weather"
    frames = await house.events(response["id"])
    assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
    await forget_run(house, response["id"])
    assert await house.events(response["id"]) == frames
    assert await house.get(response["id"]).body() == response


async def test_outputs_are_answered(house: House) -> None:
    response = await house.answer(**ASKED)
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "rain"}
        for item in response["output"]
        if item["type"] == "function_call"
    ]
    following = {**ASKED, "input": outputs, "previous_response_id": response["id"]}
    answer = await house.answer(**following)
    assert [part["text"] for part in answer["output"][-1]["content"]] == [ANSWER]
    items = await house.get(f"{answer['id']}/input_items", "order=asc").body()
    assert [item["type"] for item in items["data"]] == [
        "message",
        "reasoning",
        "message",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
    ]


async def test_an_output_of_no_call_is_refused(house: House) -> None:
    output = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
    http = house.ask(**{**ASKED, "input": [output]})
    assert (await http.body())["error"]["param"] == "input[0].call_id" and http.status == 400


async def test_the_whole_conversation_may_be_the_input(house: House) -> None:
    response = await house.answer(**ASKED)
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "rain"}
        for item in response["output"]
        if item["type"] == "function_call"
    ]
    given = [{"role": "user", "content": "How is it?"}, *response["output"], *outputs]
    for store in (True, False):
        answer = await house.answer(**{**ASKED, "input": given, "store": store})
        assert answer["output"][-1]["content"][0]["text"] == ANSWER


async def test_what_is_not_stored_has_the_same_events(house: House) -> None:
    response = await house.answer(**ASKED)
    kept = await house.events(response["id"])
    http = house.ask(**ASKED, store=False, stream=True)
    await asyncio.wait_for(http.answered, PATIENCE)
    for frames in (kept, http.frames):
        for frame in frames:
            frame.pop("response", None)
    assert nameless(http.frames) == nameless(kept)


async def test_outputs_that_are_given_again_under_their_key_find_their_answer(house: House) -> None:
    conversation = await Http(house.workers[0], "POST", "/v1/conversations", body={}).body()
    response = await house.answer(**ASKED, conversation=conversation["id"])
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "rain"}
        for item in response["output"]
        if item["type"] == "function_call"
    ]
    following = {**ASKED, "input": outputs, "conversation": conversation["id"]}
    first = await house.ask(headers={"idempotency-key": "k"}, **following).body()
    again = await house.ask(headers={"idempotency-key": "k"}, **following).body()
    assert again == first and again["status"] == "completed"
