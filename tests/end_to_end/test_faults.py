"""`kill -9` of each part during an answer: the text is kept, everybody is told, life goes on."""

import asyncio
import json
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.end_to_end.harness import ROOT, Answer, Client, Frame, Server
from tests.tiny_model import oracle_answer, oracle_word

NewServer = Callable[..., Server]

SHORT = {"temperature": 0, "max_output_tokens": 10}
GREEDY = {"temperature": 0, "max_output_tokens": 2000}


async def ready_again(server: Server) -> None:
    async with asyncio.timeout(15):
        while True:
            status, _ = await asyncio.to_thread(server.get, "/readyz")
            if status == 200:
                return
            await asyncio.sleep(0.1)


async def next_question_works(client: Client, session: str) -> None:
    """The session takes and finishes another answer within 15 s of the fault."""
    async with asyncio.timeout(15):
        while True:
            await client.send(
                "response.create",
                session_id=session,
                idempotency_key=f"next-{len(client.frames)}",
                input=oracle_word(300),
                settings={"temperature": 0, "max_output_tokens": 10},
            )
            frame = await client.next("response.created", "error")
            if frame["type"] == "response.created":
                break
            assert frame["error"]["retry_after_ms"], frame
            await asyncio.sleep(0.2)
    answer = await client.done(frame["response"]["id"])
    assert answer.final == oracle_answer(300, 10)


def stored_text(server: Server, session: str) -> str:
    messages = server.get_json(f"/v1/sessions/{session}/messages")["messages"]
    return str(messages[1]["content"][0]["text"])


@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0}, {"temperature": 1.0, "seed": 7, "frequency_penalty": 0.5}],
    ids=["greedy", "seeded"],
)
async def test_e1_r28_answer_goes_on_with_the_same_text_when_the_core_is_killed(
    new_server: NewServer, settings: Frame
) -> None:
    server = new_server()
    settings = {**settings, "max_output_tokens": 200}
    async with Client(server) as client:
        undisturbed = await client.ask(
            await client.new_session(), oracle_word(0), settings=settings
        )
        expected = await client.done(undisturbed)
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings=settings)
        await client.deltas(response, 10)
        server.kill_child("engine.core")
        assert (await client.next("response.queued"))["reason"] == "engine_restart"
        known = client.answers[response].text
        assert (await client.next("connection.restored"))["engine"] == "ok"
        answer = await client.done(response)
        assert outcome(answer) == outcome(expected)
        assert answer.final == expected.final != known
        assert answer.final.startswith(known)
        await client.next("message.updated")
        assert stored_text(server, session) == answer.final
        await next_question_works(client, session)


def outcome(answer: Answer) -> Frame:
    """How a response ended, without its id and its times."""
    assert answer.done is not None
    names = ("status", "status_details", "usage", "text_length")
    return {name: answer.done["response"][name] for name in names}


async def test_e5_r29_answer_goes_on_when_a_hanging_core_is_killed(new_server: NewServer) -> None:
    server = new_server(PARLEY_WATCHDOG_SECONDS="7")
    async with Client(server) as client:
        session = await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": 200}
        response = await client.ask(session, oracle_word(0), settings=settings)
        await client.deltas(response, 10)
        (core,) = server.children("engine.core")
        core.suspend()
        assert (await client.next("connection.degraded"))["engine"] == "stalled"
        status, body = server.get("/readyz")
        assert (status, json.loads(body)["engine"]) == (503, "stalled")
        assert (await client.next("connection.restored"))["engine"] == "ok"
        answer = await client.done(response)
        assert answer.final == oracle_answer(0, 200)
        assert not core.is_running()
        await next_question_works(client, session)


