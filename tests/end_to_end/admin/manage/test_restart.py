"""An engine that an admin restarts: its answers go on, and who may not or cannot hears so."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.end_to_end.clients.http_client import Http, admin_token, code_of
from tests.end_to_end.clients.operators import audit
from tests.end_to_end.faults.test_standby import STANDBY, said
from tests.end_to_end.site.harness import Client, Server
from tests.end_to_end.site.recovery import is_stored, stored_text
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import oracle_answer, oracle_word

NewServer = Callable[..., Server]

GREEDY = {"temperature": 0, "max_output_tokens": 200}


async def engine_of(admin: Http) -> dict[str, Any]:
    (engine,) = (await admin.get("/v1/admin/health")).json()["engines"]
    return dict(engine)


async def starts_again(admin: Http, before: dict[str, Any]) -> None:
    """As the health tells it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            now = await engine_of(admin)
            if now["state"] == "ready" and now["incarnation"] != before["incarnation"]:
                return
            await asyncio.sleep(0.05)  # nobody tells of it: the console asks as well


async def answers_go_on_while_it_restarts(server: Server, admin: Http) -> None:
    engine = await engine_of(admin)
    path = f"/v1/admin/engines/{engine['name']}/restart"
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings=GREEDY)
        await client.deltas(response, 10)
        server.history.fault("restart engine.core")
        asked = await asyncio.gather(*(admin.post(path, {"reason": "upgrade"}) for _ in range(2)))
        assert sorted(answer.status_code for answer in asked) == [202, 409]
        (late,) = [answer for answer in asked if answer.status_code == 409]
        assert code_of(late) == (409, "engine_refused") and "is starting" in late.text
        answer = await client.done(response)
        assert answer.final == oracle_answer(0, 200)
        assert answer.done is not None and answer.done["response"]["restarts"] == 1
        await client.wait(partial(is_stored, client, response), "message.updated")
        assert stored_text(server, session) == answer.final
    await starts_again(admin, engine)
    assert (await audit(admin, engine["name"]))[:2] == ["engine.restart"] * 2
    assert "core died" not in server.log(None)


@pytest.mark.slow
@pytest.mark.row("E1")
async def test_an_engine_is_restarted_by_one_of_two_admins_and_its_answer_goes_on(
    new_server: NewServer,
) -> None:
    server = new_server(PARLEY_WORKERS="2")
    async with Http(server, admin_token(server)) as admin:
        await answers_go_on_while_it_restarts(server, admin)
        unknown = await admin.post("/v1/admin/engines/nobody/restart")
        assert code_of(unknown) == (404, "not_found")


@pytest.mark.slow
async def test_the_standby_core_takes_the_place_of_one_that_is_restarted(
    new_server: NewServer,
) -> None:
    server = new_server(**STANDBY)
    await said(server, "standby core is ready")
    async with Http(server, admin_token(server)) as admin:
        await answers_go_on_while_it_restarts(server, admin)
    assert "standby core takes over" in server.log(None)
