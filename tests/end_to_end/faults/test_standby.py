"""A standby core takes over from one that dies, and answers go on with the same text."""

import asyncio
import json
from collections.abc import Callable
from functools import partial

import psutil
import pytest

from tests.end_to_end.site.harness import Client, Server
from tests.end_to_end.site.recovery import is_stored, next_question_works, stored_text
from tests.helpers.redis_topology import wait_for
from tests.helpers.tiny_model import oracle_answer, oracle_word

pytestmark = pytest.mark.slow

NewServer = Callable[..., Server]

GREEDY = {"temperature": 0, "max_output_tokens": 200}
STANDBY = {"PARLEY_STANDBY_CORE": "1", "PARLEY_LOG_FORMAT": "json"}
START_SECONDS = 60.0


async def said(server: Server, event: str, times: int = 1) -> None:
    """Wait until the log has it so often."""
    log = partial(server.log, None)
    await asyncio.to_thread(wait_for, lambda: log().count(event) >= times, START_SECONDS)


def cores(server: Server) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """Those started to serve, and those started to stand by."""
    found = server.children("engine.core")
    standing = [core for core in found if "--standby" in core.cmdline()]
    return [core for core in found if core not in standing], standing


@pytest.mark.row("E1")
async def test_a_standby_core_takes_over_in_the_middle_of_an_answer(new_server: NewServer) -> None:
    server = new_server(**STANDBY)
    await said(server, "standby core is ready")
    (serving,), (standing,) = cores(server)
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings=GREEDY)
        await client.deltas(response, 10)
        server.history.fault("kill -9 engine.core")
        serving.kill()
        assert (await client.next("response.queued"))["reason"] == "engine_restart"
        answer = await client.done(response)
        assert answer.final == oracle_answer(0, 200)
        assert answer.done is not None and answer.done["response"]["restarts"] == 1
        await client.wait(partial(is_stored, client, response), "message.updated")
        assert stored_text(server, session) == answer.final
        assert standing.is_running() and "standby core takes over" in server.log(None)
        await next_question_works(client, session)
    await said(server, "standby core is ready", times=2)  # for the one that serves now
    assert len(server.children("engine.core")) == 2


async def test_a_standby_core_that_dies_disturbs_nobody(new_server: NewServer) -> None:
    server = new_server(**STANDBY)
    await said(server, "standby core is ready")
    (serving,), (standing,) = cores(server)
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings=GREEDY)
        await client.deltas(response, 10)
        standing.kill()
        await said(server, "standby core died")
        answer = await client.done(response)
        assert answer.final == oracle_answer(0, 200)
        assert answer.done is not None and not answer.done["response"].get("restarts")
    status, body = server.get("/readyz")
    assert (status, json.loads(body)["status"]) == (200, "ok") and serving.is_running()


async def test_no_core_outlives_a_supervisor_that_is_killed(new_server: NewServer) -> None:
    server = new_server(**STANDBY)
    await said(server, "standby core is ready")
    both = server.children("engine.core")
    assert server.process is not None and len(both) == 2
    server.process.kill()
    server.process.wait()
    await asyncio.to_thread(psutil.wait_procs, both, START_SECONDS)
    assert not any(core.is_running() for core in both)
