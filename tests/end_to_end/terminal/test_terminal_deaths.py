"""`parley chat` shows an answer whole, whatever dies in the middle of it."""

from collections.abc import Callable

import pytest

from tests.end_to_end.clients.terminal import terminal
from tests.end_to_end.site.harness import TESTING, Client, Server
from tests.helpers.tiny_model import oracle_answer, oracle_word

CTRL_D, ENTER = "\x04", "\r"
NUM_TOKENS = 500


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["server.worker", "engine.core", "redis-server"])
async def test_an_answer_is_whole_though_it_dies(
    new_server: Callable[..., Server], victim: str
) -> None:
    server = new_server(**TESTING)
    async with Client(server) as client:
        stop = [oracle_word(NUM_TOKENS + 1).strip()]
        session_id = await client.new_session(settings={"temperature": 0, "stop": stop})
    async with terminal(server, "chat", "--session", session_id) as screen:
        await screen.shows("›")
        screen.press(oracle_word(0) + ENTER)
        await screen.shows(r"0010\d")
        server.kill_child(victim)
        await screen.shows("— finished · ")
        assert screen.printed(oracle_word(1)) == oracle_answer(0, NUM_TOKENS)
        screen.press(CTRL_D)
