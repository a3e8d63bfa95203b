"""`ManagedServer`: one MCP server from its first use on: started, asked, ended, started again.

A task of its own holds the session; calls are other tasks, which use it. However a server
behaves, what leaves here is a result or a `ToolError` with a line of ours.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import mcp_types as types
import structlog
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from server import __version__
from server.tools.configuration import ServerConfig
from server.tools.messages import ToolError, ToolResult, Trouble
from server.tools.servers.bounds import TOO_LARGE, BoundedStream
from server.tools.servers.catalogue import (
    MAX_TOOLS,
    Catalogue,
    OfferedTool,
    make_catalogue,
    one_line,
    parse_arguments,
)
from server.tools.servers.http_transport import http_streams
from server.tools.servers.stdio_transport import StdioServer
from sessions.background import Background, start

logger = structlog.get_logger("server")

START_SECONDS = 60.0  # some programs are downloaded by the command that starts them
LIST_SECONDS = 20.0
PING_SECONDS = 5.0  # after a call that has taken too long
FRESH_SECONDS = 300.0  # how long a list counts
MIN_LIST_SECONDS = 1.0  # between two lists, however often it says that they change
MAX_PAGES = 16
MAX_CALLS = 16  # at a time
STABLE_SECONDS = 60.0  # a server that was up for so long owes nothing to those before it
MAX_DELAY_SECONDS = 60.0
SESSION_OVER = "Connection closed"  # as the package says that nothing more can be asked
_FOREVER = float("inf")


class ManagedServer:
    """`pids` are those of all programs; `mark` is in the environment of this one's."""

    def __init__(
        self,
        config: ServerConfig,
        mark: str,
        pids: set[int],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self._mark = mark
        self._pids = pids
        self._now = now
        self._task: asyncio.Task[None] | None = None
        self._session: ClientSession | None = None
        self._settled = asyncio.Event()  # it is up, or its start has failed
        self._over: asyncio.Event | None = None  # of the session that is up
        self._why = ""  # it is down
        self._program: StdioServer | None = None
        self._num_failures = 0  # in a row
        self._may_start_at = 0.0
        self._up_at = 0.0
        self._catalogue = Catalogue({})
        self._listed_at = -_FOREVER
        self._listing: asyncio.Task[None] | None = None
        self._is_stale = False
        self._num_calls = 0
        self._background = Background(Exception)  # of a library, about what a stranger answers

    @property
    def is_up(self) -> bool:
        return self._session is not None

    # ---- what it offers -------------------------------------------------------------------------

    async def catalogue(self) -> Catalogue:
        """Starts it if need be. Cancelling the wait harms nothing. Raises `ToolError`."""
        await self._session_up()
        now = self._now()
        is_old = self._is_stale or now - self._listed_at > FRESH_SECONDS
        if is_old and now - self._listed_at > MIN_LIST_SECONDS and self._listing is None:
            self._listing = start(self._list_again())
        if self._listing is not None:
            await asyncio.shield(self._listing)
        return self._catalogue

    @property
    def trouble(self) -> Trouble | None:
        """What its list lacks."""
        left_out = self._catalogue.left_out
        return Trouble(self.config.name, "tool_left_out", left_out) if left_out else None

    async def _list_again(self) -> None:
        try:
            if self._session is not None:
                await self._list(self._session)
        except (TimeoutError, MCPError, ValidationError, RuntimeError) as error:
            # What it offered before stays; its calls say what is wrong.
            logger.warning("tools not listed", server=self.config.name, error=_line(error))
            self._listed_at = self._now()
        finally:
            self._listing = None

    async def _list(self, session: ClientSession) -> None:
        self._is_stale = False
        found: list[types.Tool] = []
        cursor: str | None = None
        seen: set[str] = set()
        async with asyncio.timeout(LIST_SECONDS):
            for _ in range(MAX_PAGES):
                params = types.PaginatedRequestParams(cursor=cursor)
                # Not `list_tools`, which keeps what it is given for ever.
                page = await session.send_request(
                    types.ListToolsRequest(params=params), types.ListToolsResult
                )
                found += page.tools
                cursor = page.next_cursor
                if cursor is None or cursor in seen or len(found) > MAX_TOOLS:
                    break
                seen.add(cursor)
        self._catalogue = make_catalogue(self.config, found, is_whole=len(found) <= MAX_TOOLS)
        self._listed_at = self._now()

    # ---- a call ---------------------------------------------------------------------------------

    async def call(self, name: str, arguments: bytes) -> ToolResult:
        """Raises `ToolError`. Cancelled, it tells the server so, and waits for nothing."""
        if self._num_calls >= MAX_CALLS:
            raise ToolError("tool_busy", f"{self.config.name} runs {MAX_CALLS} calls already")
        self._num_calls += 1
        try:
            return await self._call(name, arguments)
        finally:
            self._num_calls -= 1

    async def _call(self, name: str, arguments: bytes) -> ToolResult:
        has_asked = False
        try:
            async with asyncio.timeout(self.config.timeout_seconds):
                offered = await self._find(name)
                if offered is None:
                    raise ToolError("tool_unknown", f"{self.config.name} has no such tool")
                given = parse_arguments(arguments, offered.tool.input_schema)
                session = await self._session_up()
                has_asked = True
                return await self._ask(session, offered.original, given)
        except TimeoutError:
            seconds = f"{self.config.timeout_seconds:g} s"
            if not has_asked:
                raise self._unavailable(f"is not ready within {seconds}") from None
            self._background.spawn(self._end_if_hung())
            raise ToolError("tool_timeout", f"no result within {seconds}") from None

    async def _find(self, name: str) -> OfferedTool | None:
        """A list that is read again delays no call of a tool that is known."""
        if self.is_up and (known := self._catalogue.tools.get(name)) is not None:
            return known
        return (await self.catalogue()).tools.get(name)

    async def _ask(
        self, session: ClientSession, original: str, arguments: dict[str, Any]
    ) -> ToolResult:
        request = types.CallToolRequest(
            params=types.CallToolRequestParams(name=original, arguments=arguments)
        )
        try:
            # Not `call_tool`, which runs the server's own schema on what the server answers.
            answer = await session.send_request(request, types.CallToolResult)
        except MCPError as error:
            raise self._error_of(error) from None
        except ValidationError:
            raise ToolError("tool_failed", "what the server has answered is no result") from None
        except RuntimeError:
            raise ToolError("tool_failed", "the server cannot be asked") from None
        return self._result(answer)

    def _error_of(self, error: MCPError) -> ToolError:
        message = error.error.message
        if TOO_LARGE in message:
            return ToolError("tool_result_too_large", TOO_LARGE)
        if error.error.code == types.CONNECTION_CLOSED:
            if message == SESSION_OVER:
                self._end("its connection has ended")
            return ToolError("tool_failed", "the server ended during the call")
        if self.config.url is not None and message == "Session terminated":
            self._end("its session is over")  # the next call begins another one
            return self._unavailable("has ended the session; the call was not taken")
        return ToolError("tool_failed", one_line(message) or f"error {error.error.code}")

    def _result(self, answer: types.CallToolResult) -> ToolResult:
        parts = [_part(block) for block in answer.content]
        if not parts and answer.structured_content is not None:
            parts = [json.dumps(answer.structured_content, ensure_ascii=False)]
        text = "\n".join(parts)
        num_bytes = len(text.encode(errors="replace"))
        if num_bytes > self.config.max_result_bytes:
            raise ToolError(
                "tool_result_too_large",
                f"the result has {num_bytes} bytes; at most {self.config.max_result_bytes}",
            )
        return ToolResult(text=text, is_error=answer.is_error)

    async def _end_if_hung(self) -> None:
        """After a call that took too long: a server that does not answer a ping either goes."""
        session, over = self._session, self._over
        if session is None:
            return
        try:
            async with asyncio.timeout(PING_SECONDS):
                await session.send_ping()
        except TimeoutError:
            if over is self._over:
                if self._program is not None:
                    self._program.is_hung = True
                self._end("it hangs")
        except (MCPError, ValidationError, RuntimeError):
            pass  # an answer, or its end, which is noticed elsewhere

    # ---- its life -------------------------------------------------------------------------------

    async def _session_up(self) -> ClientSession:
        if self._session is None:
            if self._task is None:
                if self._now() < self._may_start_at:
                    raise self._unavailable(self._why)
                self._settled.clear()
                self._task = start(self._run())
            await self._settled.wait()
        if self._session is None:
            raise self._unavailable(self._why)
        return self._session

    def _unavailable(self, why: str) -> ToolError:
        return ToolError("tool_server_unavailable", f"{self.config.name}: {why}")

    async def close(self) -> None:
        """End it at once, even during a call."""
        await self._background.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _leave(self) -> None:
        """No call begins any more; those that run may still be answered."""
        if self._session is not None:
            self._session = None
            self._settled.clear()

    def _end(self, why: str) -> None:
        self._leave()
        if self._over is not None and not self._over.is_set():
            self._why = why
            self._over.set()

    async def _run(self) -> None:
        self._over = asyncio.Event()
        self._why, self._up_at = "", 0.0
        try:
            async with self._streams() as (read, write):
                await self._hold(BoundedStream(read), write, self._over)
        except TimeoutError:
            self._why = self._why or f"has not come up within {START_SECONDS:g} s"
            if self._program is not None:
                self._program.is_hung = True
        except OSError as error:
            self._why = f"cannot be started: {error.strerror or 'an error'}"
        except BaseExceptionGroup as errors:
            self._why = self._why or _line(_first(errors))
        except Exception as error:  # of a library, about what a stranger has sent
            self._why = self._why or _line(error)
        finally:
            self._down()

    @contextlib.asynccontextmanager
    async def _streams(self) -> AsyncIterator[Any]:
        if self.config.url is not None:
            async with http_streams(self.config) as streams:
                yield streams
            return
        self._program = StdioServer(self.config, self._mark, self._leave, self._end, self._pids)
        async with self._program.run() as streams:
            try:
                yield streams
            except TimeoutError:
                self._program.is_hung = True
                raise

    async def _hold(self, read: BoundedStream, write: Any, over: asyncio.Event) -> None:
        info = types.Implementation(name="parley", version=__version__)
        async with ClientSession(
            read, write, message_handler=self._hear, client_info=info
        ) as session:
            async with asyncio.timeout(START_SECONDS):
                await _shake_hands(session)
            await self._list(session)
            self._session = session
            self._up_at = self._now()
            self._settled.set()
            logger.info(
                "tool server is up",
                server=self.config.name,
                tools=len(self._catalogue.tools),
                left_out=self._catalogue.left_out,
            )
            await over.wait()

    async def _hear(self, message: types.ServerNotification | Exception) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._is_stale = True

    def _down(self) -> None:
        """The last thing of each run."""
        is_stable = self._up_at > 0 and self._now() - self._up_at >= STABLE_SECONDS
        self._num_failures = 0 if is_stable else self._num_failures + 1
        delay = min(2.0 ** (self._num_failures - 1), MAX_DELAY_SECONDS) if self._num_failures else 0
        self._may_start_at = self._now() + delay
        self._session = self._over = self._task = None
        self._why = self._why or "it has ended"
        said = one_line(self._program.last_words) if self._program is not None else ""
        self._program = None
        self._settled.set()
        logger.warning(
            "tool server is down",
            server=self.config.name,
            error=self._why,
            stderr=said,
            starts_again_after_seconds=delay,
        )


async def _shake_hands(session: ClientSession) -> None:
    """As all servers know it; with those that know only the newest protocol, as that has it."""
    try:
        await session.initialize()
    except MCPError as error:
        if error.error.code not in (types.METHOD_NOT_FOUND, types.UNSUPPORTED_PROTOCOL_VERSION):
            raise
        await session.discover()


def _part(block: types.ContentBlock) -> str:
    """Texts as they are; of everything else that it is there."""
    match block:
        case types.TextContent(text=text):
            return text
        case types.ImageContent(mime_type=kind) | types.AudioContent(mime_type=kind):
            return f"[{one_line(block.type, 16)} of type {one_line(kind, 64)}, not passed on]"
        case types.ResourceLink(uri=uri):
            return f"[resource {one_line(str(uri))}, not passed on]"
        case types.EmbeddedResource(resource=resource):
            return f"[resource {one_line(str(resource.uri))}, not passed on]"
    return "[something else, not passed on]"


def _line(error: BaseException) -> str:
    """What happened, in words of ours where the library's could hold a stranger's."""
    if isinstance(error, MCPError):
        if error.error.code == types.CONNECTION_CLOSED:
            return "it has ended before it was ready"
        return f"it refuses: {one_line(error.error.message)}"
    if isinstance(error, ValidationError):
        return "what it has answered is not of the protocol"
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    return f"it cannot be reached ({type(error).__name__})"


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    first: BaseException = errors
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
