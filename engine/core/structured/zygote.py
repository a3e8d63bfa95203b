"""The process that has a model's tokenizer, and forks those which work on grammars with it.

    python -m engine.core.structured.zygote CONTROL MASKS

The numbers are descriptors: of a socket to the core, and of the memory that masks are written to.
It answers one frame after the other: `Prove` forks a process that compiles one grammar within
bounds, `StartMasker` one that makes the masks of each step. A grammar comes from anyone, and the
compiler is not bounded in all it does: a pattern may take it minutes or overflow its stack. So what
dies or is stopped is a fork, which takes milliseconds to replace; the tokenizer, which takes a
second to read, stays here. This process has a single thread, as one that forks must.

The end of the socket ends it. It logs nothing: what a library prints may quote a user.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import time
from typing import NoReturn

import llguidance
import msgspec

from engine.core.structured.frames import (
    PROOF_SECONDS,
    Channel,
    Prove,
    Request,
    Setup,
    StartMasker,
    Verdict,
)
from engine.core.structured.masker import Masker
from engine.core.structured.proof import confine, prove

PATIENCE = 10.0  # of the clock, for each second of processor time: others want theirs, too
MAX_VERDICT_BYTES = 1 << 20


class Zygote:
    """Answers the core, for as long as it is there."""

    def __init__(self, control: Channel, setup: Setup, masks_fd: int) -> None:
        with open(setup.tokenizer_file, encoding="utf-8") as file:
            text = file.read()
        self._tokenizer = llguidance.LLTokenizer(
            text, n_vocab=setup.vocab_size, eos_token=setup.eos_token_ids or None
        )
        self._setup = setup
        self._control = control
        self._masks_fd = masks_fd
        self._masker: int | None = None

    def serve(self) -> None:
        while True:
            try:
                request: Prove | StartMasker = self._control.receive(Request)
            except (EOFError, OSError):
                self._end_masker()
                return
            match request:
                case Prove(source):
                    self._control.send(self._prove(Prove(source)))
                case StartMasker():
                    self._start_masker()
                    self._control.send(Verdict())

    def _prove(self, request: Prove) -> Verdict:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            with _ending_here():
                confine()
                verdict = prove(request.source, self._tokenizer)
                os.write(writing, msgspec.msgpack.encode(verdict)[:MAX_VERDICT_BYTES])
        os.close(writing)
        content = _read_all(reading, time.monotonic() + PROOF_SECONDS * PATIENCE)
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(msgspec.DecodeError, TypeError):
            return msgspec.msgpack.decode(content or b"", type=Verdict)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return Verdict("there was no time to compile it", is_certain=False)
        return Verdict(_why_it_ended(status))

    def _start_masker(self) -> None:
        _, fds, _, _ = socket.recv_fds(self._control.sock, 1, 2)
        self._end_masker()
        pid = os.fork()
        if pid == 0:
            with _ending_here():
                self._control.close()
                steps, loads = (Channel(socket.socket(fileno=fd)) for fd in fds)
                Masker(self._tokenizer, self._setup, self._masks_fd, steps, loads).serve()
        for fd in fds:
            os.close(fd)
        self._masker = pid

    def _end_masker(self) -> None:
        if self._masker is not None:
            os.kill(self._masker, signal.SIGKILL)  # at the latest: it is ours until we wait for it
            os.waitpid(self._masker, 0)
            self._masker = None


class _ending_here(contextlib.AbstractContextManager[None]):
    """A fork ends with this block, whatever happens in it."""

    def __exit__(self, *error: object) -> NoReturn:
        os._exit(1 if error[0] is not None else 0)


def _why_it_ended(status: int) -> str:
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number == signal.SIGPROF:
        return "it takes too long to compile"
    if number == signal.SIGABRT:  # so Rust ends where there is none
        return "it needs too much memory to compile"
    return "the compiler crashes over it"


def _read_all(fd: int, deadline: float) -> bytes | None:
    """None if it does not end in time."""
    content = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            return None
        piece = os.read(fd, MAX_VERDICT_BYTES)
        if not piece:
            return content
        content += piece


def _be_first_to_end() -> None:
    """Where the machine has no memory left, it is not the core that the kernel ends."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("800")


def main() -> None:
    control, masks_fd = Channel(socket.socket(fileno=int(sys.argv[1]))), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the core's parent's
    _be_first_to_end()
    try:
        zygote = Zygote(control, control.receive(Setup), masks_fd)
    except Exception as error:  # a tokenizer that llguidance cannot read
        control.send(Verdict(f"{error}".strip() or type(error).__name__))
        return
    control.send(Verdict())
    zygote.serve()


if __name__ == "__main__":
    main()
