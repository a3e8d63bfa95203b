"""The engine core dies or hangs: its answers go on with the same text, and everybody is told."""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.end_to_end.harness import ROOT, Answer, Client, Frame, Server
from tests.end_to_end.recovery import is_stored, next_question_works, stored_text
from tests.redis_topology import wait_for
from tests.tiny_model import oracle_answer, oracle_word

NewServer = Callable[..., Server]

GREEDY = {"temperature": 0, "max_output_tokens": 200}
SEEDED = {"temperature": 1.0, "seed": 7, "frequency_penalty": 0.5, "max_output_tokens": 200}
SHORT = {**GREEDY, "max_output_tokens": 10}
LONG = {**GREEDY, "max_output_tokens": 2000}


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


@pytest.fixture(scope="module")
def _impatient(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("impatient")
    environment = {"PARLEY_PACE": "100", "PYTHONPATH": str(impatience(folder))}
    watchdog = {"PARLEY_WATCHDOG_SECONDS": "10"}
    server = Server(folder / "data", oracle_model, None, **environment, **watchdog)
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
async def server(_impatient: Server) -> Server:
    """It starts a core anew without delay; a test that ends one need not wait for the next."""
    await asyncio.to_thread(wait_for, lambda: _impatient.get("/readyz")[0] == 200, 30.0)
    return _impatient


async def ask(client: Client, settings: Frame) -> tuple[str, str]:
    """A new session and its answer."""
    session = await client.new_session()
    return session, await client.ask(session, oracle_word(0), settings=settings)


def outcome(answer: Answer) -> Frame:
    """How a response ended, without its id and its times."""
    assert answer.done is not None
    names = ("status", "status_details", "usage", "text_length")
    return {name: answer.done["response"][name] for name in names}


async def test_e1_r28_answers_go_on_with_the_same_text_when_the_core_is_killed(
    server: Server,
) -> None:
    async with Client(server) as client:
        undisturbed = [await ask(client, settings) for settings in (GREEDY, SEEDED)]
        expected = [await client.done(response) for _, response in undisturbed]
        disturbed = [await ask(client, settings) for settings in (GREEDY, SEEDED)]
        for _, response in disturbed:
            await client.deltas(response, 10)
        server.kill_child("engine.core")
        for _ in disturbed:
            assert (await client.next("response.queued"))["reason"] == "engine_restart"
        known = [client.answers[response].text for _, response in disturbed]
        assert (await client.next("connection.restored"))["engine"] == "ok"
        for (session, response), before, end in zip(disturbed, known, expected, strict=True):
            answer = await client.done(response)
            assert outcome(answer) == outcome(end)
            assert answer.final == end.final != before
            assert answer.final.startswith(before)
            await client.wait(partial(is_stored, client, response), "message.updated")
            assert stored_text(server, session) == answer.final
        await next_question_works(client, disturbed[0][0])


async def test_e5_r29_answer_goes_on_when_a_hanging_core_is_killed(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings=GREEDY)
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


async def test_e4_r29_core_that_goes_on_in_time_is_left_alone(server: Server) -> None:
    async with Client(server) as client:
        first, second = [await client.new_session() for _ in range(2)]
        response = await client.ask(first, oracle_word(0), settings=GREEDY)
        stopped = await client.ask(second, oracle_word(300), settings=GREEDY)
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
    server: Server,
) -> None:
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


async def test_stop_while_there_is_no_core_ends_the_answer_at_once(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings=LONG)
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
        response = await client.ask(session, oracle_word(0), settings=LONG)
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
