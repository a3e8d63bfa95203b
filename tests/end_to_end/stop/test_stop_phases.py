"""Stops, the wish, in each phase of an answer: queued, in prefill, before its first token.

One worker, one stop at a time. Stops that race something are in `test_races.py`, the ways of a stop
to another worker in `test_stop_paths.py`, stops in one packet with other frames in
`test_one_packet.py`, and a stop in any moment at all in tests/server/commands/.
"""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.site.harness import Client, Server
from tests.end_to_end.site.recovery import blocks_come_back
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import oracle_answer, oracle_word

NUM_LONG_WORDS = 9_000


@pytest.fixture(scope="module")
def narrow(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose engine decodes one answer at a time."""
    folder = tmp_path_factory.mktemp("narrow") / "data"
    server = Server(folder, oracle_model, PARLEY_MAX_NUM_SEQS="1", PARLEY_PACE="100")
    try:
        yield server.start()
    finally:
        server.close()


@pytest.mark.row("C2")
async def test_a_queued_answer_leaves_the_queue_at_once(narrow: Server) -> None:
    async with Client(narrow) as client:
        running_session, waiting_session = await client.new_session(), await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": 150}
        running = await client.ask(running_session, oracle_word(0), settings=settings)
        await client.deltas(running, 1)
        waiting = await client.ask(waiting_session, oracle_word(500))
        queued = await client.next("response.queued")
        assert (queued["response_id"], queued["reason"]) == (waiting, "engine")
        await client.send("stop", response_id=waiting)
        stopped = await client.done(waiting)
        assert stopped.done is not None and stopped.final == ""
        assert stopped.done["response"]["status"] == "cancelled"
        assert stopped.done["response"]["usage"]["output_tokens"] == 0
        assert client.answers[running].done is None
        assert (await client.done(running)).final == oracle_answer(0, 150)


async def test_a_stop_during_the_prefill_ends_it_between_two_chunks(narrow: Server) -> None:
    free = narrow.metric("parley_kv_blocks_free")
    async with Client(narrow) as client, asyncio.timeout(PATIENCE):
        for number in itertools.count(1):  # a prompt of its own: no prefix is known
            session = await client.new_session()
            response = await client.ask(session, oracle_word(number) * NUM_LONG_WORDS)
            await client.next("response.in_progress")
            await client.send("stop", response_id=response)
            answer = await client.done(response)
            if answer.final == "":
                break  # else a busy machine has let this client wait until the prompt was read
        assert answer.done is not None
        assert answer.done["response"]["status"] == "cancelled"
        assert answer.done["engine"] == "released"
    await blocks_come_back(narrow, free)


async def test_a_bare_stop_ends_everything_this_connection_watches_and_nothing_else(
    narrow: Server,
) -> None:
    async with Client(narrow) as client, Client(narrow) as stranger:
        other_session = await stranger.new_session()
        settings = {"temperature": 0, "max_output_tokens": 60}
        other = await stranger.ask(other_session, oracle_word(9), settings=settings)
        sessions = [await client.new_session() for _ in range(2)]
        mine = [await client.ask(session, oracle_word(0)) for session in sessions]
        await client.send("stop")
        for response in mine:
            answer = await client.done(response)
            assert answer.done is not None
            assert answer.done["response"]["status"] == "cancelled"
        assert (await stranger.done(other)).final == oracle_answer(9, 60)


async def test_a_stop_with_nothing_to_stop_says_so(narrow: Server) -> None:
    async with Client(narrow) as client:
        session = await client.new_session()
        error = await client.reply("stop", session_id=session)
        assert error["error"]["code"] == "response_not_found"


async def test_an_answer_is_begun_although_its_asker_vanished_at_once(narrow: Server) -> None:
    async with Client(narrow) as client:
        session = await client.new_session()
        await client.send(
            "response.create",
            session_id=session,
            idempotency_key="vanish",
            input=oracle_word(3),
            settings={"temperature": 0, "max_output_tokens": 20},
        )
        client.cut()
        await client.closed()
    async with Client(narrow) as back:
        await back.reply("session.subscribe", session_id=session)
        response = await back.ask(
            session,
            oracle_word(3),
            idempotency_key="vanish",
            settings={"temperature": 0, "max_output_tokens": 20},
        )
        answer = await back.done(response)
        assert answer.done is not None and answer.final == oracle_answer(3, 20)
    messages = narrow.get_json(f"/v1/sessions/{session}/messages")["messages"]
    assert len(messages) == 2
