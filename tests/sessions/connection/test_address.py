"""Redis urls: three kinds of them, and refusals that never show a password."""

from __future__ import annotations

import pytest
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection

from sessions.connection.address import RedisAddress
from sessions.connection.client import RedisClient
from sessions.model.errors import StoreUnavailable


def test_one_server() -> None:
    address = RedisAddress.parse("redis://me:pw@example:7000/3")
    assert (address.kind, address.nodes, address.connection_class) == ("server", (), Connection)
    assert (address.options["host"], address.options["port"], address.options["db"]) == (
        "example",
        7000,
        3,
    )
    assert RedisAddress.parse("rediss://example").connection_class is SSLConnection
    unix = RedisAddress.parse("unix:///tmp/a%20b?db=1")
    assert unix.connection_class is UnixDomainSocketConnection
    assert unix.options["path"] == "/tmp/a b"


def test_sentinels() -> None:
    address = RedisAddress.parse(
        "redis+sentinel://me:p%2Fw@one,two:27000,[::1]:27001/main/2?sentinel_password=spw"
    )
    assert address.kind == "sentinel" and address.service == "main"
    assert address.nodes == (("one", 26379), ("two", 27000), ("::1", 27001))
    assert (address.options["password"], address.options["db"]) == ("p/w", 2)
    assert address.sentinel_options == {"password": "spw"}
    tls = RedisAddress.parse("rediss+sentinel://one/main?ssl_cert_reqs=none")
    assert tls.connection_class is SSLConnection


def test_a_cluster() -> None:
    address = RedisAddress.parse("redis+cluster://:pw@one:7000,two")
    assert (address.kind, address.nodes) == ("cluster", (("one", 7000), ("two", 6379)))
    assert address.options["password"] == "pw"
    connection = address.connection(("two", 6379), protocol=3, timeout_seconds=1.0)
    assert (connection.host, connection.password) == ("two", "pw")


@pytest.mark.row("B64")
@pytest.mark.parametrize(
    "url",
    [
        "http://u:hush@host",
        "redis:/u:hush@host",
        "u:hush@host:6379",
        "",
        "redis://u:hush@host:port",
        "redis://u:hu/sh@host:6379",
        "redis://u:hush@host:70000",
        "redis://u:hush@host/x",
        "redis://u:hush@host?nonsense=hush",
        "redis://u:hush@[host",
        "redis+sentinel://u:hush@host:26379",
        "redis+sentinel://u:hush@host:x/main",
        "redis+cluster://u:hush@host:0",
        "redis+cluster://u:hush@host:7000/1",
        "redis+cluster://u:hush@",
        "unix+cluster://u:hush@host",
    ],
)
def test_a_malformed_url_is_refused_in_one_line_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"Redis|sentinel") as refused:
        RedisClient(url)
    assert "hu" not in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.row("B64")
def test_no_repr_shows_the_password_of_redis() -> None:
    assert "hush" not in repr(RedisAddress.parse("redis+cluster://u:hush@host"))


@pytest.mark.row("B64")
@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster", "redis+sentinel"])
async def test_an_outage_does_not_show_the_password_of_redis(scheme: str) -> None:
    service = "/main" if scheme == "redis+sentinel" else ""
    client = RedisClient(f"{scheme}://user:hush@127.0.0.1:1{service}")
    with pytest.raises(StoreUnavailable) as away:
        await client.call("PING")
    error: BaseException | None = away.value
    while error is not None:
        assert "hush" not in str(error)
        error = error.__cause__
    await client.close()
