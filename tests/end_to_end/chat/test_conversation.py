"""Ask, watch it stream, stop, come back: through real processes and real sockets."""

import asyncio

import pytest

from sessions.connection.client import RedisClient
from sessions.model.keys import Keys
from tests.end_to_end.site.harness import Client, Server
from tests.end_to_end.site.recovery import blocks_come_back
from tests.helpers.tiny_model import oracle_answer, oracle_word


async def test_an_answer_streams_until_its_end_and_is_stored_as_seen(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(
            session, oracle_word(100), settings={"temperature": 0, "max_output_tokens": 40}
        )
        answer = await client.done(response)
        assert answer.final == oracle_answer(100, 40)
        assert answer.done is not None
        assert answer.done["response"]["status_details"] == {"reason": "max_output_tokens"}
        assert answer.done["engine"] == "released"
        await client.next("message.updated")
    messages = server.get_json(f"/v1/sessions/{session}/messages")["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant"]
    assert messages[1]["content"][0]["text"] == answer.final


async def test_a_bare_stop_ends_the_answer_once_and_frees_its_blocks(server: Server) -> None:
    free = server.metric("parley_kv_blocks_free")
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings={"temperature": 0})
        await client.deltas(response, 10)
        await client.send("stop", session_id=session)
        answer = await client.done(response)
        assert answer.done is not None
        assert answer.done["response"]["status"] == "cancelled"
        assert answer.done["engine"] == "released"
        assert oracle_answer(0, 3000).startswith(answer.final)
        cancelling = [f for f in client.frames if f["type"] == "response.cancelling"]
        assert [f["response_id"] for f in cancelling] == [response]
        await client.next("message.updated")
    messages = server.get_json(f"/v1/sessions/{session}/messages")["messages"]
    assert messages[1]["content"][0]["text"] == answer.final
    assert messages[1]["status"] == "interrupted"
    await blocks_come_back(server, free)


async def test_the_stored_text_is_cut_at_what_the_stopping_user_had_seen(server: Server) -> None:
    async with Client(server) as asker, Client(server) as viewer:
        session = await asker.new_session()
        await viewer.send("session.subscribe", session_id=session)
        await viewer.next("session.subscribed")
        response = await asker.ask(session, oracle_word(0), settings={"temperature": 0})
        await asker.deltas(response, 10)
        seen = asker.answers[response].last - 4
        await asker.send("stop", response_id=response, seen_sequence_number=seen)
        first, second = await asker.done(response), await viewer.done(response)
        assert first.final == second.final
        assert len(first.final) < len(first.text)
        await asker.next("message.updated")
    messages = server.get_json(f"/v1/sessions/{session}/messages")["messages"]
    assert messages[1]["content"][0]["text"] == first.final


async def test_a_second_tab_sees_the_same_text_and_may_stop(server: Server) -> None:
    async with Client(server) as first, Client(server) as second:
        session = await first.new_session()
        response = await first.ask(session, oracle_word(0), settings={"temperature": 0})
        await first.deltas(response, 5)
        await second.send("session.subscribe", session_id=session)
        subscribed = await second.next("session.subscribed")
        assert subscribed["active_responses"] == [response]
        assert subscribed["viewers"] == 2
        await second.deltas(response, 5)
        await second.send("stop", response_id=response)
        one, other = await first.done(response), await second.done(response)
        assert one.final == other.final
        assert one.done["response"]["status"] == "cancelled"  # type: ignore[index]


async def test_a_lost_connection_does_not_stop_the_answer_and_resume_is_exact(
    server: Server,
) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(
            session, oracle_word(0), settings={"temperature": 0, "max_output_tokens": 200}
        )
        known = await client.deltas(response, 10)
        client.cut()
        await client.closed()
    async with Client(server) as back:
        back.answers[response] = known
        position = {
            "response_id": response,
            "fence": known.fence,
            "after_sequence_number": known.last,
        }
        await back.send("session.subscribe", session_id=session, responses=[position])
        answer = await back.done(response)
        assert answer.final == oracle_answer(0, 200)
        kinds = {frame["type"] for frame in back.frames}
        assert "response.output_text.snapshot" not in kinds


