"""An older version and this one serve side by side on one Redis: no text is lost or doubled."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.end_to_end.site.deaths import everything_is_killed
from tests.end_to_end.site.harness import TESTING, Client, Server
from tests.helpers.redis_server import running_redis
from tests.helpers.tiny_model import oracle_answer, oracle_word
from tests.upgrades.older_tree import OLDER, extract_to_run
from tests.upgrades.using import begun_by

pytestmark = pytest.mark.slow

NUM_TOKENS = 200
SETTINGS = {"temperature": 0, "max_output_tokens": NUM_TOKENS}
LONG = {"temperature": 0, "max_output_tokens": 2000}
ROUNDS = 5

Hosts = tuple[Server, Server]


@pytest.fixture(scope="module", params=OLDER)
def older_tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An older version, ready to run."""
    return extract_to_run(request.param, tmp_path_factory.mktemp("tree"))


@pytest.fixture
def hosts(older_tree: Path, oracle_model: Path, tmp_path: Path) -> Iterator[Hosts]:
    """The older version and this one, each with a worker and an engine of its own."""
    with ExitStack() as stack:
        redis = stack.enter_context(running_redis())
        environment = TESTING | {"PARLEY_PACE": "100", "PARLEY_REDIS_URL": redis.url}
        older = Server(
            tmp_path / "older", oracle_model, None, PYTHONPATH=str(older_tree), **environment
        )
        older.root = older_tree
        newer = Server(tmp_path / "newer", oracle_model, older.history, **environment)
        for server in (older, newer):
            stack.callback(server.close)
            server.start()
        (worker,) = older.children("server.worker")
        assert worker.environ()["PYTHONPATH"].split(os.pathsep)[0] == str(older_tree)
        yield older, newer


async def test_both_show_the_same_text_and_either_stops_it(hosts: Hosts) -> None:
    for number in range(ROUNDS):
        for here, there in (hosts, hosts[::-1]):
            async with Client(here) as owner, Client(there) as other:
                session = await owner.new_session()
                await other.reply("session.subscribe", session_id=session)
                whole = await owner.ask(session, oracle_word(number), settings=SETTINGS)
                for viewer in (owner, other):
                    answer = await viewer.done(whole)
                    assert answer.final == oracle_answer(number, NUM_TOKENS)
                cut = await owner.ask(session, oracle_word(number), settings=LONG)
                await other.deltas(cut, 5)
                await other.send("stop", response_id=cut)
                ends = [(await viewer.done(cut)).final for viewer in (owner, other)]
                assert ends[0] == ends[1]
                assert oracle_answer(number, 2000).startswith(ends[0])


@pytest.mark.parametrize("dies", ["older", "newer"])
async def test_an_answer_goes_on_at_the_other_version(hosts: Hosts, dies: str) -> None:
    victim, heir = hosts if dies == "older" else hosts[::-1]
    async with Client(victim) as owner, Client(heir) as other:
        session = await owner.new_session()
        await other.reply("session.subscribe", session_id=session)
        response = await owner.ask(session, oracle_word(7), settings=SETTINGS)
        await other.deltas(response, 20)
        victim.history.fault("kill -9 of all of one host")
        await everything_is_killed(victim)
        assert (await other.done(response)).final == oracle_answer(7, NUM_TOKENS)
        page = heir.get_json(f"/v1/sessions/{session}/messages")
        assert page["messages"][-1]["content"][0]["text"] == oracle_answer(7, NUM_TOKENS)


@pytest.mark.row("C22")
async def test_what_waits_here_is_asked_after_an_answer_of_the_older_version(hosts: Hosts) -> None:
    """0.1.0 knows no queue: this one looks for what nobody has asked."""
    older, newer = hosts
    await what_waits_is_asked_after_an_answer(older, newer)


@pytest.mark.row("C22")
@pytest.mark.parametrize("older_tree", ["one-model"], indirect=True)
async def test_what_waits_at_the_older_version_is_asked_after_an_answer_of_this_one(
    hosts: Hosts,
) -> None:
    older, newer = hosts
    await what_waits_is_asked_after_an_answer(newer, older)


async def what_waits_is_asked_after_an_answer(answering: Server, keeping: Server) -> None:
    """Ask one server, and have what the other one keeps in the queue asked after that: once."""
    async with Client(answering) as owner, Client(keeping) as other:
        session = await owner.new_session()
        await other.reply("session.subscribe", session_id=session)
        first = await owner.ask(session, oracle_word(7), settings=SETTINGS)
        await other.deltas(first, 5)
        fields = {"session_id": session, "idempotency_key": "k", "input": oracle_word(50)}
        kept = await other.reply("queue.add", **fields, settings=SETTINGS)
        assert kept["status"] == "waiting"
        assert (await other.done(first)).final == oracle_answer(7, NUM_TOKENS)
        response = await begun_by(other, "k")
        for viewer in (owner, other):
            assert (await viewer.done(response)).final == oracle_answer(50, NUM_TOKENS)
        page = await asyncio.to_thread(answering.get_json, f"/v1/sessions/{session}/messages")
        assert len(page["messages"]) == 4
