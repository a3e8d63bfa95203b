"""Responses over HTTP: begun, followed as events, resumed, stopped; a viewer like any other."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.end_to_end.clients.http_client import (
    EventClient,
    Http,
    admin_token,
    ask_and_follow,
    code_of,
    follow,
    fresh_key,
)
from tests.end_to_end.frames.client_model import Answer
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.tiny_model import oracle_answer, oracle_word

GREEDY = {"temperature": 0, "max_output_tokens": 60}
LONG = {"temperature": 0, "max_output_tokens": 2000}


@pytest.fixture
async def http(server: Server) -> AsyncIterator[Http]:
    async with Http(server) as http:
        yield http


def one(stream: EventClient) -> str:
    """The id of the response that a stream follows."""
    (response_id,) = stream.answers
    return response_id


async def test_a_followed_response_has_the_frames_of_the_websocket(
    server: Server, http: Http
) -> None:
    session = (await http.new_session())["id"]
    async with ask_and_follow(server, session, oracle_word(7), settings=GREEDY) as stream:
        await stream.next("response.done")
        answer = await stream.done(one(stream))
    assert answer.final == oracle_answer(7, 60)
    kinds = [event.kind for event in stream.events]
    assert kinds[0] == "response.created" and kinds[-1] == "response.done"
    assert set(kinds[1:-1]) <= {
        "response.queued",
        "response.in_progress",
        "response.progress",
        "response.output_text.delta",
    }
    numbered = [event for event in stream.events if event.id is not None]
    assert [event.id for event in numbered][-1] == f"1.{answer.last}"
    headers = stream.answer.headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache, no-transform"
    assert headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in headers and "content-length" not in headers


async def test_a_stream_is_resumed_by_its_last_event_id(server: Server, http: Http) -> None:
    session = (await http.new_session())["id"]
    async with ask_and_follow(server, session, oracle_word(3), settings=GREEDY) as first:
        await first.next("response.output_text.delta")
        response_id = one(first)
        await first.deltas(response_id, 2)
        await first.leave()
    last = first.answers[response_id].last
    assert first.last_event_id == f"1.{last}"
    async with follow(server, response_id, last_event_id=first.last_event_id) as second:
        second.answers[response_id] = first.answers[response_id]  # goes on where it stopped
        answer = await second.done(response_id)
    first_numbers = second.events[0].frame
    assert first_numbers.get("first_sequence_number", first_numbers["sequence_number"]) == last + 1
    assert answer.final == oracle_answer(3, 60)


async def test_starting_after_counts_in_the_current_fence(server: Server, http: Http) -> None:
    session = (await http.new_session())["id"]
    response_id = (await http.begin(session, oracle_word(4), settings=GREEDY))["id"]
    async with follow(server, response_id, starting_after=1) as stream:
        stream.answers[response_id] = Answer(last=1, fence=1)
        await stream.next("response.done")
    numbers = [e.frame["sequence_number"] for e in stream.events if e.id is not None]
    assert numbers == sorted(set(numbers)) and numbers[0] > 1
    assert stream.events[-1].frame["response"]["text_length"] == len(oracle_answer(4, 60))


async def test_another_fence_means_a_snapshot(server: Server, http: Http) -> None:
    session = (await http.new_session())["id"]
    response_id = (await http.begin(session, oracle_word(5), settings=GREEDY))["id"]
    places: list[dict[str, Any]] = [{"last_event_id": "7.3"}, {"starting_after": 99999}, {}]
    for place in places:
        async with follow(server, response_id, **place) as stream:
            answer = await stream.done(response_id)
        assert stream.events[0].kind == "response.output_text.snapshot"
        assert stream.events[0].id is not None
        assert answer.final == oracle_answer(5, 60)


async def test_an_ended_response_is_replayed_with_its_end(server: Server, http: Http) -> None:
    session = (await http.new_session())["id"]
    async with ask_and_follow(server, session, oracle_word(6), settings=GREEDY) as stream:
        done = await stream.next("response.done")
    async with follow(server, one(stream)) as again:
        answer = await again.done(one(stream))
    assert answer.done is not None and answer.done["response"] == done["response"]
    assert answer.final == oracle_answer(6, 60)
    assert [event.kind for event in again.events] == [
        "response.output_text.snapshot",
        "response.done",
    ]


async def test_who_has_the_end_hears_that_there_is_no_more(server: Server, http: Http) -> None:
    session = (await http.new_session())["id"]
    async with ask_and_follow(server, session, oracle_word(6), settings=GREEDY) as stream:
        end = (await stream.next("response.done"))["sequence_number"]
    path = f"/v1/responses/{one(stream)}?stream=true"
    for headers, query in (({"Last-Event-ID": f"1.{end}"}, ""), ({}, f"&starting_after={end}")):
        answer = await http.get(path + query, headers=headers)
        assert (answer.status_code, answer.content) == (204, b"")


async def test_websocket_and_stream_show_the_same_response(server: Server, http: Http) -> None:
    session = (await http.new_session())["id"]
    async with Client(server) as viewer:
        await viewer.reply("session.subscribe", session_id=session)
        async with ask_and_follow(server, session, oracle_word(8), settings=GREEDY) as stream:
            await stream.next("response.done")
        seen = await viewer.done(one(stream))
        assert seen.final == stream.answers[one(stream)].final == oracle_answer(8, 60)
        kinds = [f["type"] for f in viewer.frames if f["type"].startswith("message.")]
        assert kinds[:2] == ["message.created", "message.created"]


async def test_a_reader_that_leaves_ends_nothing(server: Server, http: Http) -> None:
    session = (await http.new_session())["id"]
    async with ask_and_follow(server, session, oracle_word(9), settings=GREEDY) as stream:
        await stream.next("response.output_text.delta")
        await stream.leave()
    async with follow(server, one(stream)) as again:
        answer = await again.done(one(stream))
    assert answer.done is not None
    assert answer.done["response"]["status"] == "incomplete"  # all 60 tokens
    assert answer.final == oracle_answer(9, 60)


async def test_without_a_stream_a_response_is_202_and_can_be_read(
    server: Server, http: Http
) -> None:
    session = (await http.new_session())["id"]
    begun = await http.begin(session, oracle_word(10), settings=LONG)
    assert begun["session_id"] == session and begun["status"] in ("queued", "in_progress")
    now = await http.get(f"/v1/responses/{begun['id']}")
    assert now.status_code == 200
    assert {key: now.json()[key] for key in begun if key != "status"} == {
        key: begun[key] for key in begun if key != "status"
    }
    done = (await http.post(f"/v1/responses/{begun['id']}/cancel")).json()
    assert (await http.get(f"/v1/responses/{begun['id']}")).json() == done["response"]


async def test_the_same_key_finds_the_same_response(server: Server, http: Http) -> None:
    session = (await http.new_session())["id"]
    path, key = f"/v1/sessions/{session}/responses", fresh_key()
    body = {"input": oracle_word(11), "settings": GREEDY}
    ids = {(await http.post(path, body, headers=key)).json()["id"] for _ in range(3)}
    assert len(ids) == 1
    async with ask_and_follow(
        server, session, oracle_word(11), settings=GREEDY, key=key["Idempotency-Key"]
    ) as stream:
        stream.answers[ids.pop()] = Answer(last=1, fence=1)
        created = await stream.next("response.created")
        answer = await stream.done(one(stream))
    assert created["replayed"] is True and answer.final == oracle_answer(11, 60)
    other = await http.post(path, {**body, "input": "other"}, headers=key)
    assert code_of(other) == (409, "idempotency_key_reused")
    assert code_of(await http.post(path, body)) == (400, "idempotency_key_required")


async def test_busy_sessions_refuse_queue_or_give_way(server: Server, http: Http) -> None:
    session = (await http.new_session())["id"]
    path = f"/v1/sessions/{session}/responses"
    active = await http.begin(session, oracle_word(12), settings=LONG)
    refused = await http.post(path, {"input": "hello"}, headers=fresh_key())
    assert code_of(refused) == (409, "response_in_progress")
    queued = await http.begin(session, oracle_word(13), settings=GREEDY, on_busy="queue")
    async with follow(server, queued["id"]) as stream:
        await http.post(f"/v1/responses/{active['id']}/cancel")
        answer = await stream.done(queued["id"])
    assert answer.final == oracle_answer(13, 60)


async def test_a_cancel_answers_with_the_stored_end(server: Server, http: Http) -> None:
    session = (await http.new_session())["id"]
    async with ask_and_follow(server, session, oracle_word(14), settings=LONG) as stream:
        await stream.deltas((await stream.next("response.created"))["response"]["id"], 2)
        seen = stream.answers[one(stream)].last
        path = f"/v1/responses/{one(stream)}/cancel"
        done = await http.post(path, {"seen_sequence_number": seen})
        answer = await stream.done(one(stream))
    assert done.status_code == 200
    assert done.json()["type"] == "response.done" and done.json()["durable"] is True
    assert done.json()["response"]["status"] == "cancelled"
    assert answer.done is not None and answer.done["response"] == done.json()["response"]
    again = await http.post(path)
    assert (again.status_code, again.json()) == (200, done.json())
    stored = (await http.get(f"/v1/sessions/{session}/messages")).json()["messages"][-1]
    assert stored["content"][0]["text"] == answer.final


async def test_what_cannot_be_read_is_not_found(server: Server, http: Http) -> None:
    session = (await http.new_session())["id"]
    begun = await http.begin(session, oracle_word(15), settings=LONG)
    unknown = "resp_" + "A" * 33
    async with Http(server, admin_token(server)) as other:
        for method, tail in (("GET", ""), ("GET", "?stream=true"), ("POST", "/cancel")):
            answers = [
                await who.ask(method, f"/v1/responses/{response_id}{tail}", json={})
                for who, response_id in ((other, begun["id"]), (other, unknown), (http, "resp_x"))
            ]
            assert {code_of(answer) for answer in answers} == {(404, "response_not_found")}
            assert len({answer.content for answer in answers}) == 1
    await http.post(f"/v1/responses/{begun['id']}/cancel")


async def test_a_broken_event_id_is_refused(server: Server, http: Http) -> None:
    session = (await http.new_session())["id"]
    begun = await http.begin(session, oracle_word(16), settings=GREEDY)
    path = f"/v1/responses/{begun['id']}?stream=true"
    for value in ("", "x", "1", "1.", ".1", "1.x", "-1.2", "1.2.3", "9" * 30):
        answer = await http.get(path, headers={"Last-Event-ID": value})
        assert code_of(answer) == (400, "invalid_field"), value
        assert answer.json()["error"]["param"] == "Last-Event-ID"


async def test_a_deleted_session_ends_the_stream(server: Server, http: Http) -> None:
    session = (await http.new_session())["id"]
    async with ask_and_follow(server, session, oracle_word(17), settings=LONG) as stream:
        await stream.next("response.output_text.delta")
        assert (await http.ask("DELETE", f"/v1/sessions/{session}")).status_code == 204
        done = await stream.next("response.done", "error")
    assert done["response"]["status_details"]["reason"] == "session_deleted"
