"""`/v1/responses` at whole workers: what is asked, streamed, kept, stopped and removed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from server.access.identities import User
from server.protocol.errors import ApiError
from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from sessions.model.ids import session_of
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_answer, oracle_word
from tests.server.helpers.in_process import running_workers
from tests.server.helpers.local_http import Http
from tests.server.helpers.scripted_engine import Dice, Request, ScriptedEngine

ROUTE = "/v1/responses"
Frame = dict[str, Any]


class House:
    """Two workers, their engine, and who asks there."""

    def __init__(self, workers: list[Worker], engine: ScriptedEngine) -> None:
        self.workers, self.engine = workers, engine
        self.store = workers[0].store

    def ask(self, asked: int = 1, headers: dict[str, str] | None = None, **fields: Any) -> Http:
        body = {"model": "oracle", "input": oracle_word(asked), "max_output_tokens": 4}
        return Http(self.workers[0], "POST", ROUTE, body=body | fields, headers=headers)

    async def answer(self, asked: int = 1, **fields: Any) -> Frame:
        http = self.ask(asked, **fields)
        body: Frame = await http.body()
        assert http.status == 200, body
        return body

    def get(self, path: str, query: str = "", *, worker: int = 1) -> Http:
        return Http(self.workers[worker], "GET", f"{ROUTE}/{path}", query)

    def post(self, path: str, body: Frame | None = None, *, worker: int = 1) -> Http:
        return Http(self.workers[worker], "POST", f"{ROUTE}/{path}", body=body)

    async def events(self, response_id: str, after: int | None = None, worker: int = 1) -> Any:
        query = "stream=true" + ("" if after is None else f"&starting_after={after}")
        http = self.get(response_id, query, worker=worker)
        await asyncio.wait_for(http.answered, PATIENCE)
        assert http.status == 200
        return http.frames

    async def request(self) -> Request:
        """The newest one at the engine, when it has come."""
        async with asyncio.timeout(PATIENCE):
            await self.engine.was_asked.wait()
        self.engine.was_asked.clear()
        return list(self.engine.requests.values())[-1]

    async def shown(self) -> list[str]:
        return [session.id for session in (await self.store.lists.page("local")).sessions]

    async def hidden(self) -> list[str]:
        page = await self.store.lists.page("local", hidden=True)
        return [session.id for session in page.sessions]


@pytest.fixture
async def house(redis_server: EmbeddedRedis) -> AsyncIterator[House]:
    dice = Dice(11)
    engine = ScriptedEngine(dice)
    async with running_workers(redis_server.url, fresh_prefix(), engine, dice, 2) as workers:
        yield House(workers, engine)


def text_of(response: Frame) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


def streamed(frames: list[Frame]) -> str:
    return "".join(f["delta"] for f in frames if f["type"] == "response.output_text.delta")


async def test_an_answer_is_whole_and_can_be_read_again_anywhere(house: House) -> None:
    response = await house.answer(metadata={"a": "b"}, instructions="Be short.")
    assert text_of(response) == oracle_answer(1, 4)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["metadata"] == {"a": "b"} and response["instructions"] == "Be short."
    assert response["usage"]["output_tokens"] == 4
    for worker in (0, 1):
        assert await house.get(response["id"], worker=worker).body() == response


async def test_a_stream_is_numbered_without_gaps_and_is_the_same_wherever_it_is_read(
    house: House,
) -> None:
    http = house.ask(stream=True)
    await asyncio.wait_for(http.answered, PATIENCE)
    frames = http.frames
    assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
    assert streamed(frames) == oracle_answer(1, 4)
    response = frames[-1]["response"]
    for worker in (0, 1):
        assert await house.events(response["id"], worker=worker) == frames
    assert await house.events(response["id"], after=5) == frames[6:]


async def test_when_its_log_is_gone_it_is_rebuilt_from_its_message_with_the_same_numbers(
    house: House,
) -> None:
    response = await house.answer()
    frames = await house.events(response["id"])
    await forget_run(house, response["id"])
    assert await house.events(response["id"]) == frames
    assert await house.events(response["id"], after=3) == frames[4:]
    assert await house.get(response["id"]).body() == response


async def forget_run(house: House, response_id: str) -> None:
    """As after ten minutes."""
    keys = house.store.context.run_keys(f"ses_{response_id[5:27]}", response_id)
    assert await house.store.client.call("DEL", *keys) >= 2


async def test_a_background_answer_is_followed_from_another_worker(house: House) -> None:
    response = await house.answer(background=True, max_output_tokens=20)
    assert response["status"] in ("queued", "in_progress") and response["background"] is True
    frames = await house.events(response["id"])
    assert streamed(frames) == oracle_answer(1, 20)
    assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
    assert frames[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_stored_answer_goes_on_without_its_client(house: House, is_streamed: bool) -> None:
    http = house.ask(stream=is_streamed, max_output_tokens=30)
    request = await house.request()
    request.is_held.add("mid")
    async with asyncio.timeout(PATIENCE):
        await request.reached["mid"].wait()
    http.leave()
    await asyncio.wait_for(http.answered, PATIENCE)
    (session_id,) = await house.hidden()
    live = await house.store.responses.live(session_id)
    request.is_held.clear()
    request.released.set()
    frames = await house.events(live.ids[0])
    assert streamed(frames) == oracle_answer(1, 30)


async def test_a_session_of_its_own_is_in_no_list_and_expires(house: House) -> None:
    await house.answer()
    assert await house.shown() == []
    (session_id,) = await house.hidden()
    life = await house.store.client.call("PTTL", house.store.keys.session(session_id, "m"))
    assert 0 < life <= 30 * 86_400_000


async def test_what_is_refused_leaves_nothing(house: House) -> None:
    http = house.ask(model="another")
    body = await http.body()
    assert http.status == 404 and body["error"]["param"] == "model"
    assert await house.hidden() == []


async def test_an_answer_follows_another_one_without_its_instructions(house: House) -> None:
    first = await house.answer(1, instructions="Be short.")
    second = await house.answer(9, previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"] and second["instructions"] is None
    assert text_of(second) == oracle_answer(9, 4)
    assert len(await house.hidden()) == 1
    items = await house.get(f"{second['id']}/input_items", "order=asc").body()
    assert [item["content"][0]["text"] for item in items["data"]] == [
        oracle_word(1),
        oracle_answer(1, 4),
        oracle_word(9),
    ]


async def test_two_answers_to_one_are_branches(house: House) -> None:
    first = await house.answer(1)
    answers = [await house.answer(n, previous_response_id=first["id"]) for n in (5, 7)]
    for asked, answer in zip((5, 7), answers, strict=True):
        items = await house.get(f"{answer['id']}/input_items", "order=asc").body()
        assert [item["content"][0]["text"] for item in items["data"]][2:] == [oracle_word(asked)]


async def test_an_answer_does_not_follow_one_that_is_being_written(house: House) -> None:
    first = await house.answer(background=True, max_output_tokens=400)
    request = await house.request()
    request.is_held.add("mid")
    async with asyncio.timeout(PATIENCE):
        await request.reached["mid"].wait()
    http = house.ask(2, previous_response_id=first["id"])
    assert (await http.body())["error"]["code"] == "response_in_progress" and http.status == 409
    request.is_held.clear()
    request.released.set()
    await house.events(first["id"])
    assert text_of(await house.answer(2, previous_response_id=first["id"])) == oracle_answer(2, 4)


async def test_a_stream_ends_with_its_worker_and_goes_on_at_another(house: House) -> None:
    http = house.ask(stream=True, max_output_tokens=60)
    request = await house.request()
    request.is_held.add("mid")
    async with asyncio.timeout(PATIENCE):
        await request.reached["mid"].wait()
        await http.num_frames(5)
    for viewer in [*house.workers[0].streams]:
        viewer.close_soon()
    request.is_held.clear()
    request.released.set()
    await asyncio.wait_for(http.answered, PATIENCE)
    seen = http.frames
    rest = await house.events(seen[0]["response"]["id"], after=seen[-1]["sequence_number"])
    assert (
        streamed(seen + rest) == oracle_answer(1, 60) and rest[-1]["type"] == "response.incomplete"
    )


async def test_an_answer_in_a_session_stays_in_its_list(house: House) -> None:
    created = await house.store.sessions.create("local", idempotency_key="k", title="Mine")
    conversation = created.session.id.replace("ses_", "conv_")
    for asked in (1, 3):
        response = await house.answer(asked, conversation=conversation)
        assert response["conversation"] == {"id": conversation}
    assert await house.shown() == [created.session.id] and await house.hidden() == []
    page = await house.store.messages.path("local", created.session.id)
    assert [message.text for message in page.messages] == [
        oracle_word(1),
        oracle_answer(1, 4),
        oracle_word(3),
        oracle_answer(3, 4),
    ]


async def test_items_become_messages_before_the_question(house: House) -> None:
    given = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": oracle_word(1)},
        {"role": "assistant", "content": [{"type": "output_text", "text": oracle_word(2)}]},
        {"role": "user", "content": [{"type": "input_text", "text": oracle_word(4)}]},
    ]
    response = await house.answer(input=given)
    assert text_of(response) == oracle_answer(4, 4)
    page = await house.get(f"{response['id']}/input_items", "limit=2").body()
    assert [item["role"] for item in page["data"]] == ["user", "assistant"] and page["has_more"]
    rest = await house.get(f"{response['id']}/input_items", f"after={page['last_id']}").body()
    assert [item["role"] for item in rest["data"]] == ["user", "developer"]
    assert not rest["has_more"]


async def test_a_stop_ends_it_and_may_be_repeated(house: House) -> None:
    response = await house.answer(background=True, max_output_tokens=400)
    request = await house.request()
    request.is_held.add("mid")
    async with asyncio.timeout(PATIENCE):
        await request.reached["mid"].wait()
    stopping = house.post(f"{response['id']}/cancel")
    async with asyncio.timeout(PATIENCE):
        await request.aborted.wait()
    request.is_held.clear()
    request.released.set()
    stopped = await stopping.body()
    assert stopped["status"] == "cancelled"
    await forget_run(house, response["id"])
    assert await house.post(f"{response['id']}/cancel").body() == stopped


async def test_a_removed_response_is_gone_with_its_session(house: House) -> None:
    response = await house.answer()
    http = Http(house.workers[1], "DELETE", f"{ROUTE}/{response['id']}")
    assert await http.body() == {"id": response["id"], "object": "response", "deleted": True}
    again = Http(house.workers[0], "DELETE", f"{ROUTE}/{response['id']}")
    for http in (house.get(response["id"]), again):
        body = await http.body()
        assert http.status == 404 and body["error"]["code"] == "response_not_found"
    assert await house.hidden() == []


async def test_a_removed_response_that_is_followed_leaves_its_text(house: House) -> None:
    first = await house.answer(1)
    second = await house.answer(2, previous_response_id=first["id"])
    await Http(house.workers[0], "DELETE", f"{ROUTE}/{first['id']}").body()
    http = house.ask(3, previous_response_id=first["id"])
    assert (await http.body())["error"]["param"] == "previous_response_id"
    items = await house.get(f"{second['id']}/input_items").body()
    assert len(items["data"]) == 3


async def test_a_key_begins_one_response(house: House) -> None:
    asks = [house.ask(headers={"idempotency-key": "same-key"}) for _ in range(2)]
    bodies = [await ask.body() for ask in asks]
    assert bodies[0] == bodies[1] and house.engine.num_requests == 1
    other = house.ask(2, headers={"idempotency-key": "same-key"})
    await other.body()
    assert other.status == 409 and other.headers[b"x-should-retry"] == b"false"


@pytest.mark.parametrize("key", ["", "two words", "x" * 129])
async def test_a_key_has_the_form_of_other_keys(house: House, key: str) -> None:
    http = house.ask(headers={"idempotency-key": key})
    body = await http.body()
    assert http.status == 400 and body["error"]["param"] == "Idempotency-Key"


async def left(house: House, **fields: Any) -> str:
    """The response of a call whose client goes before it has any of it."""
    http = house.ask(headers={"x-stainless-retry-count": "0"}, **fields)
    request = await house.request()
    request.is_held.add("mid")
    async with asyncio.timeout(PATIENCE):
        await request.reached["mid"].wait()
        http.leave()
        await http.answered
    (session,) = await house.hidden()
    response_id = (await house.store.sessions.get(None, session)).active_response_id
    assert response_id is not None
    request.released.set()
    return response_id


async def repeated(house: House, number: str = "1", worker: int = 1, **fields: Any) -> Frame:
    body = {"model": "oracle", "input": oracle_word(1), "max_output_tokens": 50} | fields
    headers = {"x-stainless-retry-count": number}
    http = Http(house.workers[worker], "POST", ROUTE, body=body, headers=headers)
    response: Frame = await http.body()
    assert http.status == 200 and text_of(response)
    return response


@pytest.mark.parametrize("worker", [0, 1])
async def test_a_repeat_is_given_the_answer_that_its_first_try_has_begun(
    house: House, worker: int
) -> None:
    first = await left(house, max_output_tokens=50)
    assert (await repeated(house, worker=worker, temperature=0.5))["id"] != first
    assert (await repeated(house, number="0", worker=worker))["id"] != first
    response = await repeated(house, worker=worker)
    assert response["id"] == first and text_of(response) == oracle_answer(1, 50)
    assert (await repeated(house, number="2", worker=worker))["id"] != first  # it was given away


async def test_a_stream_whose_client_leaves_before_it_begins_is_given_to_its_repeat(
    house: House,
) -> None:
    http = house.ask(headers={"x-stainless-retry-count": "0"}, stream=True)
    http.leave()
    async with asyncio.timeout(PATIENCE):
        await http.answered
    assert http.frames == []
    (session,) = await house.hidden()
    headers = {"x-stainless-retry-count": "1"}
    repeat = house.ask(headers=headers, stream=True)
    async with asyncio.timeout(PATIENCE):
        await repeat.answered
    assert session_of(repeat.frames[0]["response"]["id"]) == session
    assert streamed(repeat.frames) == oracle_answer(1, 4)
    assert await house.hidden() == [session]


async def test_what_is_not_stored_leaves_nothing(house: House) -> None:
    response = await house.answer(store=False)
    assert text_of(response) == oracle_answer(1, 4)
    http = house.ask(store=False, stream=True)
    await asyncio.wait_for(http.answered, PATIENCE)
    assert streamed(http.frames) == oracle_answer(1, 4)
    assert [f["sequence_number"] for f in http.frames] == list(range(len(http.frames)))
    assert await house.hidden() == [] and await house.shown() == []


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_what_is_not_stored_ends_with_its_client(house: House, is_streamed: bool) -> None:
    http = house.ask(store=False, stream=is_streamed, max_output_tokens=50)
    request = await house.request()
    request.is_held.add("mid")
    async with asyncio.timeout(PATIENCE):
        await request.reached["mid"].wait()
        http.leave()
        await http.answered
        await request.aborted.wait()


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/completions"])
async def test_a_stream_of_which_nothing_is_stored_ends_with_the_rights_of_who_reads_it(
    house: House, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[Callable[[ApiError], None]] = []

    @contextlib.contextmanager
    def holding(user: User, end: Callable[[ApiError], None]) -> Iterator[None]:
        ends.append(end)
        yield

    worker = house.workers[0]
    monkeypatch.setattr(worker.services.identities, "holding", holding)
    asked: Frame = {"input": oracle_word(1), "store": False, "max_output_tokens": 50}
    if path == "/v1/completions":
        asked = {"prompt": oracle_word(1), "max_tokens": 50}
    http = Http(worker, "POST", path, body={"model": "oracle", "stream": True, **asked})
    request = await house.request()
    request.is_held.add("mid")
    async with asyncio.timeout(PATIENCE):
        await request.reached["mid"].wait()
        (end,) = ends
        end(ApiError("token_invalid", "revoked"))
        request.is_held.clear()
        request.released.set()
        await http.answered
    last = http.frames[-1]
    assert "token_invalid" in (last.get("code"), last.get("error", {}).get("code"))


async def test_tokens_are_counted_without_an_answer(house: House) -> None:
    body = {"model": "oracle", "input": oracle_word(1) + oracle_word(2)}
    counted = await house.post("input_tokens", body).body()
    assert counted == {"object": "response.input_tokens", "input_tokens": 2}
    assert house.engine.num_requests == 0


async def test_nothing_is_compacted(house: House) -> None:
    http = house.post("compact", {"model": "oracle", "input": "x"})
    assert (await http.body())["error"]["param"] == "compact" and http.status == 400


async def test_a_response_of_chat_v1_answers_as_it_always_did(house: House) -> None:
    created = await house.store.sessions.create("local", idempotency_key="k")
    path = f"/v1/sessions/{created.session.id}/responses"
    body = {"input": oracle_word(1), "settings": {"max_output_tokens": 4}}
    headers = {"idempotency-key": "k"}
    begun = await Http(house.workers[0], "POST", path, body=body, headers=headers).body()
    read = await house.get(begun["id"]).body()
    assert read["session_id"] == created.session.id and "object" not in read
    frames = await house.events(begun["id"])
    assert frames[-1]["type"] == "response.done"
    assert (await house.post(f"{begun['id']}/cancel").body())["type"] == "response.done"


async def test_a_foreign_response_is_answered_like_one_that_never_was(house: House) -> None:
    never = f"resp_{'x' * 33}"
    for http in (
        house.get(never),
        house.get(f"{never}/input_items"),
        house.post(f"{never}/cancel"),
    ):
        await http.body()
        assert http.status == 404


async def test_what_it_should_follow_must_be_there(house: House) -> None:
    for param, value in (
        ("conversation", f"conv_{'x' * 22}"),
        ("previous_response_id", f"resp_{'x' * 33}"),
    ):
        fields: Frame = {param: value}
        http = house.ask(1, None, **fields)
        body = await http.body()
        assert http.status == 404 and body["error"]["param"] == param
    assert house.engine.num_requests == 0 and await house.hidden() == []


@pytest.mark.parametrize("is_stored", [True, False])
async def test_an_input_that_says_nothing_is_refused(house: House, is_stored: bool) -> None:
    http = house.ask(input=[{"type": "reasoning", "summary": []}], store=is_stored)
    body = await http.body()
    assert http.status == 400 and body["error"]["param"] == "input[0]"
    assert house.engine.num_requests == 0 and await house.hidden() == []


@pytest.mark.parametrize("is_stored", [True, False])
async def test_nothing_follows_an_answer_that_is_being_written(
    house: House, is_stored: bool
) -> None:
    first = await house.answer(background=True, max_output_tokens=400)
    request = await house.request()
    request.is_held.add("mid")
    async with asyncio.timeout(PATIENCE):
        await request.reached["mid"].wait()
    http = house.ask(2, previous_response_id=first["id"], store=is_stored)
    body = await http.body()
    assert http.status == 409 and body["error"]["code"] == "response_in_progress"
    request.is_held.clear()
    request.released.set()
    await Http(house.workers[0], "DELETE", f"{ROUTE}/{first['id']}").body()


async def test_all_of_the_history_is_used_or_nothing(house: House) -> None:
    house.engine.model_config.max_model_len = 8
    first = await house.answer(1, input=" ".join(oracle_word(n) for n in range(1, 5)))
    http = house.ask(9, previous_response_id=first["id"], input=" ".join([oracle_word(1)] * 4))
    body = await http.body()
    assert http.status == 400 and body["error"]["code"] == "context_length_exceeded"
