"""HTTP with several workers and with users of one's own: other owners, silent ones, lost rights."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.clients.http_client import Http, admin_token, ask_and_follow, code_of, follow
from tests.end_to_end.site.harness import Server
from tests.end_to_end.site.owned_answer import owner_and_other
from tests.helpers.running_time import running_time
from tests.helpers.tiny_model import oracle_answer, oracle_word

LONG = {"temperature": 0, "max_output_tokens": 2000}


@pytest.fixture(scope="module")
def pair(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two workers with the intervals of production: an owner may be silent for ten seconds."""
    data = tmp_path_factory.mktemp("pair") / "data"
    server = Server(data, oracle_model, None, PARLEY_WORKERS="2", PARLEY_PACE="100")
    try:
        yield server.start()
    finally:
        server.close()


async def test_any_worker_streams_any_answer(pair: Server) -> None:
    settings = {"temperature": 0, "max_output_tokens": 80}
    async with Http(pair) as http, owner_and_other(pair) as (owner, other, _):
        session = (await http.new_session())["id"]
        for client in (owner, other):
            await client.reply("session.subscribe", session_id=session)
        response = await owner.ask(session, oracle_word(40), settings=settings)
        streams = [follow(pair, response) for _ in range(6)]  # on whichever worker
        for stream in streams:
            await stream.__aenter__()
        for stream in streams:
            assert (await stream.done(response)).final == oracle_answer(40, 80)
            await stream.__aexit__(None, None, None)
        assert (await other.done(response)).final == oracle_answer(40, 80)


async def test_a_stop_of_a_silent_owner_is_accepted_and_carried_out(pair: Server) -> None:
    async with Http(pair) as http, owner_and_other(pair) as (owner, other, pid):
        session = (await http.new_session())["id"]
        for client in (owner, other):
            await client.reply("session.subscribe", session_id=session)
        response = await owner.ask(session, oracle_word(41), settings=LONG)
        await other.deltas(response, 3)
        os.kill(pid, signal.SIGSTOP)
        try:
            path = f"/v1/responses/{response}"
            async with Http(pair) as elsewhere:  # a new connection: to the one that can accept
                reply = await elsewhere.post(f"{path}/cancel")
            assert reply.status_code == 202
            frame = reply.json()
            assert (frame["type"], frame["owner"]) == ("response.cancelling", "silent")
            assert frame["durable"] is True and 0 < frame["lease_ends_in_ms"] <= 10_000
        finally:
            os.kill(pid, signal.SIGCONT)
        answer = await other.done(response)
        assert answer.done is not None and answer.done["response"]["status"] == "cancelled"
        async with Http(pair) as again:
            assert (await again.get(path)).json()["status"] == "cancelled"


@pytest.mark.row("C12")
async def test_a_revoked_token_ends_its_streams(pair: Server) -> None:
    async with Http(pair, admin_token(pair)) as admin:
        made = (await admin.post("/v1/admin/users", {"name": "Carol"})).json()
        uid, token = made["id"], made["token"]
        (known,) = (await admin.get(f"/v1/admin/users/{uid}")).json()["tokens"]
        async with Http(pair, token) as carol:
            session = (await carol.new_session())["id"]
            async with ask_and_follow(
                pair, session, oracle_word(42), token=token, settings=LONG
            ) as stream:
                await stream.next("response.output_text.delta")
                revoked_at = running_time()
                gone = await admin.ask("DELETE", f"/v1/admin/users/{uid}/tokens/{known['id']}")
                assert gone.status_code == 204
                error = await stream.next("error")
                assert running_time() - revoked_at < 5
            assert error["error"]["code"] == "token_invalid"
            assert code_of(await carol.get("/v1/sessions")) == (401, "token_invalid")
        assert (await admin.ask("DELETE", f"/v1/admin/users/{uid}")).status_code == 204
