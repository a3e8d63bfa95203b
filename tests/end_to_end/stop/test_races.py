"""Stops, the wish, and tabs, keys and ends that race each other: real sockets, two workers.

The moments are those that a clock hits. tests/server/commands/test_stop_races.py chooses them by
dice, at every await point, but without sockets.
"""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.end_to_end.clients.http_client import Http, admin_token
from tests.end_to_end.frames.client_model import Answer, Frame
from tests.end_to_end.frames.raw import TEXT, RawSocket, frame
from tests.end_to_end.site.harness import Client, Server, clients
from tests.end_to_end.site.wiring import at_both
from tests.helpers.tiny_model import oracle_answer, oracle_word

ENDLESS = {"temperature": 0, "max_output_tokens": 3000}


@pytest.fixture(scope="module")
def pair(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two workers; no test here breaks anything."""
    data = tmp_path_factory.mktemp("races") / "data"
    server = Server(data, oracle_model, None, PARLEY_WORKERS="2", PARLEY_PACE="100")
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def dice() -> random.Random:
    seed = int.from_bytes(os.urandom(4), "big")
    print("seed of this test:", seed)
    return random.Random(seed)


@pytest.fixture
async def http(pair: Server) -> AsyncIterator[Http]:
    async with Http(pair) as http:
        yield http


def end_of(answer: Answer) -> str:
    assert answer.done is not None
    return str(answer.done["response"]["status"])


def short(num_tokens: int) -> Frame:
    return {"temperature": 0, "max_output_tokens": num_tokens}


async def holds(client: Client, response: str, text: str) -> None:
    """Wait until the client holds so much."""
    await client.wait(lambda: len(client.answers[response].text) >= len(text), "that much text")


# ---- the stop -----------------------------------------------------------------------------------


async def race_the_end(server: Server, dice: random.Random, count: int) -> dict[str, int]:
    """Stops that come with the last tokens; both tabs must agree on what became of it."""
    ends: dict[str, int] = {}
    num_tokens = 12

    async def race(asker: Client, viewer: Client) -> None:
        for _ in range(count):
            session = await asker.new_session()
            await viewer.reply("session.subscribe", session_id=session)
            word = dice.randrange(9_000)
            response = await asker.ask(session, oracle_word(word), settings=short(num_tokens))
            whole = oracle_answer(word, num_tokens)
            await holds(asker, response, whole[:-7])  # all but the last token
            await asyncio.sleep(dice.uniform(0, 0.005))
            await dice.choice((asker, viewer)).send("stop", response_id=response)
            first, second = await asker.done(response), await viewer.done(response)
            assert first.final == second.final and whole.startswith(first.final)
            ends[end_of(first)] = ends.get(end_of(first), 0) + 1
            for tab in (asker, viewer):  # which may watch 64 at a time
                await tab.reply("session.unsubscribe", session_id=session)

    async with AsyncExitStack() as stack:
        pairs = [await stack.enter_async_context(at_both(server)) for _ in range(5)]
        await asyncio.gather(*(race(*tabs) for tabs in pairs))
    return ends


@pytest.mark.row("C1")
async def test_a_stop_that_races_the_end_ends_the_same_for_everybody(
    pair: Server, dice: random.Random
) -> None:
    print(await race_the_end(pair, dice, 6))


@pytest.mark.row("C1")
@pytest.mark.slow
async def test_five_hundred_stops_that_race_the_end_end_the_same_for_everybody(
    pair: Server, dice: random.Random
) -> None:
    print(await race_the_end(pair, dice, 100))


@pytest.mark.row("C4")
async def test_three_stops_in_two_tabs_give_one_end_and_leave_the_next_answer_alone(
    pair: Server,
) -> None:
    async with at_both(pair) as (asker, other):
        session = await asker.new_session()
        await other.reply("session.subscribe", session_id=session)
        response = await asker.ask(session, oracle_word(0), settings=ENDLESS)
        await other.deltas(response, 3)
        for client in (asker, other, asker):
            await client.send("stop", response_id=response)
        first, second = await asker.done(response), await other.done(response)
        assert first.final == second.final and end_of(first) == end_of(second) == "cancelled"
        following = await asker.ask(session, oracle_word(9), settings=short(20))
        await asker.send("stop", response_id=response)
        await other.send("stop", response_id=response)
        assert (await asker.done(following)).final == oracle_answer(9, 20)
        assert (await other.done(following)).final == oracle_answer(9, 20)


@pytest.mark.row("C4")
async def test_three_stops_at_another_worker_bring_one_end(pair: Server) -> None:
    async with at_both(pair) as (owner, other):
        session = await owner.new_session()
        await other.reply("session.subscribe", session_id=session)
        response = await owner.ask(session, oracle_word(0), settings=ENDLESS)
        await other.deltas(response, 3)
        # In one packet: a stop that is read after the end is answered with it once more.
        stop = {"type": "stop", "response_id": response}
        for _ in range(3):
            other.record.sent(stop)
        other.socket.transport.write(3 * frame(TEXT, json.dumps(stop).encode()))
        assert end_of(await other.done(response)) == "cancelled"
        await other.reply("session.unsubscribe", session_id=session)
        assert [f["type"] for f in other.frames].count("response.done") == 1


async def test_a_position_counts_for_nothing_when_several_answers_are_meant(pair: Server) -> None:
    async with at_both(pair) as (owner, other):
        responses = []
        for number in (0, 50):
            session = await owner.new_session()
            await other.reply("session.subscribe", session_id=session)
            responses.append(await owner.ask(session, oracle_word(number), settings=ENDLESS))
        seen = {rid: (await other.deltas(rid, 10)).text for rid in responses}
        await other.send("stop", seen_sequence_number=4)
        for response, text in seen.items():
            assert (await other.done(response)).final.startswith(text)


@pytest.mark.parametrize("place", [0, 1], ids=["owner", "other"])
async def test_who_stops_and_then_subscribes_is_shown_the_end_alone(
    pair: Server, place: int
) -> None:
    async with at_both(pair) as (owner, other):
        session = await owner.new_session()
        response = await owner.ask(session, oracle_word(0), settings=ENDLESS)
        await owner.deltas(response, 3)
        asker = (owner, other)[place]
        if asker is owner:
            await owner.reply("session.unsubscribe", session_id=session)
        await asker.send("stop", response_id=response)
        await asker.reply("session.subscribe", session_id=session)
        assert end_of(await asker.done(response)) == "cancelled"
        await asker.reply("session.unsubscribe", session_id=session)
        kinds = [frame["type"] for frame in asker.frames]
        assert kinds.count("response.done") == 1
        later = kinds[kinds.index("response.cancelling") :]
        assert not {kind for kind in later if kind.startswith("response.output_text")}


@pytest.mark.row("C6")
async def test_nobody_stops_the_answer_of_another_user(pair: Server) -> None:
    async with Client(pair) as owner, Client(pair, token=admin_token(pair)) as stranger:
        session = await owner.new_session()
        response = await owner.ask(session, oracle_word(3), settings=short(60))
        await owner.deltas(response, 2)
        unknown = response[:-5] + "AAAAA"
        refusals = []
        for target in (response, unknown):
            for kind in ("stop", "response.cancel"):
                error = (await stranger.reply(kind, response_id=target))["error"]
                refusals.append({k: v for k, v in error.items() if k != "event_id"})
        assert all(refusal == refusals[0] for refusal in refusals)
        assert refusals[0]["code"] == "response_not_found"
        error = (await stranger.reply("stop", session_id=session))["error"]
        assert error["code"] == "session_not_found"
        assert (await owner.done(response)).final == oracle_answer(3, 60)


@pytest.mark.row("C7")
async def test_an_ended_response_answers_with_its_end_and_an_unknown_one_is_not_found(
    pair: Server, http: Http
) -> None:
    async with at_both(pair) as (asker, other):
        session = await asker.new_session()
        response = await asker.ask(session, oracle_word(4), settings=short(5))
        end = (await asker.done(response)).done
        assert end is not None
        await other.send("stop", response_id=response)
        again = (await other.done(response)).done
        assert again is not None
        assert (again["response"], again["durable"]) == (end["response"], True)
        reply = await http.post(f"/v1/responses/{response}/cancel")
        assert reply.status_code == 200
        assert reply.json()["response"] == end["response"]
        unknown = response[:-5] + "AAAAA"
        error = (await other.reply("stop", response_id=unknown))["error"]
        assert error["code"] == "response_not_found"
        assert (await http.post(f"/v1/responses/{unknown}/cancel")).status_code == 404


# ---- tabs and keys ------------------------------------------------------------------------------


@pytest.mark.row("C8")
@pytest.mark.parametrize("on_busy", ["reject", "queue"])
async def test_of_two_questions_in_the_same_moment_one_comes_first_in_both_tabs(
    pair: Server, dice: random.Random, on_busy: str
) -> None:
    async with at_both(pair) as (first, second):
        for _ in range(10):
            tabs = [first, second]
            dice.shuffle(tabs)
            session = await tabs[0].new_session()
            await tabs[1].reply("session.subscribe", session_id=session)
            replies = await asyncio.gather(
                *(
                    tab.reply(
                        "response.create",
                        session_id=session,
                        idempotency_key=f"key-{number}",
                        input=oracle_word(number + 1),
                        settings=short(2000),  # neither ends before the other is asked
                        on_busy=on_busy,
                    )
                    for number, tab in enumerate(tabs)
                )
            )
            refused = [r["error"]["code"] for r in replies if r["type"] == "error"]
            begun = [r["response"]["id"] for r in replies if r["type"] == "response.created"]
            assert refused == (["response_in_progress"] if on_busy == "reject" else [])
            for response in begun:
                await tabs[0].send("stop", response_id=response)
                one, other = await first.done(response), await second.done(response)
                assert one.final == other.final
            assert questions(first, session) == questions(second, session)
            assert len(questions(first, session)) == len(begun)


def questions(client: Client, session: str) -> list[str]:
    """The user messages of a session, in the order in which this client heard of them."""
    return [
        f["message"]["content"][0]["text"]
        for f in client.frames
        if f["type"] == "message.created"
        and f["session_id"] == session
        and f["message"]["role"] == "user"
    ]


@pytest.mark.row("C9")
async def test_ten_equal_creates_at_two_workers_begin_one_response(pair: Server) -> None:
    async with at_both(pair) as (first, second):
        for number in range(5):
            session = await first.new_session()
            await second.reply("session.subscribe", session_id=session)
            create: Frame = {"session_id": session, "idempotency_key": "once"}
            create |= {"input": oracle_word(7), "settings": short(10)}
            replies = await asyncio.gather(
                *(tab.reply("response.create", **create) for tab in (first, second) * 5)
            )
            assert {reply["type"] for reply in replies} == {"response.created"}, number
            (response,) = {reply["response"]["id"] for reply in replies}
            assert sum(not reply["replayed"] for reply in replies) == 1
            assert (await first.done(response)).final == oracle_answer(7, 10)
            assert (await second.done(response)).final == oracle_answer(7, 10)


@pytest.mark.row("C10")
async def test_a_key_that_was_used_for_another_question_is_refused(pair: Server) -> None:
    async with at_both(pair) as (first, second):
        session = await first.new_session()
        await second.reply("session.subscribe", session_id=session)
        response = await first.ask(session, oracle_word(7), idempotency_key="k", settings=short(5))
        for tab in (first, second):
            error = await tab.reply(
                "response.create", session_id=session, idempotency_key="k", input="another"
            )
            assert error["error"]["code"] == "idempotency_key_reused"
        await first.done(response)
        await first.next("message.updated")
    messages = pair.get_json(f"/v1/sessions/{session}/messages")["messages"]
    assert [m["content"][0]["text"] for m in messages] == [oracle_word(7), oracle_answer(7, 5)]


# ---- sessions and connections that go away ------------------------------------------------------


@pytest.mark.row("C11")
@pytest.mark.parametrize("door", ["socket", "other worker", "rest"])
async def test_a_session_deleted_while_streaming_ends_its_answer_and_leaves_nothing(
    pair: Server, http: Http, door: str
) -> None:
    async with at_both(pair) as (owner, other):
        session = await owner.new_session()
        await other.reply("session.subscribe", session_id=session)
        response = await owner.ask(session, oracle_word(0), settings=ENDLESS)
        await other.deltas(response, 3)
        if door == "rest":
            assert (await http.ask("DELETE", f"/v1/sessions/{session}")).status_code == 204
        else:
            client = owner if door == "socket" else other
            await client.send("session.delete", session_id=session)
        for client in (owner, other):
            answer = await client.done(response)
            assert answer.done is not None
            details = answer.done["response"]["status_details"]
            assert (end_of(answer), details["reason"]) == ("cancelled", "session_deleted")
            await client.next("session.deleted")


@pytest.mark.row("C14")
async def test_an_asker_that_leaves_with_the_last_token_loses_nothing(
    pair: Server, dice: random.Random
) -> None:
    async def leave_at_the_end(word: int) -> str:
        async with Client(pair) as client:
            session = await client.new_session()
            response = await client.ask(session, oracle_word(word), settings=short(10))
            await holds(client, response, oracle_answer(word, 9))
            await asyncio.sleep(dice.uniform(0, 0.01))
            client.cut()
            await client.closed()
        return session

    words = [dice.randrange(9_000) for _ in range(20)]
    sessions = await asyncio.gather(*map(leave_at_the_end, words))
    async with Client(pair) as back:
        for session, word in zip(sessions, words, strict=True):
            subscribed = await back.reply("session.subscribe", session_id=session)
            for response in subscribed["active_responses"]:
                await back.done(response)
            messages = await asyncio.to_thread(pair.get_json, f"/v1/sessions/{session}/messages")
            stored = messages["messages"][1]
            assert stored["content"][0]["text"] == oracle_answer(word, 10)
            assert stored["status_details"] == {"reason": "max_output_tokens"}


@pytest.mark.row("C17")
async def test_garbage_after_a_good_handshake_closes_its_own_socket_alone(
    pair: Server, dice: random.Random
) -> None:
    async with clients(pair, 4) as streams:
        responses = []
        for number, client in enumerate(streams):
            session = await client.new_session()
            settings = short(150)
            responses.append(await client.ask(session, oracle_word(number), settings=settings))
        for _ in range(20):
            async with RawSocket(pair) as socket:
                assert (await socket.upgrade()).status == 101
                garbage = frame(dice.choice((0x3, 0xB)), dice.randbytes(20))
                await socket.send(garbage + dice.randbytes(200))
                assert (await socket.closed())[0] in (1002, 1007)
        for number, (client, response) in enumerate(zip(streams, responses, strict=True)):
            assert (await client.done(response)).final == oracle_answer(number, 150)
