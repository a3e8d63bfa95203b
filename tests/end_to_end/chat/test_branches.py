"""The tree of messages: other answers to a question, other questions, and the rest of an answer."""

import os
from typing import Any

import pytest

from tests.end_to_end.site.harness import Client, Server, clients
from tests.helpers.tiny_model import oracle_answer, oracle_word

GREEDY = {"temperature": 0, "max_output_tokens": 20}
LONG = {"temperature": 0, "max_output_tokens": 2000}


def messages_of(server: Server, session: str, leaf: str = "") -> list[dict[str, Any]]:
    """The path to `leaf`, by default to the head."""
    query = f"?leaf={leaf}" if leaf else ""
    page: dict[str, Any] = server.get_json(f"/v1/sessions/{session}/messages{query}")
    messages: list[dict[str, Any]] = page["messages"]
    return messages


def text_of(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in message["content"])


async def create(client: Client, session: str, **fields: Any) -> dict[str, Any]:
    """The reply to a `response.create`."""
    fields.setdefault("idempotency_key", os.urandom(8).hex())
    return await client.reply("response.create", session_id=session, **fields)


async def stopped(client: Client, session: str, word: int) -> tuple[dict[str, Any], str]:
    """An answer that was stopped in the middle: its message's id and its text."""
    response = await client.ask(session, oracle_word(word), settings=LONG)
    await client.deltas(response, 5)
    await client.send("stop", response_id=response)
    answer = await client.done(response)
    await client.next("message.updated")
    assert answer.done is not None and answer.final
    return answer.done["response"]["message_id"], answer.final


