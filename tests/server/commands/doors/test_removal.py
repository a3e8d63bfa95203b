"""What is removed with a response: its text where nothing follows it, and a session of its own."""

import asyncio

import pytest

from server.commands.doors.removal import remove_response
from sessions.model.errors import ResponseNotFound, SessionNotFound
from sessions.model.ids import session_of
from tests.helpers.patience import PATIENCE
from tests.server.api.responses.test_operations import House, house
from tests.server.helpers.local_http import Http

__all__ = ["house"]


async def remove(house: House, response_id: str, worker: int = 0) -> None:
    services = house.workers[worker].services
    kept = await services.store.kept_responses.get("local", response_id)
    await remove_response(services, "local", kept)


async def test_a_session_of_its_own_goes_with_its_only_response(house: House) -> None:
    response = await house.answer()
    await remove(house, response["id"])
    with pytest.raises(SessionNotFound):
        await house.store.sessions.get("local", session_of(response["id"]))


async def test_the_last_of_several_goes_alone(house: House) -> None:
    first = await house.answer(1)
    second = await house.answer(2, previous_response_id=first["id"])
    await remove(house, second["id"])
    session = await house.store.sessions.get("local", session_of(first["id"]))
    assert session.message_count == 2
    third = await house.answer(3, previous_response_id=first["id"])
    assert third["status"] == "incomplete"


async def test_in_a_conversation_the_text_stays(house: House) -> None:
    session = (await house.store.sessions.create("local", idempotency_key="k")).session
    response = await house.answer(conversation=session.id.replace("ses_", "conv_"))
    await remove(house, response["id"])
    page = await house.store.messages.path("local", session.id)
    assert len(page.messages) == 2
    with pytest.raises(ResponseNotFound):
        await house.store.kept_responses.get("local", response["id"])


async def test_in_a_conversation_that_is_in_no_list_the_text_stays(house: House) -> None:
    made = await Http(house.workers[0], "POST", "/v1/conversations", body={}).body()
    first = await house.answer(1, conversation=made["id"])
    second = await house.answer(2, previous_response_id=first["id"])
    assert second["conversation"] == {"id": made["id"]}
    for response in (second, first):
        await remove(house, response["id"])
    page = await house.store.messages.path("local", session_of(first["id"]))
    assert len(page.messages) == 4


@pytest.mark.parametrize("worker", [0, 1])
async def test_an_answer_that_is_being_written_ends_before(house: House, worker: int) -> None:
    response = await house.answer(background=True, max_output_tokens=400)
    request = await house.request()
    request.is_held.add("mid")
    async with asyncio.timeout(PATIENCE):
        await request.reached["mid"].wait()
        await remove(house, response["id"], worker)
        await request.aborted.wait()
    assert await house.hidden() == []
