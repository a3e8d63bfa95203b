"""The proxies of docs/operations.md, configured as printed there, in front of the real server."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from copy import copy
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import httpx2
import pytest
from playwright.async_api import Browser, expect

from server.api.rest.event_stream import HEARTBEAT_SECONDS
from server.config.settings import Settings
from server.worker.middleware import LARGER_BODIES
from server.worker.uvicorn_server import KEEP_ALIVE_SECONDS
from tests.end_to_end.browser.test_browser import answers, ask, login_url, needs_chromium
from tests.end_to_end.browser.test_browser import browser as browser
from tests.end_to_end.clients.http_client import Http, ask_and_follow, code_of
from tests.end_to_end.frames.raw import Answer, RawSocket, login_path, request
from tests.end_to_end.site.harness import Client, Server
from tests.end_to_end.site.proxies import (
    LANGUAGES,
    Port,
    Site,
    SiteTransport,
    printed,
    printed_environment,
    program,
    running,
)
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import oracle_answer, oracle_word

PER_ADDRESS = 8
LONG = {"temperature": 0, "max_output_tokens": 16_000}
SHORT = {"temperature": 0, "max_output_tokens": 5}
IMPORT = "/v1/sessions/import"
JSON = {"Content-Type": "application/json"}
FOREIGN = "https://evil.example"
# Heads that servers have read in different ways; some of them find a second request in the body.
AMBIGUOUS = [
    "POST /login HTTP/1.1\r\nContent-Length: {size}\r\nTransfer-Encoding: chunked",
    "POST /login HTTP/1.1\r\nContent-Length: {size}\r\nContent-Length: 5",
    "POST /login HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: {size}",
    "POST /login HTTP/1.1\r\nContent-Length: {size}\r\nTransfer-Encoding : chunked",
    "POST /login HTTP/1.1\r\nContent-Length: {size}\r\nTransfer-Encoding: xchunked",
    "POST /login HTTP/1.1\r\nContent-Length: {size}\r\nTransfer-Encoding:\r\n chunked",
    "POST /login HTTP/1.1\r\nContent-Length: {size}\r\nConnection: Content-Length",
    "POST /login HTTP/1.0\r\nContent-Length: {size}\r\nTransfer-Encoding: chunked",
    "GET /v1/ws HTTP/1.1\r\nContent-Length: {size}\r\nConnection: Upgrade\r\nUpgrade: websocket",
]


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    """One for each proxy: the server must know its addresses before they are there."""
    held = {kind: Port() for kind in LANGUAGES}
    yield {kind: port.number for kind, port in held.items()}
    for port in held.values():
        port.close()


@pytest.fixture(scope="module")
def behind(
    oracle_model: Path, tmp_path_factory: pytest.TempPathFactory, ports: dict[str, int]
) -> Iterator[Server]:
    """One server behind all of them, with the settings that are printed."""
    environment = printed_environment()
    origin = environment["PARLEY_ALLOWED_ORIGINS"]
    origins = ",".join(f"{origin}:{port}" for port in ports.values())
    environment |= {"PARLEY_ALLOWED_ORIGINS": origins, "PARLEY_PACE": "200"}
    environment |= {"PARLEY_MAX_CONNECTIONS_PER_ADDRESS": str(PER_ADDRESS)}
    data = tmp_path_factory.mktemp("behind") / "data"
    server = Server(data, oracle_model, None, **environment)
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture(scope="module", params=LANGUAGES)
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ports: dict[str, int]
) -> Iterator[Site]:
    kind = request.param
    missing = [name for name in (kind, "openssl") if program(name) is None]
    if missing and os.environ.get("CI") != "true":
        pytest.skip(f"not installed: {' and '.join(missing)} (apt install {' '.join(missing)})")
    behind: Server = request.getfixturevalue("behind")
    parley = urlsplit(behind.url).netloc
    with running(kind, tmp_path_factory.mktemp(kind), ports[kind], parley) as site:
        yield site


@pytest.fixture
def server(behind: Server, site: Site) -> Server:
    """The server under the address of the site."""
    assert behind.get("/readyz")[0] == 200
    there = copy(behind)
    there.url = site.url
    return there


async def test_behind_a_proxy_a_login_link_brings_a_secure_cookie_that_opens_the_chat(
    server: Server, behind: Server, site: Site
) -> None:
    path = await login_path(behind)
    async with client_of(site) as client:
        page = await client.get(path)
        assert page.status_code == 200
        assert '<form method="post"' in page.text
        form = urlencode({"code": path.partition("code=")[2]})
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        foreign = await client.post("/login", content=form, headers=headers | {"Origin": FOREIGN})
        assert code_of(foreign) == (403, "forbidden")
        done = await client.post("/login", content=form, headers=headers | {"Origin": site.url})
        assert (done.status_code, done.headers["location"]) == (303, "/")
        cookie, *attributes = done.headers["set-cookie"].split("; ")
        assert cookie.startswith("__Host-parley=")
        assert {"secure", "httponly", "path=/"} <= {one.lower() for one in attributes}
        assert (await client.get("/")).status_code == 200
        assert (await client.get("/v1/sessions")).status_code == 200  # by the cookie alone
        changed = await client.post("/v1/sessions", headers={"Origin": FOREIGN}, json={})
        assert code_of(changed) == (403, "forbidden")
    for origin, status in ((site.url, 101), (FOREIGN, 403)):
        browsers: dict[str, str | list[str] | None]
        browsers = {"Authorization": None, "Cookie": cookie, "Origin": origin}
        async with RawSocket(server, **site.way) as socket:
            assert (await socket.upgrade(browsers)).status == status


@pytest.mark.browser
@needs_chromium
async def test_behind_a_proxy_a_browser_logs_in_asks_and_stops(
    browser: Browser, behind: Server, site: Site
) -> None:
    context = await browser.new_context(ignore_https_errors=True)
    page = await context.new_page()
    await page.goto(login_url(behind).replace(behind.url, site.url))
    await page.wait_for_url(site.url + "/**")
    (cookie,) = await context.cookies()
    assert (cookie["name"], cookie["secure"]) == ("__Host-parley", True)
    await ask(page, oracle_word(0))
    await expect(answers(page).last).to_contain_text(oracle_word(20).strip())
    await page.keyboard.press("Escape")
    await expect(answers(page).last).to_contain_text("Stopped")
    await context.close()


async def test_behind_a_proxy_a_websocket_carries_an_answer_and_its_stop(
    server: Server, site: Site
) -> None:
    async with Client(server, **site.way) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings=LONG)
        await client.deltas(response, 3)
        await client.send("stop", response_id=response)
        answer = await client.done(response)
        assert answer.done is not None
        assert answer.done["response"]["status"] == "cancelled"
        assert oracle_answer(0, 16_000).startswith(answer.final)


async def test_behind_a_proxy_an_event_comes_when_it_is_sent_and_not_with_the_next(
    server: Server, site: Site
) -> None:
    """A question that waits hears so at once, and hears no more until the one before it ends."""
    async with Client(server, **site.way) as client:
        session = await client.new_session()
        first = await client.ask(session, oracle_word(0), settings=LONG)
        stream = ask_and_follow(
            server,
            session,
            oracle_word(9),
            settings=SHORT,
            on_busy="queue",
            transport=SiteTransport(site),
        )
        async with stream:
            second = (await stream.next("response.created"))["response"]["id"]
            assert client.answers[first].done is None, "the first answer has ended meanwhile"
            await client.send("stop", response_id=first)
            assert (await stream.done(second)).final == oracle_answer(9, 5)
        await client.done(first)


async def test_behind_a_proxy_a_file_of_sixteen_mebibytes_comes_in_and_out(
    server: Server, site: Site
) -> None:
    file = full_file()
    async with Http(server, transport=SiteTransport(site)) as http:
        made = await http.ask("POST", IMPORT, content=file, headers=JSON)
        assert made.status_code == 201, made.text
        session = made.json()["id"]
        exported = (await http.get(f"/v1/sessions/{session}/export")).json()
        assert texts_of(exported) == texts_of(json.loads(file))
        await http.ask("DELETE", f"/v1/sessions/{session}")


async def test_behind_a_proxy_a_file_that_is_too_large_is_refused_in_our_own_words(
    server: Server, site: Site
) -> None:
    """By the size that is announced, and where none is, by what has come."""
    file = full_file() + b" "
    length = ("Content-Length", str(len(file)))
    head = request(server, "POST", IMPORT, [*bearer(server), *JSON.items(), length])
    refused = await answer_to_the_unread(server, site, head + file)
    assert (refused.status, refused.error["code"]) == (413, "payload_too_large")
    async with Http(server, transport=SiteTransport(site)) as http:
        refusal = await http.ask("POST", IMPORT, content=parts_of(file), headers=JSON)
        assert code_of(refusal) == (413, "payload_too_large")


async def test_behind_a_proxy_clients_are_counted_by_their_own_addresses(
    server: Server, site: Site
) -> None:
    """No matter what they say about where they come from."""
    async with AsyncExitStack() as stack:

        async def come_from(source: str, claimed: str) -> str:
            socket = await stack.enter_async_context(RawSocket(server, source, **site.way))
            claims = {name: claimed for name in ("X-Forwarded-For", "X-Real-IP")}
            forwarded = {"Forwarded": f"for={claimed}", "X_Forwarded_For": claimed}
            dropped = {"Connection": "Upgrade, X-Forwarded-For"}  # as if that were for a hop
            assert (await socket.upgrade(claims | forwarded | dropped)).status == 101
            answer = await socket.next_or_close()
            return str(answer["type"] if isinstance(answer, dict) else answer[0])

        claims = [f"10.0.0.{number}" for number in range(PER_ADDRESS + 1)]
        came = [await come_from("127.0.3.1", claimed) for claimed in claims]
        assert came == ["connection.ready"] * PER_ADDRESS + ["4429"]
        assert await come_from("127.0.3.2", "127.0.3.1") == "connection.ready"


@pytest.mark.parametrize("head", AMBIGUOUS, ids=lambda head: head.replace("\r\n", "; "))
async def test_behind_a_proxy_no_request_is_answered_with_what_another_client_hid_in_its_own(
    server: Server, site: Site, head: str
) -> None:
    """Proxy and server agree on where a body ends, or refuse it, also on connections they share."""
    hidden = request(server, path="/hidden")
    body = b"0\r\n\r\n" + hidden
    line, *fields = head.format(size=len(body)).split("\r\n")
    lines = [line, f"Host: {urlsplit(site.url).netloc}", *fields]
    async with RawSocket(server, **site.way) as attacker:
        answer = await attacker.ask("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        assert answer.status in (400, 403, 426, 501)  # as a bad one, or on its merits
    async with Http(server, transport=SiteTransport(site)) as other:
        answers = [await other.get("/healthz") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200] * 3


def test_the_printed_limits_are_those_of_an_exposed_address() -> None:
    printed = {
        name.removeprefix("PARLEY_").lower(): value for name, value in printed_environment().items()
    }
    assert (
        Settings.model_validate(printed).limits
        == Settings.model_validate({"host": "0.0.0.0"}).limits
    )


@pytest.mark.parametrize("kind", LANGUAGES)
def test_no_printed_timeout_cuts_what_is_alive(kind: str) -> None:
    """A websocket that is idle has its pings, a stream its comments."""
    silence = max(Settings.model_fields["ping_seconds"].default, HEARTBEAT_SECONDS)
    patience = seconds_of(
        r"(?:proxy_read_timeout|timeout client|timeout server|timeout tunnel)", kind
    )
    assert len(patience) == {"nginx": 1, "caddy": 0, "haproxy": 2}[kind]
    assert all(seconds >= 2 * silence for seconds in patience)


def test_the_printed_proxies_give_a_kept_connection_up_before_the_server_does() -> None:
    """Otherwise a request may meet the end of its connection."""
    assert "keepalive" not in printed("nginx")  # it keeps none by default
    (caddy,) = seconds_of("keepalive", "caddy")
    (haproxy,) = seconds_of("timeout http-request", "haproxy")  # also between two of a client
    assert max(caddy, haproxy) < KEEP_ALIVE_SECONDS


def seconds_of(option: str, kind: str) -> list[int]:
    """What the printed configuration says after an option, each time."""
    return [int(seconds) for seconds in re.findall(rf"\b{option} (\d+)s", printed(kind))]


def client_of(site: Site) -> httpx2.AsyncClient:
    """Keeps cookies and sends them where they belong."""
    return httpx2.AsyncClient(
        base_url=site.url, transport=SiteTransport(site), timeout=PATIENCE, trust_env=False
    )


def full_file() -> bytes:
    """A conversation as large as an import may be, to the byte."""
    text = "word " * 24_000  # 120 kB
    messages = [
        {
            "id": str(number),
            "parent_id": str(number - 1) if number else None,
            "role": "user",
            "content": [{"type": "text", "text": f"{number} {text}"}],
        }
        for number in range(130)
    ]
    file = {"format": "parley.session", "version": 1, "messages": messages}
    return json.dumps(file).encode().ljust(LARGER_BODIES[IMPORT])


async def answer_to_the_unread(server: Server, site: Site, data: bytes) -> Answer:
    """What comes while we still send, as browsers do.

    Caddy resets the connection half a second after such an answer: a client that the machine has
    halted just then asks again.
    """
    for _ in range(5):
        async with RawSocket(server, **site.way) as socket:
            sending = asyncio.create_task(socket.send(data))
            answer = await socket.answer()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        if answer.status != 0:
            return answer
    raise AssertionError("cut five times without an answer")


def texts_of(file: dict[str, object]) -> list[str]:
    messages = file["messages"]
    assert isinstance(messages, list)
    return [message["content"][0]["text"] for message in messages]


async def parts_of(data: bytes, size: int = 64 * 1024) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def bearer(server: Server) -> list[tuple[str, str]]:
    return [("Authorization", f"Bearer {server.token}")]
