"""`TemplateProcess`: the process that a chat template runs in, from its start to its end.

It is `engine/client/templates/child.py`, started by `subprocess`, with pipes for stdin and stdout
and nothing else of ours: no other descriptor, and of the environment only what Python needs. It
ends when the pipes close, so also when we were killed; in the middle of a rendering, at the latest
when its processor time is used up. The kernel's signal for the death of a parent would be no help:
it comes when the thread ends that has started the child.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

PROGRAM = Path(__file__).with_name("child.py")
LENGTH_BYTES = 4
MAX_REPLY_BYTES = 256 * 2**20
# Of the clock, for each second of processor time: the others on the machine want theirs, too.
PATIENCE = 10.0
START_SECONDS = 30.0  # of the clock, for the interpreter to come up
_KEPT = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "TZ")
# Ends from outside; the template has caused all others.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class TemplateEnded(Exception):
    """The process is over. `reason` says why if that is the template's doing, else it is None."""

    def __init__(self, reason: str | None) -> None:
        super().__init__(reason)
        self.reason = reason


class TemplateProcess:
    """One process. It is coming up when this returns; `ask` blocks. Not thread-safe."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._is_up = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={name: value for name in _KEPT if (value := os.environ.get(name)) is not None},
            start_new_session=True,  # Ctrl-C is not for it
        )
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        self._end = weakref.finalize(self, _end, self._process, self._owner)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_ours(self) -> bool:
        """False in a forked child, which must not talk to the process of its parent."""
        return os.getpid() == self._owner

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The reply. Raises `TemplateEnded`, and what `encode` raises.

        `seconds` are of processor time.
        """
        frame = encode({**request, "seconds": seconds})
        limit = seconds * PATIENCE + (0 if self._is_up else START_SECONDS)
        try:
            reply = self._exchange(frame, time.monotonic() + limit)
        except TimeoutError:
            self.close()
            raise TemplateEnded("it takes too long") from None
        except (OSError, EOFError):
            raise TemplateEnded(self._why_it_ended()) from None
        self._is_up = True
        try:
            return msgspec.msgpack.decode(reply, type=dict[str, Any])
        except ValueError:
            self.close()
            raise TemplateEnded("its process says what is no reply") from None

    def kill(self) -> None:
        """End it while another thread asks: that `ask` then raises."""
        self._process.kill()

    def close(self) -> None:
        """End it at once, even during a template. Idempotent."""
        self._end()

    def _exchange(self, frame: bytes, deadline: float) -> bytes:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        left = memoryview(len(frame).to_bytes(LENGTH_BYTES) + frame)
        while left:
            _wait(stdin.fileno(), select.POLLOUT, deadline)
            left = left[os.write(stdin.fileno(), left) :]
        length = int.from_bytes(_read(stdout.fileno(), LENGTH_BYTES, deadline))
        if length > MAX_REPLY_BYTES:
            raise TimeoutError
        return _read(stdout.fileno(), length, deadline)

    def _why_it_ended(self) -> str | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # its pipes may have closed a moment before
        status = self._process.poll()
        self.close()
        if status == -signal.SIGPROF:
            return "it takes too long"
        if status is None or status >= 0 or -status in _FROM_OUTSIDE:
            return None
        return "it crashes"


def encode(value: Any) -> bytes:
    """Plain data in msgpack.

    Raises TypeError, ValueError, OverflowError or RecursionError for anything else.
    """
    return msgspec.msgpack.encode(value, enc_hook=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a template cannot be given a {type(value).__name__}")


def _wait(fd: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(fd, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError


def _read(fd: int, num_bytes: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        _wait(fd, select.POLLIN, deadline)
        piece = os.read(fd, min(num_bytes - len(data), 2**20))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
