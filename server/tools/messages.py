"""What workers and the tool process say to each other, and the errors that a call can end with.

A frame is its length in four bytes and a message in msgpack. Neither end reads a frame that is
longer than its bound. The codes of `ToolError` are stable: callers store them with an answer.
"""

import asyncio
from typing import Any

import msgspec

LENGTH_BYTES = 4
MAX_REQUEST_BYTES = 2**20
MAX_REPLY_BYTES = 16 * 2**20
MAX_ARGUMENT_BYTES = 256 * 1024
MAX_KEY_CHARACTERS = 200

# Whether something may have been done in the world, although there is no result.
MAY_HAVE_RUN: dict[str, bool] = {
    "tool_unknown": False,
    "tool_arguments_invalid": False,
    "tool_busy": False,
    "tool_server_unavailable": False,
    "tool_key_reused": False,
    "tool_not_started": False,
    "tool_timeout": True,
    "tool_cancelled": True,
    "tool_failed": True,
    "tool_result_too_large": True,
    "tool_outcome_unknown": True,
}


class ToolError(Exception):
    """Why a call has no result: `code` is for programs, `message` one line for people."""

    def __init__(self, code: str, message: str, *, is_replayed: bool = False) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.is_replayed = is_replayed

    @property
    def may_have_run(self) -> bool:
        """Whether the tool may have done something. If not, calling it again is harmless."""
        return MAY_HAVE_RUN[self.code]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as it is offered. Name, description and schema are a stranger's words, bounded."""

    name: str  # what a model says: letters, digits, _ and -, at most 64
    server: str
    title: str  # its name at the server, for people
    description: str
    input_schema: dict[str, Any]
    is_read_only: bool  # as the server claims
    consent: str
    max_calls_per_answer: int
    timeout_seconds: float


class Trouble(msgspec.Struct, frozen=True):
    """Why a server offers nothing now, or not all of its tools."""

    server: str
    code: str
    message: str


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool has answered. `is_error`: the tool says itself that it failed."""

    text: str
    is_error: bool = False
    is_replayed: bool = False  # the call ran before; this is what it answered then


class Place(msgspec.Struct, frozen=True):
    """Where the tool process's memory is: stored before a call, it tells a takeover more."""

    epoch: str  # of the process
    num_begun: int  # calls, so far


class Where(msgspec.Struct, frozen=True, tag=True):
    id: int


class ListTools(msgspec.Struct, frozen=True, tag=True):
    id: int
    wait_seconds: float  # for servers that are just starting
    servers: tuple[str, ...] | None = None  # these alone; None: all


class Call(msgspec.Struct, frozen=True, tag=True):
    id: int
    key: str
    tool: str
    arguments: bytes  # JSON, as the model has said them


class Recall(msgspec.Struct, frozen=True, tag=True):
    id: int
    key: str
    place: Place | None


class Cancel(msgspec.Struct, frozen=True, tag=True):
    key: str


Request = Where | ListTools | Call | Recall | Cancel


class Here(msgspec.Struct, frozen=True, tag=True):
    id: int
    place: Place


class Tools(msgspec.Struct, frozen=True, tag=True):
    id: int
    tools: tuple[Tool, ...]
    troubles: tuple[Trouble, ...]
    servers: tuple[str, ...] = ()  # that there are, of those that were asked for


class Done(msgspec.Struct, frozen=True, tag=True):
    id: int
    result: ToolResult


class Failed(msgspec.Struct, frozen=True, tag=True):
    id: int
    code: str
    message: str
    is_replayed: bool = False


Reply = Here | Tools | Done | Failed

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode(message: Request | Reply, max_bytes: int) -> bytes:
    """A frame. Raises ValueError where it would be too long."""
    content = _encoder.encode(message)
    if len(content) > max_bytes:
        raise ValueError(f"a message of {len(content)} bytes; at most {max_bytes}")
    return len(content).to_bytes(LENGTH_BYTES) + content


async def read_request(reader: asyncio.StreamReader) -> Request:
    """The next one. Raises EOFError at the end, ValueError for what is none."""
    return _requests.decode(await _read(reader, MAX_REQUEST_BYTES))


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    """The next one. Raises EOFError at the end, ValueError for what is none."""
    return _replies.decode(await _read(reader, MAX_REPLY_BYTES))


async def _read(reader: asyncio.StreamReader, max_bytes: int) -> bytes:
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
    if length > max_bytes:
        raise ValueError(f"a message of {length} bytes; at most {max_bytes}")
    return await reader.readexactly(length)
