"""A user's word on a call: who may say one, through any worker, and what counts."""

from typing import Any

import msgspec
import pytest

from tests.server.helpers.callers import ANSWER, CallingEngine
from tests.server.helpers.local_http import Http
from tests.server.helpers.tool_chats import TAKEN_OVER, Chats, ToolChat, calling, die

ECHO = {"text": "said"}
HASTY = msgspec.structs.replace(TAKEN_OVER, consent=0.3)


async def consent(
    chat: ToolChat, response: str, decision: str, call: int = 0, client: Any = None
) -> Any:
    """The reply to a word of the user's."""
    return await (client or chat.client).reply(
        "tool_call.consent",
        response_id=response,
        call_id=f"call_{response.removeprefix('resp_')}_{call}",
        decision=decision,
    )


async def test_a_call_waits_for_a_word_which_may_come_through_another_worker(chats: Chats) -> None:
    async with chats(CallingEngine(said=calling(("asked__echo", ECHO)))) as chat:
        session, first = await chat.ask("asked")
        waiting = await chat.item(first, "awaiting_consent")
        assert (waiting["consent"], waiting["output"]) == ("always", "")
        assert waiting["expires_at"] > 0
        async with chat.watching(session) as other:

            def sees() -> bool:
                shown = [item for f in other.frames for item in f.get("output", ())]
                shown += [frame["item"] for frame in other.frames if "item" in frame]
                return waiting in shown

            await other.wait(sees, "what every tab sees")
            accepted = await consent(chat, first, "allow", client=other)
            assert accepted["type"] == "tool_call.consent.accepted"
            assert (await chat.item(first, "completed"))["output"] == "said"
            assert "consent" not in (await chat.item(first, "in_progress"))
            await chat.client.done(await chat.next_response(first))
            again = await consent(chat, first, "allow", client=other)
            assert again["type"] == "tool_call.consent.accepted"  # a repeat
            late = await consent(chat, first, "deny")
            assert late["error"]["code"] == "consent_settled"


async def test_the_model_hears_who_says_no_and_nothing_runs(chats: Chats) -> None:
    said = calling(("asked__count", {"name": "never"}), ("asked__echo", ECHO))
    async with chats(CallingEngine(said=said)) as chat:
        session, first = await chat.ask("asked")
        await chat.item(first, "awaiting_consent")
        await chat.item(first, "awaiting_consent", 1)
        await consent(chat, first, "deny")
        await consent(chat, first, "allow", call=1)
        second = await chat.next_response(first)
        assert (await chat.client.done(second)).final == ANSWER
        outputs = (await chat.messages(session))[1].tool_outputs
        assert outputs is not None
        assert [item["status"] for item in outputs] == ["denied", "completed"]
        assert outputs[0]["code"] == "tool_denied"
        assert outputs[0]["output"].startswith("error tool_denied: the user does not want")


async def test_a_tool_that_was_allowed_for_the_session_asks_no_more(chats: Chats) -> None:
    said = calling(("once__echo", {"text": "a"}), ("once__echo", {"text": "b"}))
    async with chats(CallingEngine(said=said)) as chat:
        session, first = await chat.ask("once")
        await chat.item(first, "awaiting_consent")
        await chat.item(first, "awaiting_consent", 1)
        await consent(chat, first, "allow_session")
        await chat.item(first, "completed", 1)  # it waited for the same
        await chat.client.done(await chat.next_response(first))
        asked: list[Any] = [{"type": "mcp", "server_label": "once"}]
        again = await chat.client.ask(session, "and?", settings={"tools": asked})
        await chat.client.done(again)
        assert {item["status"] for item in chat.items(again)} == {"in_progress", "completed"}
        _, other = await chat.ask("once")  # another session
        await chat.item(other, "awaiting_consent")
        await chat.client.send("stop", response_id=other)
        await chat.client.done(other)


