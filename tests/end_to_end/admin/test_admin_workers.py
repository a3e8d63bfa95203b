"""What admins see of workers and do to them."""

import asyncio
from typing import Any

from tests.end_to_end.clients.http_client import Http, code_of
from tests.end_to_end.clients.operators import audit
from tests.end_to_end.site.harness import Server
from tests.end_to_end.site.wiring import at_both
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import oracle_word


async def listed(admin: Http, served: set[str]) -> list[dict[str, Any]]:
    """The list as soon as it is of these: heartbeats tell of who came, and of who has died."""
    async with asyncio.timeout(PATIENCE):
        while True:
            replicas = (await admin.get("/v1/admin/replicas")).json()["replicas"]
            ready = {replica["id"] for replica in replicas if replica["engine"] == "ok"}
            if len(ready) == len(replicas) and ready == served:
                return list(replicas)
            await asyncio.sleep(0.05)


async def test_workers_are_listed_with_their_figures(two_workers: Server, admin: Http) -> None:
    async with at_both(two_workers) as clients:
        served = {client.frames[0]["replica"] for client in clients}
    replicas = await listed(admin, served)
    for replica in replicas:
        assert (replica["draining"], replica["engine"]) == (0, "ok")
        assert replica["pid"] > 0 and replica["host"] and replica["version"]
    stats = (await admin.get("/v1/admin/stats?range=24h")).json()
    assert stats["live"]["replicas"] == 2 and stats["range"] == "24h"
    assert len(stats["at"]) == len(stats["series"]["connections"]) == 288
    assert any(value is not None for value in stats["series"]["kv_usage"])
    for span, number in (("7d", 336), ("30d", 360)):
        long = (await admin.get(f"/v1/admin/stats?range={span}")).json()
        assert len(long["at"]) == len(long["series"]["connections"]) == number
    assert code_of(await admin.get("/v1/admin/stats?range=1y")) == (400, "invalid_field")
    health = (await admin.get("/v1/admin/health")).json()
    assert {one["id"] for one in health["replicas"]} == served and health["replica"] in served
    assert (health["redis"]["state"], health["roll_age_ms"] < 1000) == ("ok", True)
    assert [engine["state"] for engine in health["engines"]] == ["ready"]


async def test_a_worker_that_is_told_to_drain_restarts_and_its_answers_go_on(
    two_workers: Server, admin: Http
) -> None:
    async with at_both(two_workers) as (client, other):
        replica = next(f for f in client.frames if f["type"] == "connection.ready")["replica"]
        session_id = await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": 60}
        response_id = await client.ask(session_id, oracle_word(0), settings=settings)
        await other.reply("session.subscribe", session_id=session_id)
        path = f"/v1/admin/replicas/{replica}/drain"
        assert (await admin.post(path, {"reason": "upgrade"})).status_code == 202
        await client.next("connection.draining")
        answer = await other.done(response_id)
        assert answer.done is not None and answer.done["response"]["status"] == "incomplete"
        assert await client.closed() == 1012
    assert (await audit(admin, replica))[0] == "replica.drain"