async def test_e4_r29_core_that_goes_on_in_time_is_left_alone(new_server: NewServer) -> None:
    server = new_server()
    async with Client(server) as client:
        settings = {"temperature": 0, "max_output_tokens": 200}
        first, second = [await client.new_session() for _ in range(2)]
        response = await client.ask(first, oracle_word(0), settings=settings)
        stopped = await client.ask(second, oracle_word(300), settings=settings)
        await client.deltas(response, 10)
        (core,) = server.children("engine.core")
        core.suspend()
        queued = await client.next("response.queued")
        assert queued["reason"] == "engine"
        assert (await client.next("connection.degraded"))["engine"] == "stalled"
        assert (await asyncio.to_thread(server.get, "/readyz"))[0] == 503
        await client.send("stop", response_id=stopped)
        ended = await client.done(stopped)
        assert ended.done is not None
        assert (ended.done["engine"], outcome(ended)["status"]) == ("unknown", "cancelled")
        core.resume()
        answer = await client.done(response)
        assert answer.final == oracle_answer(0, 200)
        assert oracle_answer(300, 200).startswith(ended.final)
        assert server.children("engine.core") == [core]


async def test_e2_answer_begins_again_when_the_core_is_killed_before_its_first_token(
    new_server: NewServer,
) -> None:
    server = new_server()
    for moment in ("response.created", "response.in_progress"):
        async with Client(server) as client:
            session = await client.new_session()
            create = {"session_id": session, "idempotency_key": "k", "input": oracle_word(0)}
            await client.send("response.create", **create, settings=SHORT)
            frame = await client.next(moment)
            server.kill_child("engine.core")
            answer = await client.done(frame.get("response_id") or frame["response"]["id"])
            assert answer.final == oracle_answer(0, 10)
            assert answer.fence == 1


async def test_stop_while_there_is_no_core_ends_the_answer_at_once(new_server: NewServer) -> None:
    server = new_server()
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings=GREEDY)
        await client.deltas(response, 10)
        queued = await client.ask(session, oracle_word(300), settings=SHORT, on_busy="queue")
        server.kill_child("engine.core")
        await client.next("connection.degraded")
        await client.send("stop", response_id=response)
        answer = await client.done(response)
        assert answer.done is not None
        assert answer.done["response"]["status"] == "cancelled"
        assert answer.done["engine"] == "unknown"
        assert oracle_answer(0, 2000).startswith(answer.final)
        assert server.get("/readyz")[0] == 503, "the next core is there already"
        # Its turn has come while there is no core: it was promised, so it waits.
        assert (await client.done(queued)).final == oracle_answer(300, 10)


async def test_r30_r31_parley_ends_when_the_core_cannot_be_started_again(
    new_server: NewServer, oracle_model: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(oracle_model, tmp_path / "model")
    server = new_server(PARLEY_MODEL=str(model), PYTHONPATH=str(impatience(tmp_path)))
    assert server.process is not None
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings=GREEDY)
        await client.deltas(response, 10)
        (model / "config.json").unlink()
        server.kill_child("engine.core")
        await client.next("connection.degraded")
        status, body = await asyncio.to_thread(server.get, "/readyz")
        assert (status, json.loads(body)["engine"]) == (503, "unavailable")
        key = {"session_id": session, "idempotency_key": "no-core"}
        refused = await client.reply("response.create", input="x", on_busy="queue", **key)
        assert refused["error"]["code"] == "engine_unavailable"
        answer = await client.done(response)  # when the last start has failed
        assert answer.done is not None
        assert answer.done["response"]["status_details"] == {"reason": "engine_error"}
        assert oracle_answer(0, 2000).startswith(answer.final)
    assert await asyncio.to_thread(server.process.wait, 60) == 1
    (line,) = [line for line in server.log().splitlines() if "10 times in a row" in line]
    assert "config.json" in line


def impatience(folder: Path) -> Path:
    """A folder whose `sitecustomize` lets the supervisor wait less between two starts."""
    lines = [
        "import sys",
        f"sys.path.insert(0, {str(ROOT)!r})",
        "import server.restarts",
        "server.restarts.MAX_DELAY_SECONDS = 0.1",
    ]
    (folder / "sitecustomize.py").write_text("\n".join(lines))
    return folder


async def test_redis_dies_and_the_answer_goes_on(new_server: NewServer) -> None:
    server = new_server()
    async with Client(server) as client:
        session = await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": 600}
        response = await client.ask(session, oracle_word(0), settings=settings)
        await client.deltas(response, 10)
        server.kill_child("redis-server")
        assert (await client.next("connection.degraded"))["store"] == "unavailable"
        assert (await client.next("connection.restored"))["store"] == "ok"
        answer = await client.done(response)
        assert answer.final == oracle_answer(0, 600)
        await client.next("message.updated")
        assert stored_text(server, session) == answer.final
        await next_question_works(client, session)


