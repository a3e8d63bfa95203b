"""`ToolRunner`: what stops, deaths and takeovers leave of calls, and the round that follows."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.tools.client import ToolClient
from server.tools.messages import ToolResult
from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from tests.server.helpers.callers import ANSWER, CallingEngine
from tests.server.helpers.tool_chats import (
    Chats,
    ToolChat,
    calling,
    die,
    offering,
    running_tools,
    say,
    tool_chat,
)
from tests.server.tools.helpers.running import RunningTools, heard


@pytest.fixture
def own_tools(tmp_path: Path) -> Iterator[RunningTools]:
    """A process of the test's own, to be killed."""
    yield from running_tools(tmp_path)


async def give_to_heir(chat: ToolChat) -> None:
    """The worker that owns the answer dies, and the other one takes it over."""
    owner, heir = chat.workers
    await die(owner, chat.client)
    await heir.takeover.adopt("w0")


def tool_client(worker: Worker) -> ToolClient:
    client = worker._tools
    assert client is not None
    return client


async def test_a_call_of_a_dead_worker_runs_once_and_the_model_reads_its_result(
    chats: Chats,
) -> None:
    async with chats(CallingEngine(said=calling(("good__count", {"name": "k"})))) as chat:
        began, go = chat.pipes("k-began", "k-go")
        session, first = await chat.ask("good")
        async with chat.watching(session) as other:
            assert await heard(began) == "1"
            await give_to_heir(chat)
            chat.client = other
            await say(go, "after its death")
            assert (await chat.item(first, "completed"))["output"] == "call 1: after its death"
            assert (await other.done(await chat.next_response(first))).final == ANSWER
            done = (await other.done(first)).done
            assert done is not None and done["fence"] == 2
            roles = [message.role for message in await chat.messages(session)]
            assert roles == ["user", "assistant", "tool", "assistant"]


