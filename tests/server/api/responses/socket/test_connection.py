"""`/v1/responses` as a websocket, at whole workers: lanes, refusals, stops, and each close."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from server.access.rates import TokenBucket
from server.api.responses.socket import connection as module
from server.api.responses.socket import lanes
from server.api.websocket.wire import MAX_AGE_SECONDS
from server.protocol.errors import ApiError
from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_answer, oracle_word
from tests.server.api.responses.socket.client import Frame, SocketClient
from tests.server.helpers.in_process import running_workers
from tests.server.helpers.local_http import Http
from tests.server.helpers.scripted_engine import Dice, Request, ScriptedEngine

END = "response.incomplete"  # four tokens are never enough


class House:
    """A worker, its engine, and who asks there."""

    def __init__(self, worker: Worker, engine: ScriptedEngine) -> None:
        self.worker, self.engine = worker, engine

    def client(self, **options: Any) -> SocketClient:
        return SocketClient(self.worker, **options)

    async def request(self) -> Request:
        """The newest one at the engine, when it has come."""
        async with asyncio.timeout(PATIENCE):
            await self.engine.was_asked.wait()
        self.engine.was_asked.clear()
        return list(self.engine.requests.values())[-1]

    def hold(self, *phases: str) -> None:
        """Requests that come from now on wait in these phases until they are released."""

        def request() -> Request:
            made = Request()
            made.is_held.update(phases)
            return made

        self.engine.requests.default_factory = request

    async def read(self, response_id: str, query: str = "") -> Http:
        http = Http(self.worker, "GET", f"/v1/responses/{response_id}", query)
        async with asyncio.timeout(PATIENCE):
            await http.answered
        return http


@contextlib.asynccontextmanager
async def house_of(redis_server: EmbeddedRedis) -> AsyncIterator[House]:
    dice = Dice(11)
    engine = ScriptedEngine(dice)
    async with running_workers(redis_server.url, fresh_prefix(), engine, dice, 1) as workers:
        yield House(workers[0], engine)


@pytest.fixture
async def house(redis_server: EmbeddedRedis) -> AsyncIterator[House]:
    async with house_of(redis_server) as house:
        yield house


def text_of(events: list[Frame]) -> str:
    return "".join(each["delta"] for each in events if each["type"].endswith("_text.delta"))


async def test_an_answer_has_the_same_events_as_over_http(house: House) -> None:
    async with house.client() as client:
        assert client.subprotocol is None
        client.create(input=oracle_word(1))
        events = await client.until(END)
    assert text_of(events) == oracle_answer(1, 4)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert all("stream_id" not in event for event in events)
    again = await house.read(events[0]["response"]["id"], "stream=true")
    assert again.frames == events


async def test_a_lane_answers_one_after_the_other_and_lanes_side_by_side(house: House) -> None:
    async with house.client() as client:
        house.hold("first")
        client.create(input=oracle_word(1), stream_id="a")
        client.create(input=oracle_word(2), stream_id="a")
        first = await house.request()
        await client.until("response.in_progress", "a")
        house.hold()
        client.create(input=oracle_word(3), stream_id="b")
        assert text_of(await client.until(END, "b")) == oracle_answer(3, 4)
        assert house.engine.num_requests == 2
        first.released.set()
        assert text_of(await client.until(END, "a")) == oracle_answer(1, 4)
        assert text_of(await client.until(END, "a")) == oracle_answer(2, 4)


async def test_a_later_answer_follows_an_earlier_one_of_another_lane(house: House) -> None:
    async with house.client() as client:
        client.create(input=oracle_word(1), stream_id="a")
        first = (await client.until(END, "a"))[-1]["response"]
        client.create(input=oracle_word(2), stream_id="b", previous_response_id=first["id"])
        second = (await client.until(END, "b"))[-1]["response"]
        assert second["previous_response_id"] == first["id"]


async def test_an_answer_that_is_not_stored_is_sent_and_leaves_nothing(house: House) -> None:
    async with house.client() as client:
        client.create(input=oracle_word(1), store=False, stream_id="a")
        events = await client.until(END, "a")
        assert text_of(events) == oracle_answer(1, 4)
        gone = await house.read(events[0]["response"]["id"])
        assert gone.status == 404


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_stop_ends_the_answer_of_its_lane(house: House, is_stored: bool) -> None:
    async with house.client() as client:
        house.hold("mid")
        client.create(input=oracle_word(1), store=is_stored, stream_id="a", max_output_tokens=9)
        request = await house.request()
        response_id = (await client.event())["response"]["id"]
        client.send({"type": "response.cancel", "response_id": response_id})
        events = await client.until(END, "a")
        assert events[-1]["response"]["status"] == "cancelled"
        assert request.aborted.is_set()
        house.hold()
        client.create(input=oracle_word(2), stream_id="a")
        assert text_of(await client.until(END, "a")) == oracle_answer(2, 4)


async def test_a_stop_may_name_the_lane_and_comes_before_what_waits_there(house: House) -> None:
    async with house.client() as client:
        house.hold("first")
        client.create(input=oracle_word(1), stream_id="a")
        client.create(input=oracle_word(2), stream_id="a")
        client.send({"type": "response.cancel", "stream_id": "a"})
        assert (await client.until(END, "a"))[-1]["response"]["status"] == "cancelled"
        house.hold()
        for request in house.engine.requests.values():
            request.released.set()
        assert text_of(await client.until(END, "a")) == oracle_answer(2, 4)


async def test_the_answer_goes_on_when_its_client_leaves(house: House) -> None:
    async with house.client() as client:
        house.hold("mid")
        client.create(input=oracle_word(1))
        request = await house.request()
        response_id = (await client.event())["response"]["id"]
    request.released.set()
    again = await house.read(response_id, "stream=true")
    assert text_of(again.frames) == oracle_answer(1, 4)


async def test_an_answer_that_is_not_stored_ends_when_its_client_leaves(house: House) -> None:
    async with house.client() as client:
        house.hold("mid")
        client.create(input=oracle_word(1), store=False)
        request = await house.request()
        await client.event()
    assert request.aborted.is_set()


REFUSED: list[tuple[Any, str, str | None]] = [
    ("{", "invalid_json", None),
    ({"type": "session.create"}, "unknown_type", "type"),
    ({"type": "response.create", "input": "x", "stream_id": "a", "n": 2}, "invalid_field", "n"),
    ({"type": "response.create", "input": "x", "stream_id": ""}, "invalid_field", "stream_id"),
    ({"type": "response.create", "stream_id": "a"}, "invalid_field", "input"),
    (
        {"type": "response.create", "input": "x", "generate": False},
        "invalid_field",
        "generate",
    ),
    ({"type": "response.create", "input": "x", "stream": False}, "invalid_field", "stream"),
    (
        {"type": "response.create", "input": "x", "model": "other", "stream_id": "a"},
        "model_not_found",
        "model",
    ),
    ({"type": "response.cancel", "stream_id": "a"}, "response_not_found", "response_id"),
    ({"type": "response.cancel", "id": "a"}, "invalid_field", "id"),
    ({"type": "response.steer", "input": "x"}, "invalid_field", "previous_response_id"),
]


async def test_a_refusal_is_an_event_and_the_connection_stays(house: House) -> None:
    async with house.client() as client:
        for frame, code, param in REFUSED:
            client.send(frame)
            event = await client.event()
            assert event["type"] == "error"
            assert (event["error"]["code"], event["error"]["param"]) == (code, param)
            lane = frame.get("stream_id") if isinstance(frame, dict) else None
            assert event.get("stream_id") == lane
        client.create(input=oracle_word(1))
        assert text_of(await client.until(END)) == oracle_answer(1, 4)


async def test_who_may_not_come_in_is_refused_before_the_upgrade(house: House) -> None:
    async with house.client(token="wrong") as client:
        assert client.denied == 401
    async with house.client(token=None) as client:
        assert client.denied == 401
    cookie = {"cookie": "parley-80=x", "origin": "http://elsewhere.example"}
    async with house.client(token=None, headers=cookie) as client:
        assert client.denied == 403


async def test_a_connection_of_a_user_without_rights_is_closed(house: House) -> None:
    async with house.client() as client:
        (connection,) = house.worker.connections
        assert isinstance(connection, module.SocketConnection)
        connection.refuse(ApiError("token_invalid", "revoked"))
        assert await client.closed() == (4401, "token_invalid")
    assert not house.worker.connections


async def test_nothing_is_sent_after_the_rights_of_a_user_have_ended(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house.client() as client:
        house.hold("mid")
        client.create(input=oracle_word(1), max_output_tokens=9)
        request = await house.request()
        response_id = (await client.event())["response"]["id"]
        await asyncio.wait_for(request.reached["mid"].wait(), PATIENCE)
        run = house.worker.services.runs.local(response_id)
        assert run is not None
        await asyncio.wait_for(run.until_stored(run.sequence_number), PATIENCE)
        await client.until("response.output_text.delta")
        for _ in range(20):  # its sender waits for more by then
            await asyncio.sleep(0)
        straight: list[Any] = []
        monkeypatch.setattr(client.wire, "write_frames", straight.append)
        (connection,) = house.worker.connections
        assert isinstance(connection, module.SocketConnection)
        connection.refuse(ApiError("token_invalid", "revoked"))
        run.add_text("more", [])
        run.num_stored += 1  # as if the store had it in this very moment
        run.tell_stored()
        run.num_stored -= 1
        assert await client.closed() == (4401, "token_invalid")
        assert straight == []
        request.released.set()


async def test_a_worker_that_restarts_says_so_by_a_code_that_clients_come_back_on(
    house: House,
) -> None:
    async with house.client() as client:
        (connection,) = house.worker.connections
        connection.close_soon()
        assert await client.closed() == (1012, "restart")


async def test_a_connection_lives_an_hour(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_AGE_SECONDS == 3600
    monkeypatch.setattr(module, "MAX_AGE_SECONDS", 0.0)
    async with house.client() as client:
        assert (await client.closed())[0] == 1012


async def test_frames_that_are_no_json_close_it(house: House) -> None:
    async with house.client() as client:
        for _ in range(3):
            client.send("{")
        assert await client.closed() == (4400, "invalid_json")


async def test_too_many_frames_are_refused_and_then_close_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TokenBucket, "take", lambda self: False)
    monkeypatch.setattr(TokenBucket, "retry_after_ms", 50)
    monkeypatch.setattr(module, "MAX_STRIKES", 3)
    async with house.client() as client:
        client.create(input="x")
        event = await client.event()
        assert (event["status"], event["error"]["code"]) == (429, "rate_limited")
        assert event["error"]["headers"] == {"retry-after-ms": "50"}
        client.create(input="x")
        client.create(input="x")
        assert (await client.closed())[0] == 4429


async def test_no_more_requests_wait_than_there_is_room_for(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "MAX_WAITING", 1)
    async with house.client() as client:
        house.hold("first")
        client.create(input=oracle_word(1))
        request = await house.request()
        client.create(input=oracle_word(2))
        client.create(input=oracle_word(3), stream_id="b")
        (refusal,) = await client.until("error", "b")
        assert refusal["error"]["code"] == "rate_limited"
        house.hold()
        request.released.set()
        assert text_of(await client.until(END)) == oracle_answer(1, 4)
        assert text_of(await client.until(END)) == oracle_answer(2, 4)
