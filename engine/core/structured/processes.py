"""The core's ends of the processes that work on grammars: one that forks, and its fork.

Which ones there are is in `zygote.py`. Here they are started, asked with a limit of time, and
ended. All of it may wait, so the step loop's thread does nothing of it.
"""

import contextlib
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from engine.core.structured.frames import (
    PROOF_SECONDS,
    Channel,
    Prove,
    Setup,
    Source,
    StartMasker,
    Try,
    Verdict,
)

MODULE = "engine.core.structured.zygote"
START_SECONDS = 60.0  # to read a large tokenizer beside other work
PROVE_SECONDS = 15 * PROOF_SECONDS  # of the clock; the zygote itself gives up before
TRY_SECONDS = 20.0  # a grammar was proven to take less
SOCKET_BUFFER_BYTES = 1 << 20


class Unusable(Exception):
    """These processes cannot work here: one line says why."""


@dataclass(eq=False, slots=True)
class Link:
    """The core's ends of a masker's sockets. A new masker has a new link."""

    steps: Channel
    loads: Channel
    is_lost: bool = field(default=False)

    def try_out(self, request: Try) -> Verdict:
        """Raises OSError, EOFError or TimeoutError if the masker does not answer."""
        return self.loads.ask(request, Verdict, TRY_SECONDS)

    def end(self) -> None:
        """Of the thread that tries grammars; who waits for masks finds that none will come."""
        self.is_lost = True
        self.loads.close()
        with contextlib.suppress(OSError):
            self.steps.sock.shutdown(socket.SHUT_RDWR)


class Processes:
    """Not thread-safe. `masks_fd` is a memory file for all masks of a step."""

    def __init__(self, setup: Setup, masks_fd: int) -> None:
        self._setup = setup
        self._masks_fd = masks_fd
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Channel | None = None

    @property
    def pid(self) -> int | None:
        """Of the one that forks."""
        return None if self._process is None else self._process.pid

    def prove(self, source: Source) -> Verdict:
        """Whether a grammar compiles within its bounds. Raises Unusable, OSError, EOFError."""
        return self._started().ask(Prove(source), Verdict, PROVE_SECONDS)

    def start_masker(self) -> Link:
        """Another masker in the place of the one before. Raises Unusable, OSError, EOFError."""
        control = self._started()
        pairs = [socket.socketpair() for _ in range(2)]
        try:
            control.send(StartMasker())
            socket.send_fds(control.sock, [b"f"], [theirs.fileno() for _, theirs in pairs])
            control.receive(Verdict, START_SECONDS)
        except BaseException:
            for ours, _ in pairs:
                ours.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        for ours, _ in pairs:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        (steps, _), (loads, _) = pairs
        return Link(Channel(steps), Channel(loads))

    def close(self) -> None:
        """End them all. Idempotent."""
        if self._process is None:
            return
        if self._control is not None:
            self._control.close()  # it ends its fork, and itself
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._process.kill()
        self._process.wait()
        self._process = self._control = None

    def _started(self) -> Channel:
        if self._process is not None and self._process.poll() is None and self._control is not None:
            return self._control
        self.close()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, str(theirs.fileno()), str(self._masks_fd)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what a library prints there may quote a user
                pass_fds=(theirs.fileno(), self._masks_fd),
                env=_environment(),
                start_new_session=True,
            )
        self._control = Channel(ours)
        try:
            verdict = self._control.ask(self._setup, Verdict, START_SECONDS)
        except (OSError, EOFError):
            self.close()
            raise
        if verdict.problem:
            self.close()
            raise Unusable(verdict.problem)
        return self._control


def _environment() -> dict[str, str]:
    """What Python needs of ours, and where our packages lie; no setting and no secret."""
    kept = {name: value for name in _KEPT if (value := os.environ.get(name)) is not None}
    root = str(Path(__file__).resolve().parents[3])
    path = kept.get("PYTHONPATH")
    return {**kept, "PYTHONPATH": f"{root}{os.pathsep}{path}" if path else root}


_KEPT = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "TZ")
