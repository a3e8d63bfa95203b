"""The tool process: `python -m server.tools.process LISTENER CONFIG`, two descriptors.

It alone imports the package `mcp`. The supervisor starts it when a worker first connects, and holds
the other ends of its stdin and stdout: when stdin ends, so does this process with all servers,
even if its event loop hangs; on stdout it says each second that the loop goes round.
"""

import asyncio
import contextlib
import logging
import os
import resource
import socket
import sys
import threading
import time

import msgspec
import structlog

from server.telemetry.logs import configure_logs
from server.tools.calls import Calls
from server.tools.configuration import ServerConfig
from server.tools.messages import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    Call,
    Cancel,
    Done,
    Failed,
    Here,
    ListTools,
    Recall,
    Reply,
    ToolError,
    Tools,
    Where,
    encode,
    read_request,
)
from server.tools.reaping import adopt_orphans, kill_marked, reap_orphans
from server.tools.servers.managed_server import ManagedServer
from server.tools.service import ToolService
from sessions.background import Background

logger = structlog.get_logger("server")

BEAT_SECONDS = 1.0
MAX_MEMORY_BYTES = 2**30  # of ours, not of the servers; beyond it another process takes over
MAX_REQUESTS = 256  # of a worker, at a time
UNSENT_BYTES = 2 * MAX_REPLY_BYTES  # a worker that reads nothing is left
EXIT_MEMORY = 5


class ToolsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor hands over, in a file without a name: it holds secrets."""

    servers: tuple[ServerConfig, ...]
    mark: str
    log_level: str
    log_format: str


class Connection:
    """One worker. What it asks for is answered as it comes, not in turn."""

    def __init__(
        self, service: ToolService, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._service = service
        self._reader = reader
        self._writer = writer
        self._num_open = 0  # requests without an answer
        self._background = Background()

    async def serve(self) -> None:
        """Until it leaves. Calls that it has begun go on."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                request = await read_request(self._reader)
                if isinstance(request, Cancel):
                    # Not before a call that came just ahead of it: that one's task begins first.
                    loop.call_soon(self._service.cancel, request.key)
                elif self._num_open >= MAX_REQUESTS:
                    self._send(Failed(request.id, "tool_busy", "too many requests of a worker"))
                else:
                    self._num_open += 1
                    self._background.spawn(self._answer(request))
        except (EOFError, ConnectionError):
            pass
        except ValueError as error:
            logger.error("a worker said what is no request", error=str(error))
        finally:
            self._background.cancel()
            self._writer.transport.abort()

    async def _answer(self, request: Where | ListTools | Call | Recall) -> None:
        try:
            self._send(await self._reply(request))
        finally:
            self._num_open -= 1

    async def _reply(self, request: Where | ListTools | Call | Recall) -> Reply:
        match request:
            case Where(id=number):
                return Here(number, self._service.place)
            case ListTools(id=number, wait_seconds=seconds, servers=names):
                tools, troubles, known = await self._service.list_tools(seconds, names)
                return Tools(number, tuple(tools), tuple(troubles), tuple(known))
            case Call(id=number, key=key, tool=tool, arguments=arguments):
                outcome = await self._service.call(key, tool, arguments)
            case Recall(id=number, key=key, place=place):
                outcome = await self._service.recall(key, place)
        if isinstance(outcome, ToolError):
            return Failed(number, outcome.code, outcome.message, outcome.is_replayed)
        return Done(number, outcome)

    def _send(self, reply: Reply) -> None:
        try:
            frame = encode(reply, MAX_REPLY_BYTES)
        except ValueError:
            failure = Failed(reply.id, "tool_result_too_large", "the reply is too large")
            frame = encode(failure, MAX_REPLY_BYTES)
        self._writer.write(frame)
        if self._writer.transport.get_write_buffer_size() > UNSENT_BYTES:
            self._writer.transport.abort()


async def serve(config: ToolsConfig, listener: socket.socket, pids: set[int]) -> None:
    servers = [ManagedServer(one, f"{config.mark}:{one.name}:", pids) for one in config.servers]
    service = ToolService(servers, Calls(time.monotonic))

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Connection(service, reader, writer).serve()

    server = await asyncio.start_unix_server(meet, sock=listener, limit=MAX_REQUEST_BYTES)
    logger.info("tool process is up", servers=len(servers))
    async with server:
        while True:
            _beat()
            reap_orphans(pids)
            if _memory_in_use() > MAX_MEMORY_BYTES:
                logger.error("tool process takes too much memory and ends")
                kill_marked(config.mark)
                os._exit(EXIT_MEMORY)
            await asyncio.sleep(BEAT_SECONDS)


def _beat() -> None:
    with contextlib.suppress(OSError):  # a supervisor that is busy, or gone
        os.write(1, b".")


def _memory_in_use() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _end_with_supervisor(mark: str) -> None:
    """In a thread of its own, which needs no event loop."""
    while os.read(0, 4096):
        pass
    kill_marked(mark)
    os._exit(0)


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    with os.fdopen(int(sys.argv[2]), "rb") as file:
        config = msgspec.msgpack.decode(file.read(), type=ToolsConfig)
    threading.Thread(target=_end_with_supervisor, args=(config.mark,), daemon=True).start()
    os.set_blocking(1, False)
    adopt_orphans()
    configure_logs(config.log_level, config.log_format, "tools")
    for name in ("mcp", "client", "httpx2", "httpcore2"):
        # They log tracebacks, with a stranger's bytes in them.
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    asyncio.run(serve(config, listener, set()))


if __name__ == "__main__":
    main()
