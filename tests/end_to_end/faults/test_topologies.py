"""`parley serve` on a Redis cluster, and behind a sentinel: as on one server."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.site.harness import TESTING, Client, Server
from tests.end_to_end.site.owned_answer import TEXT, resume, status_of
from tests.end_to_end.site.recovery import is_stored, next_question_works, stored_text
from tests.end_to_end.site.wiring import at_both
from tests.helpers.redis_server import redis_binaries
from tests.helpers.redis_topology import Guarded, running_cluster, running_sentinels
from tests.helpers.tiny_model import oracle_answer, oracle_word

OLDEST = list(redis_binaries().values())[-1:]
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def on_cluster(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two workers on three primaries."""
    if not OLDEST:
        pytest.skip("no redis-server found")
    data = tmp_path_factory.mktemp("cluster") / "data"
    with running_cluster(OLDEST[0]) as cluster:
        where = {"PARLEY_REDIS_URL": cluster.url, "PARLEY_WORKERS": "2", "PARLEY_PACE": "100"}
        server = Server(data, oracle_model, None, **TESTING, **where)
        try:
            yield server.start()
        finally:
            server.close()


@pytest.mark.slow
async def test_on_a_cluster_two_tabs_ask_stop_and_reload(on_cluster: Server) -> None:
    async with at_both(on_cluster) as (first, second):
        session = await first.new_session()
        await second.reply("session.subscribe", session_id=session)
        settings = {**GREEDY, "max_output_tokens": 20}
        short = await first.ask(session, oracle_word(7), settings=settings)
        for tab in (first, second):
            assert (await tab.done(short)).final == oracle_answer(7, 20)

        long = await first.ask(session, oracle_word(0), settings=GREEDY)
        known = await second.deltas(long, 3)
        second.cut()
        await second.closed()
        async with Client(on_cluster) as reloaded:
            resumed = asyncio.create_task(resume(reloaded, session, long, known))
            await reloaded.next(TEXT)
            await reloaded.send("stop", session_id=session)
            answers = [await resumed, await first.done(long)]
        assert [status_of(answer) for answer in answers] == [("cancelled", "client_cancelled")] * 2
        assert answers[0].final == answers[1].final
        assert oracle_answer(0, 3000).startswith(answers[0].final)
        await first.wait(lambda: is_stored(first, long))
    messages = on_cluster.get_json(f"/v1/sessions/{session}/messages")["messages"]
    assert [m["content"][0]["text"] for m in messages[1::2]] == [
        oracle_answer(7, 20),
        answers[0].final,
    ]


async def test_on_a_cluster_sessions_of_every_node_are_listed_and_deleted(
    on_cluster: Server,
) -> None:
    async with Client(on_cluster) as client:
        sessions = [await client.new_session() for _ in range(12)]
        listed = on_cluster.get_json("/v1/sessions?limit=50")["sessions"]
        assert set(sessions) <= {session["id"] for session in listed}
        for session in sessions:
            await client.reply("session.delete", session_id=session)
        listed = on_cluster.get_json("/v1/sessions?limit=50")["sessions"]
        assert not set(sessions) & {session["id"] for session in listed}


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    if not OLDEST:
        pytest.skip("no redis-server found")
    with running_sentinels(OLDEST[0]) as guarded:
        yield guarded


@pytest.mark.row("R7")
@pytest.mark.slow
async def test_an_answer_goes_on_while_a_sentinel_promotes_the_replica(
    guarded: Guarded, new_server: Callable[..., Server]
) -> None:
    where = {"PARLEY_REDIS_URL": guarded.url, "PARLEY_WORKERS": "2"}
    server = new_server(**TESTING, **where)
    async with at_both(server) as (owner, other):
        session = await owner.new_session()
        await other.reply("session.subscribe", session_id=session)
        settings = {**GREEDY, "max_output_tokens": 400}
        response = await owner.ask(session, oracle_word(0), settings=settings)
        await other.deltas(response, 5)
        pid = guarded.primary.redis.pid
        assert pid is not None
        server.history.fault("kill -9 of the primary; its replica may lack the last writes")
        os.kill(pid, signal.SIGKILL)
        for tab in (owner, other):
            await tab.next("connection.degraded")
            await tab.next("connection.restored")
        for tab in (owner, other):
            assert (await tab.done(response)).final == oracle_answer(0, 400)
        await other.wait(lambda: is_stored(other, response))
        assert guarded.primary_port() == guarded.replica.port
        assert stored_text(server, session) == oracle_answer(0, 400)
        await next_question_works(owner, session)
