"""One request over one connection: what is sent, whom it is sent to, and what may come back."""

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from server.engines.remote.wire.address import RemoteAddress
from server.engines.remote.wire.exchange import CUT, Call, Exchange, Whole, ask, message_of
from server.engines.remote.wire.problems import (
    BadStatus,
    Broken,
    Misfit,
    RemoteProblem,
    Silent,
    Unreachable,
)
from tests.helpers.patience import PATIENCE

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@asynccontextmanager
async def serving(
    *pieces: bytes, trust: ssl.SSLContext | None = None, stays_open: bool = False
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that answers every request with these bytes: its port, and what it was sent."""
    sent: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            sent.append(head + await reader.readexactly(int(length or 0)))
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            if stays_open:
                await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=trust)
    yield server.sockets[0].getsockname()[1], sent
    server.close()


async def problem_of(answer: Awaitable[bytes]) -> str:
    with pytest.raises(RemoteProblem) as raised:
        await answer
    return str(raised.value)


async def test_what_is_closed_while_its_connection_comes_is_never_sent() -> None:
    async with serving(OK) as (port, sent):
        exchange = Exchange(RemoteAddress(f"http://127.0.0.1:{port}"), Call("/x"), Whole())
        exchange.close()
        await exchange.send()
        assert not exchange.was_sent
        await ask(RemoteAddress(f"http://127.0.0.1:{port}"), Call("/after"), PATIENCE)
    assert [each.split(b" ")[1] for each in sent] == [b"/after"]


async def test_a_call_is_one_request_with_its_body_and_key(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(" secret \n")
    async with serving(OK) as (port, sent):
        address = RemoteAddress(f"http://127.0.0.1:{port}/deep", key_file=key)
        assert await ask(address, Call("/route", {"a": [1, 2]}), PATIENCE) == b"{}"
        assert await ask(address, Call("/look"), PATIENCE) == b"{}"
    head, _, body = sent[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /deep/route HTTP/1.1\r\n") and body == b'{"a":[1,2]}'
    assert b"Authorization: Bearer secret\r\n" in head and f":{port}\r\n".encode() in head
    assert sent[1].startswith(b"GET /deep/look HTTP/1.1\r\n")


def test_a_call_is_made_on_the_event_loop_of_workers_as_well() -> None:
    async def call() -> bytes:
        async with serving(OK) as (port, _):
            return await ask(RemoteAddress(f"http://127.0.0.1:{port}"), Call("/"), PATIENCE)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(call()) == b"{}"


async def test_a_key_that_changes_is_read_anew(tmp_path: Path) -> None:
    key = tmp_path / "key"
    async with serving(OK) as (port, sent):
        address = RemoteAddress(f"http://127.0.0.1:{port}", key_file=key)
        for value in ("first", "second"):
            key.write_text(value)
            await ask(address, Call("/"), PATIENCE)
    assert [b"Bearer first" in sent[0], b"Bearer second" in sent[1]] == [True, True]


@pytest.mark.parametrize("content", ["", "two\nlines", "not ASCII: ü", "x" * 5000, None])
async def test_a_file_without_a_key_is_refused_by_name(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)
    address = RemoteAddress("http://127.0.0.1:1", key_file=file)
    with pytest.raises(Misfit, match=str(file)) as refused:
        await ask(address, Call("/"), PATIENCE)
    assert content is None or not content or content not in str(refused.value)


async def test_a_key_that_is_repeated_is_not_told(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret")
    head = b"HTTP/1.1 401 No\r\nContent-Length: 14\r\n\r\n"
    async with serving(head + b"secret is none") as (port, _):
        address = RemoteAddress(f"http://127.0.0.1:{port}", key_file=key)
        problem = await problem_of(ask(address, Call("/"), PATIENCE))
    assert problem == "status 401: *** is none"


async def test_a_reply_that_is_compressed_is_none() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"
    async with serving(head) as (port, sent):
        problem = await problem_of(ask(RemoteAddress(f"http://127.0.0.1:{port}"), Call("/"), 9))
    assert "compressed" in problem and b"Accept-Encoding: identity" in sent[0]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirects_are_not_followed(status: int) -> None:
    async with serving(OK) as (elsewhere, sent):
        there = f"Location: http://127.0.0.1:{elsewhere}/\r\n"
        head = f"HTTP/1.1 {status} Moved\r\n{there}Content-Length: 0\r\n\r\n"
        async with serving(head.encode()) as (port, _):
            problem = await problem_of(
                ask(RemoteAddress(f"http://127.0.0.1:{port}"), Call("/"), PATIENCE)
            )
    assert problem == (
        f"status {status}: it refers to another address, and redirects are not followed"
    )
    assert sent == []


async def test_a_reply_has_a_limit() -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    async with serving(head, *[b"x" * 1000] * 30) as (port, _):
        address = RemoteAddress(f"http://127.0.0.1:{port}")
        with pytest.raises(Broken, match="more than 9000 bytes"):
            await ask(address, Call("/"), PATIENCE, max_bytes=9000)


@pytest.mark.parametrize("is_uv", [False, True])
@pytest.mark.parametrize("end", [b"0\r\n\r\n", b""])
def test_a_reply_in_many_small_pieces_leaves_others_their_turns(end: bytes, is_uv: bool) -> None:
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def call() -> bytes | str:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        async with serving(head + b"1\r\nx\r\n" * 20_000 + end) as (port, _):
            address = RemoteAddress(f"http://127.0.0.1:{port}")
            others = asyncio.create_task(take_turns())
            try:
                return await ask(address, Call("/"), PATIENCE)
            except Broken as problem:
                return str(problem)
            finally:
                others.cancel()

    loop_factory = uvloop.new_event_loop if is_uv else None
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        said = runner.run(call())
    assert said == (b"x" * 20_000 if end else CUT)
    assert turns > 70


async def test_a_head_has_a_limit() -> None:
    lines = [b"X-%d: %s\r\n" % (number, b"x" * 1000) for number in range(100)]
    async with serving(b"HTTP/1.1 200 OK\r\n", *lines) as (port, _):
        with pytest.raises(Broken):
            await ask(RemoteAddress(f"http://127.0.0.1:{port}"), Call("/"), PATIENCE)


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 200",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhal",
    ],
)
async def test_what_is_no_whole_reply_is_broken(reply: bytes) -> None:
    async with serving(reply) as (port, _):
        with pytest.raises(Broken):
            await ask(RemoteAddress(f"http://127.0.0.1:{port}"), Call("/"), PATIENCE)


@pytest.mark.parametrize("reply", [b"", OK[:-1], b"HTTP/1.1 200 OK\r\nContent-Le"])
async def test_a_reply_that_was_cut_off_is_said_to_be(reply: bytes) -> None:
    """As by an engine that was killed: it is what an operator reads of it."""
    async with serving(reply) as (port, _):
        problem = await problem_of(
            ask(RemoteAddress(f"http://127.0.0.1:{port}"), Call("/"), PATIENCE)
        )
    assert problem == "the connection was closed before the end of the reply"


async def test_one_that_says_nothing_is_silent() -> None:
    async with serving(stays_open=True) as (port, _):
        with pytest.raises(Silent, match=r"/slow has not answered for 0\.05 s"):
            await ask(RemoteAddress(f"http://127.0.0.1:{port}"), Call("/slow"), 0.05)


async def test_where_nobody_listens_it_is_unreachable() -> None:
    async with serving(OK) as (port, _):
        pass
    with pytest.raises(Unreachable, match=f"http://127.0.0.1:{port}: "):
        await ask(RemoteAddress(f"http://127.0.0.1:{port}"), Call("/"), PATIENCE)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"error":{"message":"no such model"}}', "no such model"),
        (b'{"error":"no such model"}', "no such model"),
        (b'{"detail":"no such model"}', "no such model"),
        (b'{"message":"no such model","code":404}', "no such model"),
        (b"<html>no such page</html>", "<html>no such page</html>"),
        (b"[1]", "[1]"),
    ],
)
def test_an_error_says_what_it_says_in_whatever_form(content: bytes, message: str) -> None:
    assert message_of(404, content) == message


async def test_what_an_error_says_is_one_printable_line() -> None:
    body = b'{"error":"two\\nlines \\u001b[2J"}'
    reply = b"HTTP/1.1 418 No\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    async with serving(reply) as (port, _):
        with pytest.raises(BadStatus) as refused:
            await ask(RemoteAddress(f"http://127.0.0.1:{port}"), Call("/"), PATIENCE)
    assert str(refused.value) == "status 418: two lines \\x1b[2J"


# ---- certificates -------------------------------------------------------------------------------


Certify = Callable[[str], tuple[ssl.SSLContext, Path]]


@pytest.fixture(scope="module")
def certify(tmp_path_factory: pytest.TempPathFactory) -> Certify:
    """A server's context with a certificate of its own for an address, and the file of that."""

    def certify(host: str) -> tuple[ssl.SSLContext, Path]:
        folder = tmp_path_factory.mktemp("certificate")
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "engine")])
        today = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(today - datetime.timedelta(days=1))
            .not_valid_after(today + datetime.timedelta(days=1))
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))]), critical=False
            )
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        pem, encoding = folder / "engine.pem", serialization.Encoding.PEM
        private = key.private_bytes(
            encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        pem.write_bytes(certificate.public_bytes(encoding))
        (folder / "key.pem").write_bytes(private)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem, folder / "key.pem")
        return context, pem

    return certify


async def test_a_certificate_that_the_operator_trusts_is_trusted(certify: Certify) -> None:
    context, file = certify("127.0.0.1")
    async with serving(OK, trust=context) as (port, _):
        address = RemoteAddress(f"https://127.0.0.1:{port}", ca_file=file)
        assert await ask(address, Call("/"), PATIENCE) == b"{}"


@pytest.mark.parametrize("is_other_host", [False, True])
async def test_nothing_is_sent_to_one_whose_certificate_is_not_to_be_trusted(
    certify: Certify, is_other_host: bool
) -> None:
    context, file = certify("127.0.0.2" if is_other_host else "127.0.0.1")
    async with serving(OK, trust=context) as (port, sent):
        address = RemoteAddress(
            f"https://127.0.0.1:{port}", ca_file=file if is_other_host else None
        )
        with pytest.raises(Unreachable, match="its certificate is not trusted"):
            await ask(address, Call("/", {"secret": 1}), PATIENCE)
    assert sent == []


async def test_a_file_without_certificates_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    with pytest.raises(Misfit, match=str(file)):
        await ask(RemoteAddress("https://127.0.0.1:1", ca_file=file), Call("/"), PATIENCE)
