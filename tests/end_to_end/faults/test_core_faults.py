"""The engine core dies or hangs: its answers go on with the same text, and all clients hear."""

import asyncio
import json
import os
import shutil
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.end_to_end.site.harness import TESTING, Answer, Client, Frame, Server
from tests.end_to_end.site.planted_faults import (
    CUDA_TOKENS,
    DEADLY_TOKENS,
    MEMORY_TOKENS,
    NAN_TOKENS,
    plant,
)
from tests.end_to_end.site.recovery import is_stored, next_question_works, stored_text
from tests.helpers.redis_topology import wait_for
from tests.helpers.running_time import running_time
from tests.helpers.tiny_model import oracle_answer, oracle_word

NewServer = Callable[..., Server]

GREEDY = {"temperature": 0, "max_output_tokens": 200}
SEEDED = {"temperature": 1.0, "seed": 7, "frequency_penalty": 0.5, "max_output_tokens": 200}
SHORT = {**GREEDY, "max_output_tokens": 10}
LONG = {**GREEDY, "max_output_tokens": 2000}
NUM_OTHERS = 5  # answers beside a poisonous one
CACHE_BYTES = 64 * 16 * 128  # 64 blocks of 16 tokens of the oracle model


@pytest.fixture(scope="module")
def _impatient(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("impatient")
    environment = {"PARLEY_PACE": "100", "PYTHONPATH": plant(folder)}
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


@pytest.mark.row("E1")
async def test_answers_go_on_with_the_same_text_when_the_core_is_killed(
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
            assert answer.done is not None and answer.done["response"]["restarts"] == 1
        await next_question_works(client, disturbed[0][0])


@pytest.mark.slow
@pytest.mark.row("E5")
async def test_answer_goes_on_when_a_hanging_core_is_killed(server: Server) -> None:
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


@pytest.mark.row("E4")
@pytest.mark.slow
async def test_core_that_goes_on_in_time_is_left_alone(server: Server) -> None:
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


@pytest.mark.slow
@pytest.mark.row("E2")
async def test_answer_begins_again_when_the_core_is_killed_before_its_first_token(
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


@pytest.mark.slow
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


@pytest.mark.row("E3")
@pytest.mark.slow
async def test_parley_ends_when_the_core_cannot_be_started_again(
    new_server: NewServer, oracle_model: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(oracle_model, tmp_path / "model")
    server = new_server(PARLEY_MODEL=str(model), PYTHONPATH=plant(tmp_path))
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


# ---- requests that are bad for the engine: each ends alone (`planted_faults.py`) ----------------


def prompt_of(num_tokens: int) -> str:
    """So many tokens of the oracle model, of which the last is word 0."""
    return "".join(oracle_word(9_000 + number) for number in range(num_tokens - 1)) + oracle_word(0)


@asynccontextmanager
async def whole_answers_beside(server: Server) -> AsyncIterator[Client]:
    """A client; others' answers begin before it, and are whole after it."""
    settings = {**GREEDY, "max_output_tokens": 80}
    async with Client(server) as others, Client(server) as client:
        answers = {}
        for number in range(NUM_OTHERS):
            session = await others.new_session()
            response = await others.ask(session, oracle_word(500 * number), settings=settings)
            answers[response] = oracle_answer(500 * number, 80)
        for response in answers:
            await others.deltas(response, 1)
        yield client
        for response, text in answers.items():
            assert (await others.done(response)).final == text


async def failed(client: Client, num_tokens: int) -> Answer:
    """The end of an answer to a poisonous prompt; its session works on."""
    session = await client.new_session()
    answer = await client.done(await client.ask(session, prompt_of(num_tokens), settings=GREEDY))
    await client.next("response.done")
    assert answer.done is not None
    response = answer.done["response"]
    assert (response["status"], response["status_details"]["reason"]) == ("failed", "engine_error")
    await next_question_works(client, session)
    return answer


@pytest.mark.row("E7")
async def test_a_request_without_finite_logits_fails_alone(server: Server) -> None:
    (core,) = server.children("engine.core")
    async with whole_answers_beside(server) as client:
        await failed(client, NAN_TOKENS)
    assert server.children("engine.core") == [core]


@pytest.mark.row("E6")
async def test_a_prompt_too_large_for_the_memory_fails_alone(server: Server) -> None:
    (core,) = server.children("engine.core")
    async with whole_answers_beside(server) as client:
        await failed(client, MEMORY_TOKENS)
    assert server.children("engine.core") == [core]


@pytest.mark.row("E6")
@pytest.mark.slow
async def test_a_core_whose_gpu_fails_ends_itself_and_all_answers_go_on(server: Server) -> None:
    (core,) = server.children("engine.core")
    async with whole_answers_beside(server) as client:
        session = await client.new_session()
        response = await client.ask(session, prompt_of(CUDA_TOKENS), settings=GREEDY)
        assert (await client.next("response.queued"))["reason"] == "engine_restart"
        await asyncio.to_thread(core.wait, 2.0)  # raises if it limps on
        assert (await client.done(response)).final == oracle_answer(0, 200)


@pytest.mark.row("E9")
async def test_garbage_on_the_cores_socket_ends_its_sender_alone(
    server: Server,
) -> None:
    (core,) = server.children("engine.core")
    (path,) = {c.laddr for c in core.net_connections("unix") if str(c.laddr).endswith("core.sock")}
    async with whole_answers_beside(server) as client:
        for num_bytes in (1, 64, 64, 4096):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(path)
                stranger.sendall(os.urandom(num_bytes))
        await next_question_works(client, await client.new_session())
    assert server.children("engine.core") == [core]


@pytest.mark.row("E3")
@pytest.mark.slow
async def test_a_request_that_kills_two_cores_fails_alone(server: Server) -> None:
    async with whole_answers_beside(server) as client:
        first = server.children("engine.core")
        answer = await failed(client, DEADLY_TOKENS)
        assert answer.final == ""
        assert server.children("engine.core") != first


@pytest.mark.row("E3")
@pytest.mark.slow
async def test_five_deaths_in_a_row_bring_longer_and_longer_pauses(
    new_server: NewServer,
) -> None:
    """0, 1, 2, 4 and 8 s between the death and the next start; new questions are refused fast."""
    server = new_server()
    async with Client(server) as client:
        session, other = await client.new_session(), await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": 1000}
        response = await client.ask(session, oracle_word(0), settings=settings)
        pauses, paused, refusals = [], [], []  # by the wall's clock, and while the machine ran
        for number in range(5):
            held = client.answers[response].num_deltas if number else 0
            await client.deltas(response, held + 2)
            killed, ran = time.monotonic(), running_time()
            server.kill_child("engine.core")
            assert (await client.next("connection.degraded"))["engine"] == "unavailable"
            assert running_time() - ran < 2
            status, body = await asyncio.to_thread(server.get, "/readyz")
            assert (status, json.loads(body)["engine"]) == (503, "unavailable")
            for attempt in range(10):
                asked = running_time()
                key = {"idempotency_key": f"{number}-{attempt}"}
                refused = await client.reply("response.create", session_id=other, input="x", **key)
                refusals.append(running_time() - asked)
                assert refused["error"]["code"] == "engine_unavailable"
            assert (await client.next("connection.restored"))["engine"] == "ok"
            pauses.append(time.monotonic() - killed)
            paused.append(running_time() - ran)
        assert (await client.done(response)).final == oracle_answer(0, 1000)
        await next_question_works(client, session)
    print("pauses", [round(s, 1) for s in pauses], "slowest refusal", max(refusals))
    assert max(refusals) < 0.2
    for number, (pause, ran) in enumerate(zip(pauses, paused, strict=True)):
        wait = 2 ** (number - 1) if number else 0
        assert wait <= pause
        assert ran < wait + 15


@pytest.mark.row("E8")
@pytest.mark.slow
async def test_forty_chats_share_a_cache_of_64_blocks_and_all_get_their_whole_text(
    new_server: NewServer,
) -> None:
    """Preempted, in turn, and never locked; what can never fit is refused at once."""
    num_tokens = 400  # 25 blocks
    server = new_server(PARLEY_KV_CACHE_MEMORY_BYTES=str(CACHE_BYTES), PARLEY_PACE="0", **TESTING)
    async with Client(server) as client:
        session = await client.new_session()
        key = {"session_id": session, "idempotency_key": "too-long"}
        refused = await client.reply("response.create", input=prompt_of(1100), **key)
        assert refused["error"]["code"] == "context_length_exceeded"
        settings = {"temperature": 0, "max_output_tokens": num_tokens}
        answers = {}
        for number in range(40):
            session = await client.new_session()
            response = await client.ask(session, oracle_word(100 * number), settings=settings)
            answers[response] = oracle_answer(100 * number, num_tokens)
        for response, text in answers.items():
            assert (await client.done(response, 120.0)).final == text
    assert server.metric("parley_kv_blocks_free") == 64
