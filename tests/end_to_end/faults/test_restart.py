"""Parley is stopped or killed and started again: what was there is there, what ran goes on."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.end_to_end.frames.client_model import Frame
from tests.end_to_end.frames.raw import ask, log_in, request
from tests.end_to_end.site.deaths import (
    everything_is_killed,
    supervisor_gets_two_signals,
    supervisor_is_killed,
)
from tests.end_to_end.site.harness import TESTING, Client, Server
from tests.end_to_end.site.owned_answer import NUM_TOKENS, SETTINGS, resume
from tests.end_to_end.site.recovery import next_question_works, stored_text
from tests.helpers.tiny_model import oracle_answer, oracle_word

TOKEN = "chosen-by-the-operator-1234"
UNASKED = "what-the-file-says-is-not-asked"


@pytest.fixture(scope="module")
def _chosen(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("chosen") / "data"
    data.mkdir()
    (data / "token").write_text(UNASKED)
    chosen = {"PARLEY_TOKEN": TOKEN, "PARLEY_PACE": "100"}
    server = Server(data, oracle_model, None, **TESTING, **chosen)
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def server(_chosen: Server) -> Server:
    """A server with a token that the operator chose; it runs, even where a test has ended it."""
    if not _chosen.is_alive:
        _chosen.start()
    return _chosen


@dataclass
class Stopped:
    """What there was when a server was stopped, and how that went; it has been started again."""

    cookie: str
    session: str
    close_code: int
    status: int
    text: str
    kinds: set[str]


@pytest.fixture(scope="module")
def stopped(_chosen: Server) -> Stopped:
    return asyncio.run(stop_in_mid_answer(_chosen))


async def stop_in_mid_answer(server: Server) -> Stopped:
    if not server.is_alive:
        await asyncio.to_thread(server.start)
    cookie = await log_in(server)
    async with Client(server) as client:
        session = await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": 80}
        response = await client.ask(session, oracle_word(0), settings=settings)
        await client.deltas(response, 3)
        stopping = asyncio.create_task(asyncio.to_thread(server.stop))
        answer = await client.done(response)
        close_code = await client.closed()
        status = await stopping
    await asyncio.to_thread(server.start)
    kinds = {frame["type"] for frame in client.frames}
    return Stopped(cookie, session, close_code, status, answer.final, kinds)


def test_sigterm_lets_a_running_answer_finish(stopped: Stopped) -> None:
    assert stopped.text == oracle_answer(0, 80)
    assert "connection.draining" in stopped.kinds
    assert (stopped.close_code, stopped.status) == (1012, 0)


async def test_everything_is_restarted_and_the_chat_is_there(
    stopped: Stopped, server: Server
) -> None:
    assert stored_text(server, stopped.session) == oracle_answer(0, 80)
    async with Client(server) as client:
        await client.send("session.subscribe", session_id=stopped.session)
        frame: Frame = await client.next("session.subscribed")
        assert [m["role"] for m in frame["snapshot"]["messages"]] == ["user", "assistant"]
        await next_question_works(client, stopped.session)


async def test_a_chosen_token_and_a_cookie_survive_a_restart(
    stopped: Stopped, server: Server
) -> None:
    # The port is part of the cookie's name, and this start has picked another one.
    cookie = f"parley-{urlsplit(server.url).port}={stopped.cookie.partition('=')[2]}"
    for header in (("Authorization", f"Bearer {TOKEN}"), ("Cookie", cookie)):
        answer = await ask(server, request(server, path="/v1/sessions", headers=[header]))
        listed = [session["id"] for session in json.loads(answer.body)["sessions"]]
        assert stopped.session in listed
    log = server.log(None)
    for secret in (TOKEN, stopped.cookie.partition("=")[2]):
        assert secret not in log


async def test_where_a_token_is_chosen_that_of_the_file_is_none(server: Server) -> None:
    headers = [("Authorization", f"Bearer {UNASKED}")]
    assert (await ask(server, request(server, path="/v1/sessions", headers=headers))).status == 401


@pytest.mark.row("S5", "S10")
@pytest.mark.parametrize(
    "die",
    [
        everything_is_killed,
        pytest.param(supervisor_is_killed, marks=pytest.mark.slow),
        pytest.param(supervisor_gets_two_signals, marks=pytest.mark.slow),
    ],
)
async def test_next_start_goes_on_after_any_kill(
    server: Server, die: Callable[[Server], Awaitable[None]]
) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(1000), settings=SETTINGS)
        known = await client.deltas(response, 10)
        await die(server)
        await client.closed()
    assert server.process is not None
    await asyncio.to_thread(server.process.wait, 20)
    await asyncio.to_thread(server.start)
    async with Client(server) as client:
        answer = await resume(client, session, response, known)
        assert answer.final == oracle_answer(1000, NUM_TOKENS)
