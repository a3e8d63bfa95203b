"""What a Redis url means: one server, a primary that sentinels know, or a cluster.

Errors of a url never show a part of it that may hold the password.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

Kind = Literal["server", "sentinel", "cluster"]
Node = tuple[str, int]  # host and port

DEFAULT_PORTS: Final[dict[Kind, int]] = {"server": 6379, "sentinel": 26379, "cluster": 6379}
SCHEMES: Final[dict[str, tuple[Kind, str]]] = {  # → kind, and the scheme of one server's url
    "redis": ("server", "redis"),
    "rediss": ("server", "rediss"),
    "unix": ("server", "unix"),
    "redis+sentinel": ("sentinel", "redis"),
    "rediss+sentinel": ("sentinel", "rediss"),
    "redis+cluster": ("cluster", "redis"),
    "rediss+cluster": ("cluster", "rediss"),
}


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A parsed url. `options` hold the credentials and are in no repr."""

    kind: Kind
    nodes: tuple[Node, ...]  # sentinels, or some nodes of the cluster; empty for one server
    service: str  # the primary's name among the sentinels
    connection_class: type[AbstractConnection]
    options: dict[str, Any] = field(repr=False)
    sentinel_options: dict[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> RedisAddress:
        """Raises `ValueError` with one line that holds nothing secret."""
        kind, scheme = _kind_of(url)
        try:
            parts = urlsplit(url)
        except ValueError:
            raise ValueError("the Redis url is malformed") from None
        credentials, _, hosts = parts.netloc.rpartition("@")
        nodes: tuple[Node, ...] = ()
        service = ""
        path, query = parts.path, dict(parse_qsl(parts.query))
        sentinel_options = {
            name.removeprefix("sentinel_"): query.pop(name)
            for name in ("sentinel_username", "sentinel_password")
            if name in query
        }
        if kind != "server":
            nodes = tuple(_node(host, DEFAULT_PORTS[kind]) for host in hosts.split(","))
            hosts = _joined(nodes[0])
        if kind == "sentinel":
            service, _, path = path.removeprefix("/").partition("/")
            service = unquote(service)
            if not service:
                raise ValueError("a sentinel url names its service: redis+sentinel://host/service")
        netloc = f"{credentials}@{hosts}" if credentials else hosts
        server = SplitResult(scheme, netloc, path, urlencode(query), "")
        connection_class, options = _server(server.geturl() if kind != "server" else url)
        if kind == "cluster" and options.get("db"):
            raise ValueError("a Redis cluster has database 0 alone")
        return cls(kind, nodes, service, connection_class, options, sentinel_options)

    async def connect(
        self, node: Node | None = None, *, protocol: int, timeout_seconds: float
    ) -> AbstractConnection:
        """A connection, as `connection` makes it, that is open."""
        connection = self.connection(node, protocol=protocol, timeout_seconds=timeout_seconds)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]  # redis-py has no types there
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    def connection(
        self, node: Node | None = None, *, protocol: int, timeout_seconds: float
    ) -> AbstractConnection:
        """An unconnected connection; `node` None for the url's one server."""
        place = {} if node is None else {"host": node[0], "port": node[1]}
        return self.connection_class(
            **{**self.options, **place, **_behaviour(protocol, timeout_seconds)}
        )

    def sentinel_connection(self, node: Node, *, timeout_seconds: float) -> AbstractConnection:
        """An unconnected connection to a sentinel."""
        options = {k: v for k, v in self.options.items() if k.startswith("ssl")}
        options |= {**self.sentinel_options, "host": node[0], "port": node[1]}
        return self.connection_class(**options, **_behaviour(2, timeout_seconds))


def _behaviour(protocol: int, timeout_seconds: float) -> dict[str, Any]:
    return {
        "protocol": protocol,
        "decode_responses": False,  # token ids are binary
        "socket_timeout": None,  # the timeout of a batch is around all its reads
        "socket_connect_timeout": timeout_seconds,
        "retry": Retry(NoBackoff(), 0),
        "driver_info": None,  # CLIENT SETINFO came with 7.2
    }


def _kind_of(url: str) -> tuple[Kind, str]:
    scheme = url.partition("://")[0].lower()
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES if not name.startswith("rediss+"))
        raise ValueError(f"a Redis url begins with one of {known}")
    return SCHEMES[scheme]


def _node(text: str, default_port: int) -> Node:
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]"):  # `[::1]` ends in a host
        host, port = text, str(default_port)
    host = unquote(host).strip("[]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("the Redis url names a host or port that cannot be one")
    return host, int(port)


def _joined(node: Node) -> str:
    host, port = node
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _server(url: str) -> tuple[type[AbstractConnection], dict[str, Any]]:
    """What redis-py makes of the url of one server."""
    try:
        pool = ConnectionPool.from_url(url)
        options = dict(pool.connection_kwargs)
        path = unquote(urlsplit(url).path).strip("/")
        if pool.connection_class in (Connection, SSLConnection) and path and not path.isdigit():
            raise ValueError("not a database")
        pool.connection_class(**{**options, **_behaviour(3, 1.0)})
    except (ValueError, TypeError):
        # Not their words: urllib and redis-py quote what may be a piece of the password.
        raise ValueError(
            "the Redis url has a host, port, database or option that is none"
        ) from None
    return pool.connection_class, options