async def test_a_call_that_was_stored_but_never_sent_is_sent_once_by_who_goes_on(
    chats: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with chats(CallingEngine(said=calling(("good__count", {"name": "n"})))) as chat:
        began, go = chat.pipes("n-began", "n-go")
        owner, _ = chat.workers
        is_about_to = asyncio.Event()

        async def dies_here(key: str, tool: str, arguments: bytes) -> ToolResult:
            is_about_to.set()
            await asyncio.Event().wait()
            raise AssertionError

        monkeypatch.setattr(tool_client(owner), "call", dies_here)
        session, first = await chat.ask("good")
        async with chat.watching(session) as other:
            await is_about_to.wait()
            await give_to_heir(chat)
            chat.client = other
            assert await heard(began) == "1"
            await say(go, "now")
            assert (await chat.item(first, "completed"))["output"] == "call 1: now"
            await other.done(await chat.next_response(first))


async def test_a_call_whose_tool_process_dies_is_unknown_and_never_run_again(
    redis_server: EmbeddedRedis, own_tools: RunningTools
) -> None:
    engine = CallingEngine(said=calling(("good__count", {"name": "u"})))
    async with tool_chat(redis_server.url, own_tools, engine) as chat:
        began, _ = chat.pipes("u-began", "u-go")
        session, first = await chat.ask("good")
        assert await heard(began) == "1"
        os.kill(own_tools.pid, signal.SIGKILL)
        item = await chat.item(first, "unknown")
        assert item["code"] == "tool_outcome_unknown"
        assert item["output"].startswith("error tool_outcome_unknown: the tool process died")
        assert (await chat.client.done(await chat.next_response(first))).final == ANSWER
        assert (await chat.messages(session))[2].text == item["output"]


async def test_a_call_whose_worker_and_tool_process_die_is_unknown(
    redis_server: EmbeddedRedis, own_tools: RunningTools
) -> None:
    engine = CallingEngine(said=calling(("good__count", {"name": "b"})))
    async with tool_chat(redis_server.url, own_tools, engine) as chat:
        began, _ = chat.pipes("b-began", "b-go")
        session, first = await chat.ask("good")
        async with chat.watching(session) as other:
            assert await heard(began) == "1"
            owner, heir = chat.workers
            await die(owner, chat.client)
            os.kill(own_tools.pid, signal.SIGKILL)
            await heir.takeover.adopt("w0")
            chat.client = other
            await chat.item(first, "unknown")
            assert (await other.done(await chat.next_response(first))).final == ANSWER


async def stop(chat: ToolChat, other: Any, session: str, response: str) -> None:
    await other.send("stop", response_id=response)


async def steer(chat: ToolChat, other: Any, session: str, response: str) -> None:
    await other.send(
        "response.steer",
        previous_response_id=response,
        idempotency_key="words",
        input="rather this",
        settings={"tool_choice": "none"},
    )


async def ask_instead(chat: ToolChat, other: Any, session: str, response: str) -> None:
    await other.send(
        "response.create",
        session_id=session,
        idempotency_key="instead",
        input="rather that",
        on_busy="cancel",
        settings={"tool_choice": "none"},
    )


@pytest.mark.parametrize("end", [stop, steer, ask_instead])
@pytest.mark.parametrize("through", [0, 1])
async def test_a_stop_of_an_answer_stops_its_calls(chats: Chats, end: Any, through: int) -> None:
    name = f"s{through}{end.__name__}"
    async with chats(CallingEngine(said=calling(("good__wait", {"name": name})))) as chat:
        began, cancelled = chat.pipes(f"{name}-began", f"{name}-cancelled")
        session, first = await chat.ask("good")
        await heard(began)
        async with chat.watching(session, through) as other:
            await end(chat, other, session, first)
            done = (await chat.client.done(first)).done
            assert done is not None and done["response"]["status"] == "cancelled"
            assert await heard(cancelled) == "yes"
            called = next(m for m in await chat.messages(session) if m.tool_calls)
            assert called.tool_outputs is not None
            assert [item["status"] for item in called.tool_outputs] == ["cancelled"]
            if end is not stop:
                key = "words" if end is steer else "instead"

                def follows() -> str | None:
                    frames = chat.client.frames
                    ids = [f["response"]["id"] for f in frames if f.get("idempotency_key") == key]
                    return ids[0] if ids else None

                following = await chat.client.wait(follows, "what follows")
                await chat.client.done(following)


async def test_a_deleted_session_ends_its_calls(chats: Chats) -> None:
    async with chats(CallingEngine(said=calling(("good__wait", {"name": "d"})))) as chat:
        began, cancelled = chat.pipes("d-began", "d-cancelled")
        session, first = await chat.ask("good")
        await heard(began)
        async with chat.watching(session) as other:
            await other.reply("session.delete", session_id=session)
            assert await heard(cancelled) == "yes"
            done = (await chat.client.done(first)).done
            assert done is not None
            assert done["response"]["status_details"]["reason"] == "session_deleted"


async def test_an_answer_that_nobody_watches_ends_with_its_calls(chats: Chats) -> None:
    async with chats(CallingEngine(said=calling(("good__wait", {"name": "v"})))) as chat:
        began, cancelled = chat.pipes("v-began", "v-cancelled")
        settings = offering("good") | {"on_no_viewers": {"stop_after_s": 1}}
        session, _ = await chat.ask("good", settings=settings)
        await heard(began)
        await chat.client.reply("session.unsubscribe", session_id=session)
        assert await heard(cancelled) == "yes"


async def test_a_stop_that_a_dead_worker_never_heard_ends_its_calls_too(chats: Chats) -> None:
    async with chats(CallingEngine(said=calling(("good__wait", {"name": "x"})))) as chat:
        began, cancelled = chat.pipes("x-began", "x-cancelled")
        session, first = await chat.ask("good")
        await heard(began)
        async with chat.watching(session) as other:
            owner, heir = chat.workers
            await die(owner, chat.client)
            await other.send("stop", response_id=first)
            await other.next("response.cancelling")
            await heir.takeover.adopt("w0")
            done = (await other.done(first)).done
            assert done is not None and done["response"]["status"] == "cancelled"
            assert await heard(cancelled) == "yes"


async def test_a_worker_that_leaves_leaves_its_calls_running(chats: Chats) -> None:
    async with chats(CallingEngine(said=calling(("good__count", {"name": "l"})))) as chat:
        began, go = chat.pipes("l-began", "l-go")
        session, first = await chat.ask("good")
        async with chat.watching(session) as other:
            assert await heard(began) == "1"
            owner, _ = chat.workers
            hurry = asyncio.Event()
            hurry.set()
            await owner.drain(0.0, hurry, is_crash=False)
            chat.client = other
            await say(go, "still")
            assert (await chat.item(first, "completed"))["output"] == "call 1: still"
            assert (await other.done(await chat.next_response(first))).final == ANSWER


async def test_the_next_round_begins_once_although_the_owner_dies_before_it(
    chats: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with chats(CallingEngine(said=calling(("good__echo", {"text": "x"})))) as chat:
        owner, heir = chat.workers
        monkeypatch.setattr(owner.runs, "on_queue", lambda session_id, turn: None)
        session, first = await chat.ask("good")
        async with chat.watching(session) as other:
            await chat.client.done(first)
            await die(owner, chat.client)
            chat.client = other
            await heir.store.queues.rounds.look_later(session, after_ms=-1)
            assert (await other.done(await chat.next_response(first))).final == ANSWER
            answers = [m for m in await chat.messages(session) if m.role == "assistant"]
            assert len(answers) == 2


async def test_a_worker_without_tools_says_so_in_the_place_of_a_call(
    chats: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with chats(CallingEngine(said=calling(("good__count", {"name": "o"})))) as chat:
        began, go = chat.pipes("o-began", "o-go")
        session, first = await chat.ask("good")
        async with chat.watching(session) as other:
            assert await heard(began) == "1"
            _, heir = chat.workers
            monkeypatch.setattr(heir.runs._tools, "_client", None)
            await give_to_heir(chat)
            chat.client = other
            item = await chat.item(first, "unknown")
            assert item["code"] == "tool_outcome_unknown"
            await other.done(await chat.next_response(first))
            await say(go, "for nobody")


async def test_a_round_that_cannot_be_asked_says_why(
    chats: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = CallingEngine(said=calling(("good__echo", {"text": "long " * 100})))
    async with chats(engine) as chat:
        apply = engine.apply_chat_template_async

        async def too_long(messages: Any, *arguments: Any, **options: Any) -> list[int]:
            if messages[-1]["role"] == "tool":
                return [1] * 40_000
            return await apply(messages, *arguments, **options)

        monkeypatch.setattr(engine, "apply_chat_template_async", too_long)
        _, first = await chat.ask("good")
        done = (await chat.client.done(await chat.next_response(first))).done
        assert done is not None and done["response"]["status"] == "failed"
        details = done["response"]["status_details"]
        assert details["reason"] == "engine_error"
        assert "the model's context has" in details["message"]


@pytest.mark.parametrize("names", ["session_id", "response_id", ""])
@pytest.mark.parametrize("through", [0, 1])
async def test_a_stop_between_two_rounds_lets_none_follow(
    chats: Chats, monkeypatch: pytest.MonkeyPatch, names: str, through: int
) -> None:
    async with chats(CallingEngine(said=calling(("good__echo", {"text": "x"})))) as chat:
        owner, heir = chat.workers
        monkeypatch.setattr(owner.runs, "on_queue", lambda session_id, turn: None)
        session, first = await chat.ask("good")
        await chat.client.done(first)
        await chat.client.next("message.updated")
        async with chat.watching(session, through) as other:
            named = {"session_id": session, "response_id": first}
            fields = {names: named[names]} if names else {}
            await other.send("stop", event_id="stop", **fields)
            if names == "response_id":
                assert (await other.done(first)).done is not None
            else:
                stopped = await other.next("response.cancelling")
                assert (stopped["response_id"], stopped["durable"]) == (None, True)
            refused = await other.reply("stop", session_id=session)
            assert "error" in refused or names == "response_id"
            queue = await heir.store.queues.get(None, session)
            assert queue.next_round is None
            assert len(await chat.messages(session)) == 2
