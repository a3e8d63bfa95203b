"""What waits to be asked: kept, shown to every viewer, changed, asked in its turn or at once."""

import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.end_to_end.site.harness import Client, Frame, Server
from tests.helpers.tiny_model import oracle_answer, oracle_word

LONG = {"temperature": 0, "max_output_tokens": 2000}
SHORT = {"temperature": 0, "max_output_tokens": 6}


async def busy(client: Client) -> tuple[str, str]:
    """A session with an answer that is being written: both ids."""
    session = await client.new_session()
    response = await client.ask(session, oracle_word(1), settings=LONG)
    await client.deltas(response, 1)
    return session, response


async def add(client: Client, session: str, word: int, **fields: Any) -> str:
    """Have a word asked later: the id of what waits."""
    fields = {"input": oracle_word(word), "settings": SHORT, **fields}
    key = fields.pop("idempotency_key", None) or secrets.token_hex(8)
    accepted = await client.reply("queue.add", session_id=session, idempotency_key=key, **fields)
    assert (accepted["type"], accepted["status"]) == ("queue.accepted", "waiting"), accepted
    return str(accepted["item_id"])


async def queue_of(client: Client, *words: int, paused: bool = False) -> Frame:
    """The newest queue, as soon as just these words wait in it, in this order."""
    wanted = [*map(oracle_word, words)]

    def find() -> Frame | None:
        queues = [frame["queue"] for frame in client.frames if frame["type"] == "queue.updated"]
        if not queues:
            return None
        newest = max(queues, key=lambda queue: queue["revision"])
        is_it = [item["input"] for item in newest["items"]] == wanted
        return newest if is_it and newest["paused"] == paused else None

    found: Frame = await client.wait(find, f"a queue of {words}")
    return found


async def answer_of(client: Client, key: str) -> str:
    """The whole text that an idempotency key was answered with."""

    def find() -> Frame | None:
        for frame in client.frames:
            if frame["type"] == "response.created" and frame["idempotency_key"] == key:
                return frame
        return None

    created: Frame = await client.wait(find, f"response.created of {key}")
    return (await client.done(created["response"]["id"])).final


@contextlib.asynccontextmanager
async def second_tab(server: Server, session: str) -> AsyncIterator[Client]:
    async with Client(server) as tab:
        await tab.reply("session.subscribe", session_id=session)
        yield tab


def questions(server: Server, session: str) -> list[str]:
    stored = server.get_json(f"/v1/sessions/{session}/messages")["messages"]
    return [m["content"][0]["text"] for m in stored if m["role"] == "user"]