async def test_the_position_of_a_reconnecting_client_is_recovered(server: Server) -> None:
    async with Client(server) as client:
        await client.send("session.create", idempotency_key="recover-me")
        created = await client.next("session.created")
        session = created["session"]["id"]
        response = await client.ask(session, oracle_word(5), settings={"max_output_tokens": 3})
        await client.done(response)
        await client.next("message.updated")
    async with Client(server) as back:
        after = {"epoch": created["epoch"], "offset": created["offset"]}
        await back.send("session.subscribe", session_id=session, after=after)
        subscribed = await back.next("session.subscribed")
        assert subscribed["recovered"] is True
        assert "snapshot" not in subscribed
        kinds = [(await back.next("message.created", "session.updated"))["type"] for _ in range(2)]
        assert kinds == ["message.created", "message.created"]


async def test_the_position_of_another_redis_is_not_recovered(server: Server) -> None:
    async with Client(server) as client:
        created = await client.reply("session.create", idempotency_key="another-redis")
        session, old = created["session"]["id"], created["epoch"]
        redis = RedisClient(f"unix://{server.data_dir}/redis/redis.sock")
        await redis.call("HSET", Keys("parley:").session(session, "m"), "server", "before")
        await redis.close()
    async with Client(server) as back:
        after = {"epoch": old, "offset": created["offset"]}
        subscribed = await back.reply("session.subscribe", session_id=session, after=after)
        assert subscribed["recovered"] is False
        assert subscribed["epoch"] != old
        after["epoch"] = subscribed["epoch"]
        again = await back.reply("session.subscribe", session_id=session, after=after)
        assert again["recovered"] is True


async def test_a_response_can_be_resumed_without_a_subscription(server: Server) -> None:
    async with Client(server) as client, Client(server) as other:
        session = await client.new_session()
        response = await client.ask(
            session, oracle_word(0), settings={"temperature": 0, "max_output_tokens": 60}
        )
        await other.send("response.resume", response_id=response, fence=1, after_sequence_number=0)
        answer = await other.done(response)
        assert answer.final == oracle_answer(0, 60)
        assert {f["type"] for f in other.frames if f["type"].startswith("message")} == set()


async def test_who_resumes_at_the_end_is_sent_the_end(server: Server) -> None:
    async with Client(server) as client, Client(server) as other:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings={"max_output_tokens": 3})
        end = (await client.done(response)).done
        assert end is not None
        position = {"fence": 1, "after_sequence_number": end["sequence_number"]}
        await other.send("response.resume", response_id=response, **position)
        assert (await other.next("response.done"))["sequence_number"] == end["sequence_number"]


