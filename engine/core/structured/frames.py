"""What the core and the processes of its grammars say to each other, and how it is sent.

A frame is its length in four bytes and a struct in msgpack. Both ends are ours, but one may crash
in the middle of anything.
"""

import socket
import time
from typing import Any, TypeVar

import msgspec

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 64 * 2**20
PROOF_SECONDS = 2.0  # of processor time, for which a grammar may be compiled

# States of a row after a step or an offer came.
MASKED = 0
ENDED = 1  # nothing may follow but the end: the mask says so, too
MISSING = 2  # its grammar is not there (any more)
FAILED = 3
OPEN = 4  # there is no mask: an offer is to come
TAKEN = 5  # there is none, as what was offered may follow


class Frame(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """An array in msgpack."""


class Setup(Frame, frozen=True):
    """To the zygote, first: whose tokens are masked."""

    tokenizer_file: str
    vocab_size: int  # of the logits: the tokenizer may know fewer
    eos_token_ids: list[int]
    max_rows: int  # of the memory that masks are written to


class Source(Frame, frozen=True):
    """What is to be compiled: "json", "regex", "choice", "grammar" or "tags", and its text."""

    kind: str
    text: str


class Prove(Frame, frozen=True, tag="prove"):
    """Compile this in a process of its own, within bounds, and say how that has ended."""

    source: Source


class StartMasker(Frame, frozen=True, tag="masker"):
    """Fork a masker; its two sockets follow. The one before is ended."""


class Verdict(Frame, frozen=True):
    """How it went: no problem, or one line that says which."""

    problem: str = ""
    warnings: list[str] = []
    is_certain: bool = True  # False: another time it may be another


class Try(Frame, frozen=True):
    """To a masker: have this grammar, and see whether these tokens follow it."""

    key: str
    source: Source
    begun: str  # that the prompt has of the answer
    token_ids: list[int]


class Row(Frame, frozen=True):
    """A sequence whose next token may be only what its grammar allows."""

    matcher: int
    key: str  # of its grammar where the masker does not know it yet, else ""
    token_ids: list[int]  # that it has got since
    without_eos: bool
    begun: str = ""  # where there is a key
    offers: bool = False  # a token first: its mask only if that may not follow


class Step(Frame, frozen=True, tag="step"):
    """To a masker: masks for the rows of a step, in their order."""

    rows: list[Row]
    forgotten: list[int]  # matchers whose sequences have ended


class Offers(Frame, frozen=True, tag="offers"):
    """To a masker: what the open rows of the step before would choose among all tokens, or -1."""

    token_ids: list[int]


class RowState(Frame, frozen=True):
    state: int
    problem: str = ""


class Masked(Frame, frozen=True):
    """The masks are in the memory, each at the place of its row in the step."""

    rows: list[RowState]


Request = Prove | StartMasker
ToMask = Step | Offers

F = TypeVar("F")
_encode = msgspec.msgpack.Encoder().encode


class Channel:
    """One end of a stream socket. EOFError and OSError mean that the other one is gone."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, frame: Any) -> None:
        """Waits while the other end does not read."""
        content = _encode(frame)
        self.sock.sendall(len(content).to_bytes(LENGTH_BYTES) + content)

    def receive(self, kind: type[F] | Any, seconds: float | None = None) -> F:
        """TimeoutError after so many seconds without a whole frame."""
        deadline = None if seconds is None else time.monotonic() + seconds
        length = int.from_bytes(self._read(LENGTH_BYTES, deadline))
        if length > MAX_FRAME_BYTES:
            raise OSError("a frame is too long")
        frame: F = msgspec.msgpack.decode(self._read(length, deadline), type=kind)
        return frame

    def ask(self, frame: Any, kind: type[F], seconds: float) -> F:
        """Send, and wait for the answer."""
        self.sock.settimeout(seconds)
        self.send(frame)
        return self.receive(kind, seconds)

    def close(self) -> None:
        self.sock.close()

    def _read(self, num_bytes: int, deadline: float | None) -> bytes:
        data = bytearray()
        while len(data) < num_bytes:
            if deadline is not None:
                self.sock.settimeout(max(0.001, deadline - time.monotonic()))
            piece = self.sock.recv(num_bytes - len(data))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)
