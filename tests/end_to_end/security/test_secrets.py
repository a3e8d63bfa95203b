"""What must not be found anywhere: credentials in any store or log, users' words in any log."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator

import psutil
import pytest
from redis import Redis
from typer.testing import CliRunner

from server.cli import app
from server.config.masking import MASK
from tests.end_to_end.clients.http_client import Http, admin_token
from tests.end_to_end.frames.raw import RawSocket, ask, request, submit_login, upgrade
from tests.end_to_end.site.harness import TESTING, Client, Server
from tests.helpers.collector import Collector
from tests.helpers.patience import PATIENCE

SETTINGS = {"max_output_tokens": 4}


@pytest.mark.row("P7", "P27")
async def test_no_credential_is_stored_or_logged_and_no_log_holds_a_users_words(
    new_server: Callable[..., Server],
) -> None:
    server = new_server(PARLEY_WORKERS="2", PARLEY_LOG_LEVEL="debug")
    words = "canary" + os.urandom(16).hex()
    guessed = "canary" + os.urandom(16).hex()
    credentials = [server.token, admin_token(server), guessed]
    async with Http(server, admin_token(server)) as admin:
        body = {"name": "Ada", "roles": ["user", "admin"], "scopes": ["admin"]}
        user = (await admin.post("/v1/admin/users", body)).json()
        credentials.append(user["token"])
    async with Http(server, user["token"]) as http:
        code = (await http.post("/v1/login-codes")).json()
        ticket = (await http.post("/v1/ws-ticket")).json()["ticket"]
        await ask(server, request(server, path=code["path"]))
        login = await submit_login(server, code["path"])
        cookie = (login.header("set-cookie") or "").partition(";")[0].partition("=")[2]
        credentials += [code["code"], ticket, cookie]
        async with RawSocket(server) as socket:
            path = f"/v1/ws?ticket={ticket}"
            await socket.ask(upgrade(server, {"Authorization": None}, path=path))
            await socket.next("connection.ready")
    wrong = [("Authorization", f"Bearer {guessed}"), ("Cookie", f"parley={guessed}")]
    for path in ("/v1/sessions", "/v1/admin/sessions", f"/login?code={guessed}"):
        assert (await ask(server, request(server, path=path, headers=wrong))).status == 401
    async with Client(server, token=user["token"]) as client:
        session_id = await client.new_session()
        response_id = await client.ask(session_id, words, settings={**SETTINGS, "system": words})
        await client.done(response_id)
        await client.send_frame({"type": words, "event_id": "e1"})
        await client.next("error")
        await client.reply("session.update", session_id=session_id, title=words)
        # A worker that dies, and a core that dies, say more than others.
        second = await client.ask(session_id, words, settings={"max_output_tokens": 200})
        await client.deltas(second, 1)
        server.kill_child("engine.core")
        await client.done(second)
    metrics = [(await asyncio.to_thread(server.get, "/metrics"))[1] for _ in range(8)]
    with Redis.from_url(server.redis_url) as redis:
        slow = str(redis.slowlog_get(1000)).encode()
        names = b"\n".join(redis.keys())
    assert server.stop() == 0
    logs = server.log(None).encode() + (server.data_dir / "redis" / "redis.log").read_bytes()
    append_only = b"".join(
        path.read_bytes()
        for path in (server.data_dir / "redis").rglob("*")
        if path.is_file() and path.name != "redis.log"
    )
    assert words.encode() in append_only  # it is not compressed, and holds every command
    for credential in credentials:
        for place in (names, append_only, logs, slow, *metrics):
            assert credential.encode() not in place
    for place in (logs, slow, *metrics):
        assert words.encode() not in place


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


async def test_the_collectors_secrets_are_in_no_setting_log_or_process(
    new_server: Callable[..., Server], collector: Collector
) -> None:
    """Workers have them, and show them to the collector alone."""
    in_url, in_headers = (f"canary{os.urandom(12).hex()}" for _ in range(2))
    server = new_server(
        **TESTING,
        PARLEY_WORKERS="2",
        PARLEY_LOG_LEVEL="debug",
        PARLEY_OTLP_ENDPOINT=f"{collector.url}?api-key={in_url}",
        OTEL_EXPORTER_OTLP_HEADERS=f"authorization=Bearer%20{in_headers}",
        OTEL_BSP_SCHEDULE_DELAY="20",
    )
    collector.status = 400  # of which the log says a word
    async with Client(server) as client:
        session_id = await client.new_session()
        await client.done(await client.ask(session_id, "5", settings=SETTINGS))
    sent = await asyncio.to_thread(collector.wait, lambda: collector.headers, "a message")
    assert {k.lower(): v for k, v in sent[0].items()}["authorization"] == f"Bearer {in_headers}"
    async with asyncio.timeout(PATIENCE):
        while "spans cannot be sent" not in server.log(None):  # noqa: ASYNC110  (nothing tells)
            await asyncio.sleep(0.05)
    places = [server.log(None)]
    async with Http(server, admin_token(server)) as admin:
        told = (await admin.get("/v1/admin/settings")).json()["settings"]
    places.append(json.dumps(told))
    (shown,) = [one for one in told if one["name"] == "PARLEY_OTLP_ENDPOINT"]
    url = f"{collector.url}?api-key={MASK}"
    assert (shown["value"], shown["origin"]) == (url, "environment")
    environment = {"PARLEY_DATA_DIR": str(server.data_dir)}
    for words in (["settings"], ["settings", "--json"], ["settings", "--changed"]):
        ended = await asyncio.to_thread(CliRunner().invoke, app, words, env=environment)
        assert ended.exit_code == 0 and "PARLEY_OTLP_ENDPOINT" in ended.stdout
        places.append(ended.output)
    assert server.process is not None
    supervisor = psutil.Process(server.process.pid)
    places.append(" ".join(supervisor.cmdline()))
    children = supervisor.children(recursive=True)
    assert len(children) >= 4  # Redis, the core, two workers
    for child in children:
        places += [" ".join(child.cmdline()), str(child.environ())]
    for secret in (in_url, in_headers):
        assert [place for place in places if secret in place] == []
