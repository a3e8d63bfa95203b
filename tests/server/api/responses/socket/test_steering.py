"""Words for an answer that is being streamed: kept first, then asked in the same lane."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from server.api.responses.socket.steering import words_of
from server.protocol.errors import ApiError
from sessions.connection.embedded import EmbeddedRedis
from tests.end_to_end.sdks.environment import strict_problems
from tests.helpers.tiny_model import oracle_answer, oracle_word
from tests.server.api.responses.socket.client import Frame
from tests.server.api.responses.socket.test_connection import END, House, house_of, text_of

SERVER_EVENT = "responses:ResponsesServerEvent"


@pytest.fixture
async def house(redis_server: EmbeddedRedis) -> AsyncIterator[House]:
    async with house_of(redis_server) as house:
        yield house


def steer(response_id: str, words: Any) -> Frame:
    return {"type": "response.steer", "previous_response_id": response_id, "input": words}


async def test_an_answer_ends_and_another_goes_on_with_the_words(house: House) -> None:
    words = [{"role": "user", "content": [{"type": "input_text", "text": oracle_word(5)}]}]
    async with house.client() as client:
        house.hold("mid")
        asked = {"instructions": "Count.", "temperature": 0.5, "metadata": {"a": "b"}}
        client.create(input=oracle_word(1), stream_id="a", **asked)
        request = await house.request()
        first = (await client.event())["response"]["id"]
        house.hold()
        client.send(steer(first, words))
        events = await client.until(END, "a")
        (accepted,) = [each for each in events if each["type"] == "response.steer.accepted"]
        assert accepted["steer"]["previous_response_id"] == first
        assert events[-1]["response"]["incomplete_details"] == {"reason": "steered"}
        assert request.aborted.is_set()
        following = await client.until(END, "a")
        assert text_of(following) == oracle_answer(5, 4)
        response = following[-1]["response"]
        assert response["previous_response_id"] == first
        assert {name: response[name] for name in asked} == asked
        assert [each["sequence_number"] for each in following] == list(range(len(following)))
        again = await house.read(response["id"], "stream=true")
        kept = [{**each, "stream_id": "a"} for each in again.frames]
        assert kept == following
        assert strict_problems((SERVER_EVENT, each) for each in [*events, *following]) == ""


async def test_words_that_nobody_can_ask_come_back(house: House) -> None:
    async with house.client() as client:
        house.hold("mid")
        client.create(input=oracle_word(1), stream_id="a", store=False)
        request = await house.request()
        unstored = (await client.event())["response"]["id"]
        client.send(steer("resp_" + "x" * 33, "more"))
        (missing,) = await client.until("response.steer.failed")
        assert missing["error"]["code"] == "response_not_found"
        assert missing["steer"] == {
            "previous_response_id": "resp_" + "x" * 33,
            "input": "more",
        }
        client.send(steer(unstored, "more"))
        failed = (await client.until("response.steer.failed", "a"))[-1]
        assert failed["error"]["code"] == "steering_not_supported"
        request.released.set()
        await client.until(END, "a")
        house.hold("mid")
        client.create(input=oracle_word(1), stream_id="b")
        request = await house.request()
        stored = (await client.event())["response"]["id"]
        client.send(steer(stored, [{"role": "system", "content": "more"}]))
        refused = (await client.until("response.steer.failed", "b"))[-1]
        assert refused["error"]["code"] == "invalid_input"
        client.send(steer(stored, "  "))
        empty = (await client.until("response.steer.failed", "b"))[-1]
        assert empty["error"]["code"] == "invalid_input"
        request.released.set()
        assert text_of(await client.until(END, "b")) in oracle_answer(1, 4)
        failures = [missing, failed, empty]  # the other one brings back what OpenAI has no type for
        assert strict_problems((SERVER_EVENT, each) for each in failures) == ""


def test_only_a_users_words_steer() -> None:
    assert words_of("a") == "a"
    parts = [{"type": "input_text", "text": "b"}, {"type": "input_text", "text": "c"}]
    said = [{"role": "user", "content": "a"}, {"type": "message", "role": "user", "content": parts}]
    assert words_of(said) == "a\n\nbc"
    for wrong in (
        {"role": "assistant", "content": "a"},
        {"type": "function_call_output", "call_id": "c", "output": "o"},
        {"role": "user", "content": [{"type": "input_image", "text": ""}]},
        "a",
    ):
        with pytest.raises(ApiError):
            words_of([wrong])