async def test_what_nobody_answers_in_time_is_denied(chats: Chats) -> None:
    async with chats(CallingEngine(said=calling(("asked__echo", ECHO))), HASTY) as chat:
        _, first = await chat.ask("asked")
        item = await chat.item(first, "denied")
        assert item["code"] == "tool_consent_timeout"
        assert (await consent(chat, first, "allow"))["error"]["code"] == "consent_settled"
        await chat.client.done(await chat.next_response(first))


@pytest.mark.parametrize(
    ("decision", "call", "code"),
    [
        ("allow_session", 0, "invalid_field"),  # of a tool that asks each time
        ("allow", 7, "call_not_found"),
        ("maybe", 0, "invalid_field"),
    ],
)
async def test_words_that_cannot_count_are_refused(
    chats: Chats, decision: str, call: int, code: str
) -> None:
    async with chats(CallingEngine(said=calling(("asked__echo", ECHO)))) as chat:
        _, first = await chat.ask("asked")
        await chat.item(first, "awaiting_consent")
        assert (await consent(chat, first, decision, call))["error"]["code"] == code
        await chat.client.send("stop", response_id=first)
        await chat.client.done(first)
        assert (await consent(chat, first, "allow"))["error"]["code"] == "consent_settled"


async def test_a_call_that_needs_no_word_takes_none(chats: Chats) -> None:
    async with chats(CallingEngine(said=calling(("good__echo", ECHO)))) as chat:
        _, first = await chat.ask("good")
        await chat.client.done(await chat.next_response(first))
        assert (await consent(chat, first, "allow"))["error"]["code"] == "consent_settled"


async def test_another_user_has_no_word_although_an_admin_may_watch(chats: Chats) -> None:
    async with chats(CallingEngine(said=calling(("asked__echo", ECHO)))) as chat:
        _, first = await chat.ask("asked")
        await chat.item(first, "awaiting_consent")
        for worker in chat.workers:
            async with chat.admin(worker) as admin:
                refused = await consent(chat, first, "allow", client=admin)
                assert refused["error"]["code"] == "response_not_found"
        await chat.client.send("stop", response_id=first)
        assert (await chat.client.done(first)).done is not None


async def test_over_http_it_is_the_same(chats: Chats) -> None:
    async with chats(CallingEngine(said=calling(("asked__echo", ECHO)))) as chat:
        _, first = await chat.ask("asked")
        waiting = await chat.item(first, "awaiting_consent")
        body = {"call_id": waiting["call_id"], "decision": "allow"}
        path = f"/v1/responses/{first}/consent"
        for _ in range(2):
            request = Http(chat.workers[1], "POST", path, body=body)
            accepted = await request.body()
            assert request.status == 200 and accepted["decision"] == "allow"
        await chat.item(first, "completed")
        await chat.client.done(await chat.next_response(first))


async def test_a_word_counts_although_the_owner_dies_before_it_has_heard_it(chats: Chats) -> None:
    async with chats(CallingEngine(said=calling(("asked__echo", ECHO)))) as chat:
        session, first = await chat.ask("asked")
        await chat.asks(first)
        async with chat.watching(session) as other:
            owner, heir = chat.workers
            await die(owner, chat.client)
            await consent(chat, first, "allow", client=other)
            await heir.takeover.adopt("w0")
            chat.client = other
            assert (await chat.item(first, "completed"))["output"] == "said"
            assert (await other.done(await chat.next_response(first))).final == ANSWER


async def test_a_question_to_the_user_outlives_its_worker(chats: Chats) -> None:
    async with chats(CallingEngine(said=calling(("asked__echo", ECHO)))) as chat:
        session, first = await chat.ask("asked")
        waiting = await chat.asks(first)
        async with chat.watching(session) as other:
            owner, heir = chat.workers
            await die(owner, chat.client)
            await heir.takeover.adopt("w0")
            chat.client = other
            await consent(chat, first, "allow", client=other)
            assert (await chat.item(first, "completed"))["output"] == "said"
            await other.done(await chat.next_response(first))
            items = (await chat.messages(session))[1].tool_outputs
            assert items is not None and items[0]["id"] == waiting["id"]