async def test_a_stop_works_while_redis_is_away(new_server: NewServer) -> None:
    server = new_server()
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings=GREEDY)
        await client.deltas(response, 10)
        (redis,) = server.children("redis-server")
        redis.suspend()
        try:
            await client.send("stop", response_id=response)
            cancelling = await client.next("response.cancelling")
            assert cancelling["durable"] is False
            answer = await client.done(response)
            assert answer.done is not None
            assert answer.done["durable"] is False
            assert answer.done["response"]["status"] == "cancelled"
        finally:
            redis.resume()
        await client.next("message.updated")
        assert stored_text(server, session) == answer.final


async def test_a_stop_by_session_works_while_redis_is_away(new_server: NewServer) -> None:
    server = new_server()
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings=GREEDY)
        await client.deltas(response, 10)
        (redis,) = server.children("redis-server")
        redis.suspend()
        try:
            await client.send("stop", session_id=session)
            assert (await client.next("response.cancelling"))["durable"] is False
            answer = await client.done(response)
        finally:
            redis.resume()
        assert answer.done is not None
        assert answer.done["response"]["status"] == "cancelled"
        await client.next("message.updated")
        assert stored_text(server, session) == answer.final
        assert [f for f in client.frames if f["type"] == "error"] == []


async def test_everything_is_restarted_and_the_chat_is_there(new_server: NewServer) -> None:
    server = new_server()
    async with Client(server) as client:
        session = await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": 20}
        response = await client.ask(session, oracle_word(0), settings=settings)
        await client.done(response)
        await client.next("message.updated")
    assert server.stop() == 0
    server.start()
    assert stored_text(server, session) == oracle_answer(0, 20)
    async with Client(server) as client:
        await client.send("session.subscribe", session_id=session)
        frame: Frame = await client.next("session.subscribed")
        assert [m["role"] for m in frame["snapshot"]["messages"]] == ["user", "assistant"]
        await next_question_works(client, session)


async def test_sigterm_lets_a_running_answer_finish(new_server: NewServer) -> None:
    server = new_server()
    async with Client(server) as client:
        session = await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": 100}
        response = await client.ask(session, oracle_word(0), settings=settings)
        await client.deltas(response, 3)
        stopping = asyncio.create_task(asyncio.to_thread(server.stop))
        answer = await client.done(response)
        assert answer.final == oracle_answer(0, 100)
        await client.next("connection.draining")
        assert await client.closed() == 1012
        assert await stopping == 0


async def connect_elsewhere(server: Server, replica: str, stack: AsyncExitStack) -> Client:
    """A client of another worker than that one; the kernel decides, so it may take a few tries."""
    for _ in range(50):
        client = await stack.enter_async_context(Client(server))
        ready = await client.next("connection.ready")
        if ready["replica"] != replica:
            return client
    raise AssertionError("fifty connections, all to one worker")


def pid_of(replica: str) -> int:
    return int(replica.split("-")[-2])


async def test_a_tab_at_another_worker_sees_the_answer_and_stops_it(new_server: NewServer) -> None:
    server = new_server(PARLEY_WORKERS="2")
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(Client(server))
        replica = (await owner.next("connection.ready"))["replica"]
        other = await connect_elsewhere(server, replica, stack)
        session = await owner.new_session()
        await other.next("session.created")
        await other.send("session.subscribe", session_id=session)
        await other.next("session.subscribed")
        response = await owner.ask(session, oracle_word(0), settings=GREEDY)
        await other.deltas(response, 5)
        await other.send("stop", session_id=session)
        assert (await other.next("response.cancelling"))["durable"] is True
        here, there = await other.done(response), await owner.done(response)
        assert here.final == there.final
        assert here.done is not None and here.done["response"]["status"] == "cancelled"
        await owner.next("message.updated")
        await other.next("message.updated")
        await next_question_works(other, session)
        await owner.deltas(list(other.answers)[-1], 1)
