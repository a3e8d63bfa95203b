"""`Framing`: websockets' parser with limits, and the heads of our own frames."""

from collections.abc import Generator
from http import HTTPStatus

from websockets.datastructures import Headers
from websockets.exceptions import ProtocolError
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.streams import StreamReader
from websockets.typing import LoggerLike

from server.access.rates import TokenBucket
from server.protocol.close_codes import CloseCode, CloseConnection

IDLE_FRAMES_PER_S = 50  # pings, pongs and small fragments of one websocket; burst twice that
SMALL_FRAGMENT_BYTES = 1024
MAX_FRAMES_AFTER_CLOSE = 256  # then the client's own close frame is not looked for any more
FINAL_TEXT = 0x80 | Opcode.TEXT
TWO_BYTES_OF_SIZE = bytes((FINAL_TEXT, 126))
EIGHT_BYTES_OF_SIZE = bytes((FINAL_TEXT, 127))


class FrameReader(StreamReader):
    """websockets' own, which also says whether a part of a frame has come."""

    is_in_frame = False

    def at_eof(self) -> Generator[None, None, bool]:
        """Called between two frames."""
        self.is_in_frame = False
        has_ended = yield from super().at_eof()
        self.is_in_frame = not has_ended
        return has_ended


class Framing(ServerProtocol):
    """websockets' parser, without words in its refusals, and with a limit for idle frames.

    The application chooses whom it talks to, and counts messages. Pings, pongs and fragments never
    reach it, so they are counted here: a fragment that is not small costs its sender enough.
    """

    __slots__ = (
        "_frames",
        "_idle_frames",
        "_num_after_close",
        "_state",
        "accept_called",
        "available_extensions",
        "available_subprotocols",
        "close_rcvd",
        "close_rcvd_then_sent",
        "close_sent",
        "current_size",
        "debug",
        "eof_sent",
        "events",
        "expect_continuation_frame",
        "extensions",
        "handshake_exc",
        "id",
        "logger",
        "max_fragment_size",
        "max_message_size",
        "num_ended",
        "origin",
        "origins",
        "parser",
        "parser_exc",
        "reader",
        "side",
        "subprotocol",
        "writes",
    )

    def __init__(self, *, max_size: int | None, logger: LoggerLike) -> None:
        super().__init__(max_size=max_size, logger=logger)
        self.num_ended = 0  # messages, and control frames between two of them
        self._num_after_close = 0
        self._idle_frames = TokenBucket(IDLE_FRAMES_PER_S)
        self._frames: FrameReader | None = None  # none between two frames
        self._begin_parsing()

    def _begin_parsing(self) -> None:
        self.reader = self._frames = FrameReader()
        self.parser = self.parse()
        next(self.parser)

    @property
    def is_message_open(self) -> bool:
        """Whether a message, or a frame, has begun and not ended."""
        return self.current_size is not None or (
            self._frames is not None and self._frames.is_in_frame
        )

    def receive_data(self, data: bytes | bytearray) -> None:
        if self._frames is None:
            self._begin_parsing()
        super().receive_data(data)
        self.rest()

    def rest(self) -> None:
        """Between two frames, let the parser go: there are five generators in it."""
        if self.state is State.OPEN and self._frames is not None and not self._frames.is_in_frame:
            self._frames = None
            del self.reader, self.parser

    def recv_frame(self, frame: Frame) -> None:
        is_small_part = not frame.fin and len(frame.data) < SMALL_FRAGMENT_BYTES
        is_idle = frame.opcode in (Opcode.PING, Opcode.PONG) or is_small_part
        if is_idle and not self._idle_frames.take():
            self.refuse(CloseCode.TOO_MANY, "rate_limited;retry_after_ms=5000")
            raise ProtocolError("too many idle frames")  # so that parsing stops here
        self._num_after_close += self.state is State.CLOSING
        if self._num_after_close > MAX_FRAMES_AFTER_CLOSE:
            raise ProtocolError("too many frames after our close frame")
        if frame.opcode is Opcode.CLOSE:
            self.current_size = None  # RFC 6455 §5.4: also between two fragments
        super().recv_frame(frame)
        if self.current_size is None:
            self.num_ended += 1

    def fail(self, code: int, reason: str = "") -> None:
        if self._frames is None:
            self._begin_parsing()  # so that it drops what still comes
        super().fail(code, reason)

    def refuse(self, code: CloseCode, reason: str) -> None:
        """End the connection as for a frame that is wrong."""
        self.fail(code, reason)
        self.parser_exc = CloseConnection(code, reason)

    def reject(self, status: int, text: str) -> Response:
        response = super().reject(status, "")
        if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UPGRADE_REQUIRED):
            response.headers["Sec-WebSocket-Version"] = "13"
        return response

    def process_origin(self, headers: Headers) -> None:
        return None

    def process_subprotocol(self, headers: Headers) -> None:
        return None


def text_head(size: int) -> bytes:
    """What stands in front of so many bytes of text that are one frame of the server's."""
    if size < 126:
        return bytes((FINAL_TEXT, size))
    if size < 1 << 16:
        return TWO_BYTES_OF_SIZE + size.to_bytes(2)
    return EIGHT_BYTES_OF_SIZE + size.to_bytes(8)
