"""A server at an address: the package's streamable HTTP, through a client with bounds.

An answer has a bound, wherever it comes from: an error, a redirect, a stream of events. Nothing is
unpacked, so that little cannot become much. Only what is asked for is opened: a stream of the
server's own would be held open for nothing, and lists are read again when they are old. Redirects
are followed within one origin alone, which is the package's rule.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx2
import msgspec
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

from server.tools.configuration import ServerConfig
from server.tools.servers.bounds import MAX_MESSAGE_BYTES, TOO_LARGE, Measure

CONNECT_SECONDS = 10.0
NOTICE_SECONDS = 5.0  # for what has no answer: a cancellation, the end of a session
MAX_REDIRECTS = 2
MAX_CONNECTIONS = 32


class _Id(msgspec.Struct):
    id: int | str | None = None


_ids = msgspec.json.Decoder(_Id)


class TooLarge(httpx2.StreamError, httpx2.SSEError):
    """Of both kinds, because the package passes on those of one kind for each way to answer."""

    def __init__(self) -> None:
        RuntimeError.__init__(self, TOO_LARGE)
        self._request = None


class _BoundedBody(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream
        self._measure = Measure()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            if self._measure.is_exceeded_by(piece):
                raise TooLarge
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Wraps the real one."""

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return httpx2.Response(405, request=request)
        try:
            # The package sends nothing else before it has an answer to one of these.
            async with asyncio.timeout(None if _is_request(request) else NOTICE_SECONDS):
                response = await self._transport.handle_async_request(request)
        except TimeoutError:
            return httpx2.Response(202, request=request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            return httpx2.Response(502, request=request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedBody(response.stream)
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


def _is_request(request: httpx2.Request) -> bool:
    """A message that is answered in its own time, which somebody else bounds."""
    try:
        return request.method == "POST" and _ids.decode(request.content).id is not None
    except msgspec.MsgspecError:
        return False


@contextlib.asynccontextmanager
async def http_streams(config: ServerConfig) -> AsyncIterator[TransportStreams]:
    """A session's streams. No proxy and no `.netrc` of the environment is used."""
    assert config.url is not None
    limits = httpx2.Limits(max_connections=MAX_CONNECTIONS)
    inner = httpx2.AsyncHTTPTransport(trust_env=False, limits=limits)
    client = httpx2.AsyncClient(
        transport=BoundedTransport(inner),
        headers={**config.headers, "accept-encoding": "identity"},
        timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),  # each call has a time of its own
        trust_env=False,
        max_redirects=MAX_REDIRECTS,
    )
    async with (
        client,
        streamable_http_client(
            config.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
        ) as streams,
    ):
        yield streams
