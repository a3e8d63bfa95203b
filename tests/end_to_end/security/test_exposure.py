"""What others can reach, see and use up: processes, ports, addresses, caches and limits."""

import asyncio
import json
import stat
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from tests.end_to_end.clients.http_client import Http, admin_token
from tests.end_to_end.clients.operators import new_user
from tests.end_to_end.frames.raw import TEXT, RawSocket, ask, frame, log_in, request, upgrade
from tests.end_to_end.site.harness import Client, Server, other_user
from tests.helpers.tiny_model import oracle_answer, oracle_word

PROXY = "127.0.0.8"
PER_ADDRESS = 20
PER_USER = 16
ORIGIN = "https://chat.example"


def processes(server: Server) -> list[psutil.Process]:
    assert server.process is not None
    parent = psutil.Process(server.process.pid)
    return [parent, *parent.children(recursive=True)]


@pytest.fixture(scope="module")
def strict(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the limits of an exposed address, behind a proxy."""
    server = Server(
        tmp_path_factory.mktemp("strict") / "data",
        oracle_model,
        PARLEY_PACE="200",
        PARLEY_MAX_CONNECTIONS_PER_USER=str(PER_USER),
        PARLEY_MAX_CONNECTIONS_PER_ADDRESS=str(PER_ADDRESS),
        PARLEY_MAX_HANDSHAKES_PER_S="20",
        PARLEY_MAX_ACTIVE_RESPONSES_PER_USER="4",
        PARLEY_MAX_MESSAGES_PER_S="20",
        PARLEY_TRUSTED_PROXIES=PROXY,
        PARLEY_ALLOWED_ORIGINS=ORIGIN,
    )
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
async def bystander(strict: Server) -> AsyncIterator[Client]:
    """Another user's answer, from before the attack until after it: whole and in order."""
    async with Client(other_user(strict)) as client:
        session = await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": 16_000}
        response = await client.ask(session, oracle_word(0), settings=settings)
        before = (await client.deltas(response, 1)).num_deltas
        yield client
        await client.deltas(response, before + 2)
        await client.send("stop", response_id=response)
        assert oracle_answer(0, 16_000).startswith((await client.done(response)).final)


# ---- processes ----------------------------------------------------------------------------------


@pytest.mark.row("P1")
def test_the_only_open_port_is_that_of_the_workers_on_loopback(server: Server) -> None:
    listening = {
        (connection.laddr.ip, connection.laddr.port)
        for process in processes(server)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {("127.0.0.1", urlsplit(server.url).port)}


@pytest.mark.row("P21")
def test_others_cannot_reach_the_sockets_between_our_processes(server: Server) -> None:
    paths = {
        Path(connection.laddr)
        for process in processes(server)
        for connection in process.net_connections("unix")
        if connection.laddr and not str(connection.laddr).startswith("@")
    }
    assert len({path.parent for path in paths}) >= 2  # Redis and the engine core
    for path in paths:
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700, path


@pytest.mark.row("P30")
def test_no_process_leaves_core_dumps_files_for_others_or_secrets_in_its_arguments(
    server: Server,
) -> None:
    secrets = [(server.data_dir / name).read_text().strip() for name in ("token", "admin-token")]
    for process in processes(server):
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        (core,) = (line for line in limits.splitlines() if line.startswith("Max core file size"))
        assert core.split()[4:6] == ["0", "0"]
        assert "Umask:\t0077" in Path(f"/proc/{process.pid}/status").read_text()
        command_line = " ".join(process.cmdline())
        assert not any(secret in command_line for secret in secrets)
    files = [path for path in server.data_dir.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if path.stat().st_mode & 0o077]


def test_no_secret_of_the_operator_stays_in_the_environment_of_a_child(
    new_server: Callable[..., Server],
) -> None:
    names = ("PARLEY_TOKEN", "PARLEY_ADMIN_TOKEN", "PARLEY_REDIS_SECRET")
    server = new_server(**{name: name.lower() * 3 for name in names})
    assert server.process is not None
    _, *children = processes(server)
    environments = [Path(f"/proc/{child.pid}/environ").read_text() for child in children]
    assert len(environments) >= 3  # Redis, which writes its title over it, the core and a worker
    assert sum("PARLEY_PORT" in environment for environment in environments) >= 2
    assert not [name for name in names if any(name in one for one in environments)]


# ---- caches and queues --------------------------------------------------------------------------


async def cached_tokens(client: Client, text: str) -> int:
    response = await client.ask(
        await client.new_session(), text, settings={"temperature": 0, "max_output_tokens": 2}
    )
    answer = await client.done(response)
    return next(
        int(f["cached_tokens"]) for f in answer.frames if f["type"] == "response.in_progress"
    )


@pytest.mark.row("P13")
async def test_nobody_finds_the_prompts_of_others_in_the_prefix_cache(server: Server) -> None:
    prompt = "".join(oracle_word(7000 + number) for number in range(200))
    async with Client(server) as alice, Client(other_user(server)) as bob:
        assert await cached_tokens(alice, prompt) == 0
        assert await cached_tokens(alice, prompt) >= 160
        assert await cached_tokens(bob, prompt) == 0
        assert await cached_tokens(bob, prompt) >= 160


@pytest.mark.row("P31")
async def test_the_next_user_finds_no_prompts_of_a_deleted_user_in_the_cache(
    server: Server,
) -> None:
    prompt = "".join(oracle_word(8000 + number) for number in range(200))
    async with Http(server, admin_token(server)) as admin:
        first = await new_user(admin, name="Ada")
        async with Client(server, token=first["token"]) as client:
            assert await cached_tokens(client, prompt) == 0
            assert await cached_tokens(client, prompt) >= 160
            assert (await admin.ask("DELETE", f"/v1/admin/users/{first['id']}")).status_code == 204
            await client.closed()
        second = await new_user(admin, name="Ada")
        async with Client(server, token=second["token"]) as client:
            assert await cached_tokens(client, prompt) == 0


# ---- connections --------------------------------------------------------------------------------


async def opened(server: Server, source: str, headers: dict[str, str | list[str] | None]) -> str:
    """One handshake, and the first thing that comes after it: a frame's type, or a code."""
    async with RawSocket(server, source) as socket:
        assert (await socket.upgrade(headers)).status == 101
        answer = await socket.next_or_close()
        return answer["type"] if isinstance(answer, dict) else " ".join(map(str, answer))


@pytest.mark.row("B16")
async def test_the_connections_of_a_user_and_of_an_address_are_limited(
    strict: Server, bystander: Client
) -> None:
    source = "127.0.1.1"
    admin: dict[str, str | list[str] | None] = {
        "Authorization": f"Bearer {other_user(strict).token}"
    }
    sockets = []
    for number in range(PER_ADDRESS):
        sockets.append(socket := RawSocket(strict, source))
        await socket.__aenter__()
        await socket.upgrade(None if number < PER_USER else admin)
        await socket.next("connection.ready")
        if number == PER_USER - 1:
            refused = await opened(strict, "127.0.1.2", {})
            assert refused == "4429 too_many_connections;retry_after_ms=5000"
    assert (await opened(strict, source, admin)).startswith("4429 ")
    assert await opened(strict, "127.0.1.2", admin) == "connection.ready"
    for socket in sockets:
        await socket.__aexit__()


async def handshakes(server: Server, source: str, forwarded: list[str]) -> list[str]:
    changes = [{"X-Forwarded-For": address, "Authorization": None} for address in forwarded]
    return await asyncio.gather(*(opened(server, source, {**changed}) for changed in changes))


@pytest.mark.row("P15")
async def test_handshakes_are_limited_by_address(strict: Server, bystander: Client) -> None:
    unknown: dict[str, str | list[str] | None] = {"Authorization": None}
    ends = await asyncio.gather(*(opened(strict, "127.0.1.3", unknown) for _ in range(300)))
    codes = Counter(end.split()[0] for end in ends)
    assert codes.keys() == {"4401", "4429"}
    assert codes["4401"] >= 40  # the burst, and what a second brings
    assert (await opened(strict, "127.0.1.4", unknown)).startswith("4401 ")


@pytest.mark.row("P28")
async def test_a_forwarded_address_counts_only_from_a_trusted_proxy(
    strict: Server, bystander: Client
) -> None:
    others = [f"10.0.0.{number}" for number in range(250)]
    through = await handshakes(strict, PROXY, others)
    assert {answer.split()[0] for answer in through} == {"4401"}
    # One who claims to be others is one; so is one whose address a proxy adds to what it says.
    assert "4429" in {a.split()[0] for a in await handshakes(strict, "127.0.1.5", others)}
    spoofed = [f"{address}, 10.9.9.9" for address in others]
    assert "4429" in {a.split()[0] for a in await handshakes(strict, PROXY, spoofed)}


@pytest.mark.row("P5")
async def test_the_host_name_of_an_allowed_origin_is_a_name_of_ours(strict: Server) -> None:
    for host, status in (("chat.example", 200), ("evil.example", 421)):
        answer = await ask(
            strict, request(strict, path="/healthz", headers=[("Host", host)], host=False)
        )
        assert answer.status == status


@pytest.mark.row("P4")
async def test_behind_a_proxy_the_allowed_origin_opens_a_socket_and_no_other_does(
    strict: Server,
) -> None:
    # Under the name that it has at the proxy's address, which is without a port.
    cookie = "parley-80=" + (await log_in(strict)).partition("=")[2]
    for origin, status in ((ORIGIN, 101), ("https://evil.example", 403)):
        changed: dict[str, str | list[str] | None] = {
            "Authorization": None,
            "Cookie": cookie,
            "Host": "chat.example",
            "Origin": origin,
        }
        assert (await ask(strict, upgrade(strict, changed))).status == status


# ---- messages -----------------------------------------------------------------------------------


@pytest.mark.row("B35")
async def test_a_client_that_sends_too_much_hears_when_to_go_on(
    strict: Server, bystander: Client
) -> None:
    async with RawSocket(strict, "127.0.2.1") as socket:
        await socket.upgrade()
        await socket.next("connection.ready")
        create = {"type": "response.create", "session_id": "ses_" + "A" * 22, "input": "hi"}
        await socket.send(frame(TEXT, json.dumps(create | {"idempotency_key": "k"}).encode()) * 50)
        errors = [(await socket.next("error"))["error"] for _ in range(50)]
        refused = [error for error in errors if error["code"] == "rate_limited"]
        assert 1 <= len(refused) <= 10
        assert all(error["retry_after_ms"] > 0 for error in refused)


@pytest.mark.row("B35")
async def test_a_client_that_goes_on_sending_too_much_is_closed_with_4429(
    strict: Server, bystander: Client
) -> None:
    async with RawSocket(strict, "127.0.2.2") as socket:
        await socket.upgrade()
        await socket.send(frame(TEXT, b'{"type":"stop","response_id":"resp_x"}') * 10_000)
        assert await socket.closed() == (4429, "rate_limited;retry_after_ms=5000")


@pytest.mark.row("B36")
async def test_a_question_to_a_busy_session_or_queue_is_refused_and_not_stored(
    strict: Server, bystander: Client
) -> None:
    settings = {"temperature": 0, "max_output_tokens": 16_000}
    async with Client(strict) as client:
        session = await client.new_session()
        first = await client.ask(session, oracle_word(1), settings=settings)
        await client.deltas(first, 1)
        create = {"session_id": session, "input": oracle_word(2), "settings": settings}
        busy = await client.reply("response.create", **create, idempotency_key="busy")
        assert busy["error"]["code"] == "response_in_progress"
        codes = []
        for number in range(5):
            key = {"idempotency_key": f"queued{number}", "on_busy": "queue"}
            answer = await client.reply("response.create", **create, **key)
            codes.append(answer.get("error", {}).get("code"))
        assert codes[:3] == [None] * 3  # four of a user are active, queued ones among them
        assert codes[3:] == ["rate_limited"] * 2
        messages = strict.get_json(f"/v1/sessions/{session}/messages")["messages"]
        assert len([m for m in messages if m["role"] == "user"]) == 4  # of what was accepted
        for _ in range(4):
            await client.send("stop", session_id=session)
        for response in list(client.answers):
            await client.done(response)


@pytest.mark.row("B36")
async def test_a_fifth_message_does_not_wait_in_a_session(server: Server) -> None:
    settings = {"temperature": 0, "max_output_tokens": 16_000}
    async with Client(server) as client:
        session = await client.new_session()
        first = await client.ask(session, oracle_word(1), settings=settings)
        await client.deltas(first, 1)
        codes = []
        for number in range(6):
            frame = await client.reply(
                "response.create",
                session_id=session,
                input=oracle_word(2),
                settings=settings,
                idempotency_key=f"queued{number}",
                on_busy="queue",
            )
            codes.append(frame.get("error", {}).get("code"))
        assert codes == [None] * 4 + ["queue_full"] * 2
        await client.send("stop", session_id=session)
        for response in list(client.answers):
            await client.done(response)


@pytest.mark.row("B37")
async def test_a_connection_follows_at_most_64_sessions(server: Server) -> None:
    async with Client(server) as client:
        sessions = [await client.new_session() for _ in range(64)]
        refused = await client.reply("session.create", idempotency_key="one-more")
        assert refused["error"]["code"] == "too_many_subscriptions"
        again = await client.reply("session.subscribe", session_id=sessions[0])
        assert again["type"] == "session.subscribed"
        await client.reply("session.unsubscribe", session_id=sessions[0])
        created = await client.reply("session.create", idempotency_key="one-more")
        assert created["replayed"] is False  # what was refused was not stored


async def test_a_resumed_answer_takes_no_place_once_it_has_ended(server: Server) -> None:
    settings = {"temperature": 0, "max_output_tokens": 2}
    async with Client(server) as asker:
        ended = []
        for _ in range(3):
            session = await asker.new_session()
            ended.append(await asker.ask(session, oracle_word(0), settings=settings))
            await asker.done(ended[-1])
    async with Client(server) as client:
        for response in ended:
            position = {"response_id": response, "fence": 1, "after_sequence_number": 0}
            await client.send("response.resume", **position)
            await client.done(response)
        for _ in range(62):
            await client.new_session()