@pytest.mark.row("C9", "C10")
async def test_the_same_key_begins_one_answer(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": 30}
        create = {
            "session_id": session,
            "idempotency_key": "once",
            "input": oracle_word(7),
            "settings": settings,
        }
        for _ in range(10):
            await client.send("response.create", **create)
        created = [await client.next("response.created") for _ in range(10)]
        assert len({frame["response"]["id"] for frame in created}) == 1
        assert [frame["replayed"] for frame in created] == [False] + [True] * 9
        await client.done(created[0]["response"]["id"])
        await client.send("response.create", **{**create, "input": "another"})
        error = await client.next("error")
        assert error["error"]["code"] == "idempotency_key_reused"
    assert len(server.get_json(f"/v1/sessions/{session}/messages")["messages"]) == 2


async def test_a_stop_that_comes_before_its_answer_wins(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        await client.send("response.cancel", session_id=session, idempotency_key="early")
        early = await client.next("response.cancelling")
        assert early["response_id"] is None
        response = await client.ask(session, oracle_word(0), idempotency_key="early")
        answer = await client.done(response)
        assert answer.done["response"]["status"] == "cancelled"  # type: ignore[index]
        assert answer.final == ""


@pytest.mark.row("C3")
async def test_create_and_stop_in_one_packet_give_an_answer_without_text(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        key = {"session_id": session, "idempotency_key": "packet"}
        await asyncio.gather(
            client.send("response.create", **key, input=oracle_word(0)),
            client.send("stop", **key),
        )
        created = await client.next("response.created")
        answer = await client.done(created["response"]["id"])
        assert answer.done["response"]["status"] == "cancelled"  # type: ignore[index]
        assert (answer.final, answer.num_deltas) == ("", 0)


@pytest.mark.row("C4")
async def test_stopping_twice_and_after_the_end_changes_nothing(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings={"temperature": 0})
        await client.deltas(response, 3)
        await client.send("stop", response_id=response)
        await client.send("stop", response_id=response)
        answer = await client.done(response)
        answer.done, done = None, answer.done  # the rule against two ends is for unasked ones
        await client.send("stop", response_id=response)
        again = await client.done(response)
        assert again.done is not None and done is not None
        assert again.done["response"]["text_length"] == done["response"]["text_length"]
        following = await client.ask(
            session, oracle_word(9), settings={"temperature": 0, "max_output_tokens": 5}
        )
        assert (await client.done(following)).final == oracle_answer(9, 5)


async def test_a_second_message_while_one_is_answered_is_refused_or_waits_or_replaces(
    server: Server,
) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        greedy = {"temperature": 0, "max_output_tokens": 100}
        first = await client.ask(session, oracle_word(0), settings=greedy)
        await client.send(
            "response.create", session_id=session, idempotency_key="b", input=oracle_word(1)
        )
        assert (await client.next("error"))["error"]["code"] == "response_in_progress"
        second = await client.ask(session, oracle_word(50), settings=greedy, on_busy="queue")
        assert (await client.next("response.queued"))["reason"] == "session"
        assert (await client.done(first)).final == oracle_answer(0, 100)
        await client.deltas(second, 1)
        third = await client.ask(session, oracle_word(80), settings=greedy, on_busy="cancel")
        replaced = await client.done(second)
        assert replaced.done["response"]["status_details"]["reason"] == "superseded"  # type: ignore[index]
        assert (await client.done(third)).final == oracle_answer(80, 100)


async def test_a_message_in_place_of_an_answer_comes_after_those_that_wait(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        greedy = {"temperature": 0, "max_output_tokens": 20}
        long = {"temperature": 0, "max_output_tokens": 2000}
        first = await client.ask(session, oracle_word(0), settings=long)
        await client.deltas(first, 1)
        waiting = [
            await client.ask(session, oracle_word(n), settings=greedy, on_busy="queue")
            for n in (50, 60, 70)
        ]
        last = await client.ask(session, oracle_word(80), settings=greedy, on_busy="cancel")
        ended = (await client.done(first)).done
        assert ended is not None
        assert ended["response"]["status_details"]["reason"] == "superseded"
        for response, word in zip([*waiting, last], (50, 60, 70, 80), strict=True):
            assert (await client.done(response)).final == oracle_answer(word, 20)


async def test_a_session_takes_its_title_from_the_first_message(server: Server) -> None:
    async with Client(server) as client, Client(server) as sidebar:
        session = await client.new_session()
        await sidebar.next("session.created")
        text = "  A question\nabout   ships\u202e " + "x" * 100
        await client.ask(session, text, settings={"max_output_tokens": 2})
        updated = await client.next("session.updated")
        assert updated["session"]["title"] == ("A question about ships " + "x" * 100)[:60]
        assert (await sidebar.next("session.updated"))["session"]["id"] == session
    listed = server.get_json("/v1/sessions?limit=5")["sessions"]
    assert listed[0]["id"] == session


@pytest.mark.row("C11")
async def test_a_deleted_session_ends_its_answer_and_is_gone(server: Server) -> None:
    free = server.metric("parley_kv_blocks_free")
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0))
        await client.deltas(response, 2)
        await client.send("session.delete", session_id=session)
        await client.next("session.deleted")
        answer = await client.done(response)
        assert answer.done["response"]["status_details"]["reason"] == "session_deleted"  # type: ignore[index]
        await client.send("session.subscribe", session_id=session)
        assert (await client.next("error"))["error"]["code"] == "session_not_found"
    await blocks_come_back(server, free)


async def test_a_session_can_be_renamed_and_pinned_under_its_revision(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        await client.send("session.update", session_id=session, title="Ships", if_revision=1)
        updated = await client.next("session.updated")
        assert (updated["session"]["title"], updated["session"]["revision"]) == ("Ships", 2)
        await client.send("session.update", session_id=session, title="Late", if_revision=1)
        assert (await client.next("error"))["error"]["code"] == "revision_conflict"
