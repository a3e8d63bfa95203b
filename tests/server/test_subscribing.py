"""`session.subscribe`: what was told stands, whatever the store does in the middle of it."""

from pathlib import Path

import pytest

from server import hub
from server.response_log import ResponseLog, read_log
from sessions.embedded import EmbeddedRedis
from sessions.errors import StoreUnavailable
from sessions.store import SessionStore
from tests.end_to_end.history import History
from tests.redis_server import fresh_prefix
from tests.server.in_process import Dice, LocalClient, ScriptedEngine, running_workers
from tests.tiny_model import oracle_answer, oracle_word


async def test_a_subscription_that_fails_in_the_middle_was_never_confirmed(
    redis_server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outages = [StoreUnavailable("away")]

    async def read(store: SessionStore, uid: str | None, response_id: str) -> ResponseLog:
        if outages:
            raise outages.pop()
        return await read_log(store, uid, response_id)

    engine, url, prefix = ScriptedEngine(Dice(0)), redis_server.url, fresh_prefix()
    async with running_workers(url, prefix, tmp_path, engine, Dice(0), 2) as workers:
        history = History(lambda: None)
        async with (
            LocalClient(workers[0], history) as asker,
            LocalClient(workers[1], history) as viewer,
        ):
            session = await asker.new_session()
            response = await asker.ask(session, oracle_word(5), settings={"max_output_tokens": 6})
            engine.requests[response].is_held.add("mid")
            await engine.requests[response].reached["mid"].wait()
            monkeypatch.setattr(hub, "read_log", read)
            refused = await viewer.reply("session.subscribe", session_id=session)
            assert refused["error"]["code"] == "store_unavailable"
            assert "session.subscribed" not in {frame["type"] for frame in viewer.frames}
            subscribed = await viewer.reply("session.subscribe", session_id=session)
            assert subscribed["active_responses"] == [response]
            engine.requests[response].released.set()
            assert (await viewer.done(response)).final == oracle_answer(5, 6)