async def test_what_waits_is_asked_in_order_after_the_answer(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        await client.ask(session, oracle_word(1), settings=SHORT | {"max_output_tokens": 200})
        for word in (10, 20, 30):
            await add(client, session, word, idempotency_key=f"k{word}")
        for word in (10, 20, 30):
            assert await answer_of(client, f"k{word}") == oracle_answer(word, 6)
        await queue_of(client)
    assert questions(server, session) == [oracle_word(n) for n in (1, 10, 20, 30)]


async def test_where_nothing_runs_it_is_asked_at_once(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        await add(client, session, 10, idempotency_key="k10")
        assert await answer_of(client, "k10") == oracle_answer(10, 6)


async def test_every_tab_sees_what_is_added_edited_moved_and_withdrawn(server: Server) -> None:
    async with Client(server) as client:
        session, response = await busy(client)
        async with second_tab(server, session) as other:
            first, second, third = [await add(client, session, word) for word in (10, 20, 30)]
            await queue_of(other, 10, 20, 30)
            await other.reply(
                "queue.update", session_id=session, item_id=second, input=oracle_word(25)
            )
            await queue_of(client, 10, 25, 30)
            await client.reply("queue.update", session_id=session, item_id=third, place=0)
            await queue_of(other, 30, 10, 25)
            await other.reply("queue.remove", session_id=session, item_id=first)
            await queue_of(client, 30, 25)
            await add(client, session, 5, place=1)
            await queue_of(other, 30, 5, 25)
        await client.reply("queue.send", session_id=session, item_id=second)
        ended = (await client.done(response)).done
        assert ended is not None
        assert ended["response"]["status_details"] == {"reason": "steered", "by": "user"}
        await queue_of(client)

        def all_have_ended() -> bool | None:
            return sum(f["type"] == "response.done" for f in client.frames) == 4 or None

        await client.wait(all_have_ended, "four ends")
    assert questions(server, session) == [oracle_word(n) for n in (1, 25, 30, 5)]


async def test_after_a_stop_nothing_begins_until_its_user_says_so(server: Server) -> None:
    async with Client(server) as client:
        session, response = await busy(client)
        async with second_tab(server, session) as other:
            await add(client, session, 10, idempotency_key="k10")
            await other.send("stop", response_id=response)
            await queue_of(client, 10, paused=True)
            asked = await client.ask(session, oracle_word(40), settings=SHORT)
            assert (await client.done(asked)).final == oracle_answer(40, 6)
            await queue_of(client, 10, paused=True)
            await other.reply("queue.send", session_id=session)
            assert await answer_of(other, "k10") == oracle_answer(10, 6)
            await queue_of(other)
    assert questions(server, session) == [oracle_word(n) for n in (1, 40, 10)]


async def test_a_pause_ends_with_what_it_held_up(server: Server) -> None:
    async with Client(server) as client:
        session, response = await busy(client)
        item = await add(client, session, 10)
        await client.send("stop", response_id=response)
        await queue_of(client, 10, paused=True)
        await client.reply("queue.remove", session_id=session, item_id=item)
        await queue_of(client)
        await add(client, session, 20, idempotency_key="k20")
        assert await answer_of(client, "k20") == oracle_answer(20, 6)


async def test_a_question_in_place_of_an_answer_comes_before_what_waits(server: Server) -> None:
    async with Client(server) as client:
        session, _ = await busy(client)
        await add(client, session, 10, idempotency_key="k10")
        asked = await client.ask(session, oracle_word(40), settings=SHORT, on_busy="cancel")
        assert (await client.done(asked)).final == oracle_answer(40, 6)
        assert await answer_of(client, "k10") == oracle_answer(10, 6)
    assert questions(server, session) == [oracle_word(n) for n in (1, 40, 10)]


async def test_the_stop_of_an_answer_that_waits_pauses_nothing(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        first = await client.ask(
            session, oracle_word(1), settings=SHORT | {"max_output_tokens": 300}
        )
        later = await client.ask(session, oracle_word(2), settings=SHORT, on_busy="queue")
        await add(client, session, 10, idempotency_key="k10")
        await client.send("stop", response_id=later)
        await client.done(later)
        assert (await client.done(first)).final == oracle_answer(1, 300)
        assert await answer_of(client, "k10") == oracle_answer(10, 6)


async def test_an_item_of_a_paused_queue_is_asked_alone(server: Server) -> None:
    async with Client(server) as client:
        session, response = await busy(client)
        await add(client, session, 10)
        item = await add(client, session, 20, idempotency_key="k20")
        await client.send("stop", response_id=response)
        await queue_of(client, 10, 20, paused=True)
        await client.reply("queue.send", session_id=session, item_id=item)
        assert await answer_of(client, "k20") == oracle_answer(20, 6)
        await queue_of(client, 10, paused=True)


async def steer(client: Client, response: str, word: int, key: str) -> Frame:
    return await client.reply(
        "response.steer",
        previous_response_id=response,
        idempotency_key=key,
        input=oracle_word(word),
        settings=SHORT,
    )


async def test_a_steer_keeps_the_text_and_goes_on_with_its_words(server: Server) -> None:
    async with Client(server) as client:
        session, response = await busy(client)
        await add(client, session, 20, idempotency_key="k20")
        accepted = await steer(client, response, 30, "k30")
        assert accepted["type"] == "response.steer.accepted"
        assert accepted["steer"]["previous_response_id"] == response
        assert accepted["status"] == "waiting"
        ended = await client.done(response)
        assert ended.done is not None
        assert ended.done["response"]["status"] == "cancelled"
        assert ended.done["response"]["status_details"] == {"reason": "steered", "by": "user"}
        assert await answer_of(client, "k30") == oracle_answer(30, 6)
        assert await answer_of(client, "k20") == oracle_answer(20, 6)
    stored = server.get_json(f"/v1/sessions/{session}/messages")["messages"]
    assert stored[1]["content"][0]["text"] == ended.final
    assert [stored[2]["content"][0]["text"], stored[4]["content"][0]["text"]] == [
        oracle_word(30),
        oracle_word(20),
    ]


async def test_words_for_an_answer_that_has_ended_are_asked_next(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(1), settings=SHORT)
        await client.done(response)
        await steer(client, response, 30, "k30")
        assert await answer_of(client, "k30") == oracle_answer(30, 6)


async def test_a_repeat_hears_again_what_has_become_of_its_key(server: Server) -> None:
    async with Client(server) as client:
        session, response = await busy(client)
        frame = {"session_id": session, "idempotency_key": "k", "input": oracle_word(10)}
        first, again = [await client.reply("queue.add", **frame) for _ in range(2)]
        assert (again["item_id"], again["status"]) == (first["item_id"], "waiting")
        assert len((await queue_of(client, 10))["items"]) == 1
        other = await client.reply("queue.add", **{**frame, "input": oracle_word(11)})
        assert other["error"]["code"] == "idempotency_key_reused"
        asked = await client.reply("response.create", **frame)
        assert asked["error"]["code"] == "idempotency_key_reused"
        await client.reply("queue.remove", session_id=session, item_id=first["item_id"])
        assert (await client.reply("queue.add", **frame))["status"] == "removed"
        await steer(client, response, 20, "k20")
        await answer_of(client, "k20")
        again = await steer(client, response, 20, "k20")
        assert again["status"] == "begun"
        created = [f for f in client.frames if f["type"] == "response.created"]
        assert again["response_id"] == created[-1]["response"]["id"]


async def test_a_stop_by_key_withdraws_what_waits(server: Server) -> None:
    async with Client(server) as client:
        session, _ = await busy(client)
        await add(client, session, 10, idempotency_key="k10")
        for _ in range(2):
            stopped = await client.reply("stop", session_id=session, idempotency_key="k10")
            assert (stopped["type"], stopped["response_id"]) == ("response.cancelling", None)
        await queue_of(client)
        early = await client.reply("stop", session_id=session, idempotency_key="k20")
        assert early["type"] == "response.cancelling"
        frame = {"session_id": session, "idempotency_key": "k20", "input": oracle_word(20)}
        assert (await client.reply("queue.add", **frame))["status"] == "removed"


async def test_what_cannot_be_asked_says_why_and_holds_up_the_rest(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        long = oracle_word(9) * 400
        item = await add(client, session, 0, input=long, settings={"model": "unknown"})

        def refused() -> Frame | None:
            for frame in client.frames:
                items = frame["queue"]["items"] if frame["type"] == "queue.updated" else []
                if items and "error" in items[0]:
                    return frame
            return None

        (shown,) = (await client.wait(refused, "a refusal"))["queue"]["items"]
        assert shown["error"]["code"] == "model_not_found"
        assert shown["content_omitted"] and "input" not in shown
        await add(client, session, 20, idempotency_key="k20")
        whole = server.get_json(f"/v1/sessions/{session}/queue")
        assert [item["input"] for item in whole["items"]] == [long, oracle_word(20)]
        await client.reply(
            "queue.update",
            session_id=session,
            item_id=item,
            input=oracle_word(9),
            settings=SHORT,
        )
        assert await answer_of(client, "k20") == oracle_answer(20, 6)
    assert questions(server, session) == [oracle_word(9), oracle_word(20)]


@pytest.mark.parametrize(
    ("frame", "fields", "code"),
    [
        ("queue.add", {"input": " ", "idempotency_key": "k"}, "invalid_field"),
        ("queue.add", {"input": "x"}, "idempotency_key_required"),
        ("queue.add", {"input": "x" * 140_000, "idempotency_key": "k"}, "message_too_large"),
        ("queue.add", {"input": "x", "idempotency_key": "k", "place": -1}, "invalid_field"),
        ("queue.update", {"item_id": "item_" + "a" * 22}, "item_not_found"),
        ("queue.update", {"item_id": "", "input": "x"}, "item_not_found"),
        ("queue.update", {"item_id": "item_" + "a" * 22, "input": ""}, "invalid_field"),
        ("queue.remove", {"item_id": "item_" + "a" * 22}, "item_not_found"),
        ("queue.remove", {}, "invalid_field"),
        ("queue.send", {"item_id": "item_" + "a" * 22}, "item_not_found"),
    ],
)
async def test_a_frame_that_means_nothing_is_refused(
    server: Server, frame: str, fields: dict[str, Any], code: str
) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        refusal = await client.reply(frame, session_id=session, **fields)
        assert refusal["error"]["code"] == code
        foreign = "ses_" + "a" * 22
        refusal = await client.reply(frame, session_id=foreign, **fields)
        assert refusal["error"]["code"] in (code, "session_not_found")


async def test_a_queue_takes_so_much_text(server: Server) -> None:
    async with Client(server) as client:
        session, _ = await busy(client)
        for _ in range(2):
            await add(client, session, 10, input="x" * 100_000)
        frame = {"session_id": session, "idempotency_key": "k", "input": "x" * 100_000}
        assert (await client.reply("queue.add", **frame))["error"]["code"] == "queue_full"


async def test_a_queue_takes_sixteen(server: Server) -> None:
    async with Client(server) as client:
        session, _ = await busy(client)
        for word in range(10, 26):
            await add(client, session, word)
        frame = {"session_id": session, "idempotency_key": "k", "input": oracle_word(2)}
        assert (await client.reply("queue.add", **frame))["error"]["code"] == "queue_full"


async def test_who_comes_later_gets_what_waits(server: Server) -> None:
    async with Client(server) as client, Client(server) as late:
        session, _ = await busy(client)
        await add(client, session, 10)
        subscribed = await late.reply("session.subscribe", session_id=session)
        assert [item["input"] for item in subscribed["queue"]["items"]] == [oracle_word(10)]
        assert subscribed["queue"]["paused"] is False