async def test_a_regenerated_answer_becomes_a_sibling_of_the_first(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        first = await client.done(await client.ask(session, oracle_word(7), settings=GREEDY))
        assert first.done is not None
        await client.next("message.updated")
        place = len(client.frames)
        message_id = first.done["response"]["message_id"]
        created = await create(client, session, regenerate_of=message_id, settings=GREEDY)
        again = await client.done(created["response"]["id"])
        assert again.final == first.final == oracle_answer(7, 20)
        await client.next("message.updated")
        kinds = [f["type"] for f in client.frames[place:] if f["type"] != "session.activity"]
        # Only one message is new, and the ordering rules hold for it.
        assert kinds[:2] == ["message.created", "response.created"]
        assert kinds[-2:] == ["response.done", "message.updated"]
        assert kinds.count("message.created") == 1
        (new,) = [f for f in client.frames[place:] if f["type"] == "message.created"]
        assert new["message"]["parent_id"] == first.done["response"]["parent_id"]
        assert new["message"]["role"] == "assistant"
    question, answer = messages_of(server, session)
    assert answer["id"] == created["response"]["message_id"]
    assert answer["sibling_ids"] == [message_id, answer["id"]]
    assert "sibling_ids" not in question


async def test_an_edited_question_makes_a_branch_beside_the_old_one(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        await client.done(await client.ask(session, oracle_word(1), settings=GREEDY))
        second = await client.done(await client.ask(session, oracle_word(50), settings=GREEDY))
        old_leaf = second.done["response"]["message_id"]  # type: ignore[index]
        one, two, three, _ = messages_of(server, session)
        edit = await client.ask(session, oracle_word(90), settings=GREEDY, parent_id=two["id"])
        assert (await client.done(edit)).final == oracle_answer(90, 20)
        await client.next("message.updated")
    path = messages_of(server, session)
    assert [message["id"] for message in path[:2]] == [one["id"], two["id"]]
    assert path[2]["sibling_ids"] == [three["id"], path[2]["id"]]
    assert text_of(path[3]) == oracle_answer(90, 20)
    assert [m["id"] for m in messages_of(server, session, old_leaf)][2:] == [three["id"], old_leaf]


async def test_the_first_question_can_be_edited_too(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        await client.done(await client.ask(session, oracle_word(1), settings=GREEDY))
        (first, _) = messages_of(server, session)
        edit = await client.ask(session, oracle_word(60), settings=GREEDY, parent_id=None)
        assert (await client.done(edit)).final == oracle_answer(60, 20)
    path = messages_of(server, session)
    assert len(path) == 2
    assert path[0]["parent_id"] is None
    assert path[0]["sibling_ids"] == [first["id"], path[0]["id"]]


async def test_the_head_can_be_switched_and_every_viewer_hears_of_it(server: Server) -> None:
    async with clients(server, 2) as (client, viewer):
        session = await client.new_session()
        first = await client.done(await client.ask(session, oracle_word(7), settings=GREEDY))
        old = first.done["response"]["message_id"]  # type: ignore[index]
        created = await create(client, session, regenerate_of=old, settings=GREEDY)
        await client.done(created["response"]["id"])
        await viewer.reply("session.subscribe", session_id=session)
        updated = await client.reply("session.update", session_id=session, head=old)
        assert updated["session"]["head"] == old
        assert (await viewer.next("session.updated"))["session"]["head"] == old
        assert messages_of(server, session)[-1]["id"] == old
        # The next question goes after the answer that was chosen.
        follow = await client.ask(session, oracle_word(100), settings=GREEDY)
        done = (await client.done(follow)).done
        assert done is not None
        path = messages_of(server, session)
        assert path[1]["id"] == old
        unknown = "msg_" + "A" * 22
        error = await client.reply("session.update", session_id=session, head=unknown)
        assert error["error"]["code"] == "message_not_found"


def heads_of(client: Client, session: str) -> list[str]:
    """What the session's updates have said of its head; its title makes one, too."""
    updates = [frame for frame in client.frames if frame["type"] == "session.updated"]
    return [f["session"]["head"] for f in updates if f["session"]["id"] == session]


async def test_a_branch_is_switched_to_its_newest_message_by_any_message_of_it(
    server: Server,
) -> None:
    async with clients(server, 2) as (client, viewer):
        session = await client.new_session()
        await client.done(await client.ask(session, oracle_word(1), settings=GREEDY))
        follow = await client.done(await client.ask(session, oracle_word(50), settings=GREEDY))
        assert follow.done is not None
        old_leaf = follow.done["response"]["message_id"]
        (old, *_) = messages_of(server, session)
        edit = await client.ask(session, oracle_word(60), settings=GREEDY, parent_id=None)
        await client.done(edit)
        await viewer.reply("session.subscribe", session_id=session)
        updated = await client.reply("session.update", session_id=session, branch=old["id"])
        assert updated["session"]["head"] == old_leaf
        await viewer.wait(lambda: heads_of(viewer, session)[-1:] == [old_leaf])
        assert messages_of(server, session)[-1]["id"] == old_leaf
        both = {"branch": old["id"], "head": old_leaf}
        error = await client.reply("session.update", session_id=session, **both)
        assert (error["error"]["code"], error["error"]["param"]) == ("invalid_field", "branch")
        for unknown in ("msg_" + "A" * 22, "nonsense"):
            error = await client.reply("session.update", session_id=session, branch=unknown)
            assert error["error"]["code"] == "message_not_found"


async def test_a_message_keeps_what_it_was_made_with_and_all_its_tokens(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        await client.reply("session.update", session_id=session, settings={"system": "Count."})
        settings = {"temperature": 0, "max_output_tokens": 5, "seed": 7}
        await client.done(await client.ask(session, oracle_word(1), settings=settings))
        await client.next("message.updated")
        _, message = messages_of(server, session)
        assert settings.items() <= message["settings"].items()
        assert "system" not in message["settings"]
        assert "restarts" not in message
        created = await create(client, session, continue_of=message["id"], settings=settings)
        end = (await client.done(created["response"]["id"])).done
        assert end is not None and end["response"]["usage"]["output_tokens"] == 5
        await client.next("message.updated")
        assert messages_of(server, session)[1]["usage"]["output_tokens"] == 10


async def test_a_stopped_answer_is_continued_in_the_same_message(server: Server) -> None:
    async with clients(server, 2) as (client, viewer):
        session = await client.new_session()
        message_id, base = await stopped(client, session, 0)
        await viewer.reply("session.subscribe", session_id=session)
        place = len(client.frames)
        created = await create(client, session, continue_of=message_id, settings=GREEDY)
        response = created["response"]["id"]
        assert created["response"]["message_id"] == message_id
        assert created["response"]["text_length"] == len(base)
        answer, other = await client.done(response), await viewer.done(response)
        whole = oracle_answer(0, len(base.split()) + 20)
        assert answer.final == other.final == whole
        deltas = [f for f in answer.frames if f["type"] == "response.output_text.delta"]
        assert deltas[0]["text_offset"] == len(base)
        await client.next("message.updated")
        await client.wait(lambda: client.frames[-1]["type"] == "session.activity")
        kinds = [f["type"] for f in client.frames[place:] if f["type"] != "session.activity"]
        assert kinds[:2] == ["message.updated", "response.created"]
        assert "message.created" not in kinds
        assert kinds[-2:] == ["response.done", "message.updated"]
    _, message = messages_of(server, session)
    assert (message["id"], text_of(message)) == (message_id, whole)
    assert message["response_id"] == response
    assert server.get_json(f"/v1/sessions/{session}")["message_count"] == 2


async def test_a_snapshot_of_a_continued_answer_holds_the_whole_message(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        message_id, base = await stopped(client, session, 0)
        settings = {**GREEDY, "max_output_tokens": 120}
        created = await create(client, session, continue_of=message_id, settings=settings)
        response = created["response"]["id"]
        async with Client(server) as late:
            await late.send("session.subscribe", session_id=session)
            answer = await late.done(response)
            assert answer.frames[0]["type"] == "response.output_text.snapshot"
            assert answer.frames[0]["text"].startswith(base)
            assert answer.final == oracle_answer(0, len(base.split()) + 120)
        async with Client(server) as later:  # the run is over: its log and the message remain
            await later.send(
                "response.resume", response_id=response, fence=1, after_sequence_number=0
            )
            assert (await later.done(response)).final == answer.final


async def test_a_continuation_can_be_stopped_and_continued_again(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        message_id, base = await stopped(client, session, 0)
        created = await create(client, session, continue_of=message_id, settings=LONG)
        response = created["response"]["id"]
        seen = (await client.deltas(response, 5)).last
        await client.send("stop", response_id=response, seen_sequence_number=2)
        assert seen > 2
        answer = await client.done(response)
        assert answer.final == base  # entry 2 is `response.in_progress`: no new text was seen
        await client.next("message.updated")
        again = await create(client, session, continue_of=message_id, settings=GREEDY)
        final = (await client.done(again["response"]["id"])).final
        assert final == oracle_answer(0, len(base.split()) + 20)


async def test_only_an_interrupted_answer_of_ours_can_be_continued(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        settings = {**LONG, "stop": [oracle_word(12).strip()]}
        response = await client.ask(session, oracle_word(8), settings=settings)
        answer = await client.done(response)
        await client.next("message.updated")
        question, complete = messages_of(server, session)
        assert answer.done is not None
        assert answer.done["response"]["status"] == complete["status"] == "completed"
        for message_id, code in (
            (question["id"], "invalid_field"),
            ("msg_" + "A" * 22, "message_not_found"),
            ("../../etc/passwd", "message_not_found"),
        ):
            for purpose in ("continue_of", "regenerate_of"):
                refused = await create(client, session, **{purpose: message_id})
                assert refused["error"]["code"] == code, (purpose, message_id)
        other = await client.new_session()
        refused = await create(client, other, regenerate_of=complete["id"])
        assert refused["error"]["code"] == "message_not_found"
        refused = await create(client, session, continue_of=complete["id"])
        assert refused["error"]["code"] == "invalid_field"
        assert len(messages_of(server, session)) == 2


@pytest.mark.row("C13")
@pytest.mark.parametrize("purpose", ["regenerate_of", "continue_of", "edit"])
async def test_edits_and_other_answers_wait_their_turn_as_on_busy_says(
    server: Server, purpose: str
) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        message_id, base = await stopped(client, session, 0)
        question = messages_of(server, session)[0]
        fields: dict[str, Any] = {"settings": GREEDY}
        if purpose == "edit":
            fields |= {"input": oracle_word(30), "parent_id": None}
            expected = oracle_answer(30, 20)
        else:
            fields[purpose] = message_id
            num_kept = len(base.split()) if purpose == "continue_of" else 0
            expected = oracle_answer(0, num_kept + 20)
        running = await client.ask(session, oracle_word(500), settings=LONG)
        refused = await create(client, session, **fields)
        assert refused["error"]["code"] == "response_in_progress"
        queued = await create(client, session, on_busy="queue", **fields)
        await client.next("response.queued")
        replacing = await create(
            client,
            session,
            input=oracle_word(70),
            settings=GREEDY,
            on_busy="cancel",
            parent_id=question["id"],
        )
        superseded = await client.done(running)
        assert superseded.done is not None
        assert superseded.done["response"]["status_details"]["reason"] == "superseded"
        answer = await client.done(queued["response"]["id"])
        last = await client.done(replacing["response"]["id"])
        texts = {answer.final, last.final}
        assert expected in texts or answer.done["response"]["status"] == "cancelled"  # type: ignore[index]
        assert last.final == oracle_answer(70, 20)
    leaf = answer.done["response"]["message_id"]  # type: ignore[index]
    assert text_of(messages_of(server, session, leaf)[-1]) == answer.final


async def test_two_continuations_of_one_answer_begin_one(server: Server) -> None:
    async with clients(server, 2) as (client, other):
        session = await client.new_session()
        message_id, base = await stopped(client, session, 0)
        await other.reply("session.subscribe", session_id=session)
        first = await create(client, session, continue_of=message_id, settings=GREEDY)
        second = await create(other, session, continue_of=message_id, on_busy="queue")
        assert second["error"]["code"] == "response_in_progress"
        final = (await client.done(first["response"]["id"])).final
        assert final == oracle_answer(0, len(base.split()) + 20)
