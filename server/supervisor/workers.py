"""`WorkerKeeper`: starts the web workers, replaces those that die, and tells the rest.

Each gets its configuration as the first line of its stdin and commands as the next ones; it says
that it serves, or why it cannot, with a line on stdout. When the pipe ends, so does the worker.
"""

import json
import os
import secrets
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import structlog

from server.config.models import ModelStatus
from server.config.worker import EXIT_REFUSED, SharedConfig, WorkerConfig

logger = structlog.get_logger("server")

RESTART_SECONDS = 0.2
READY_SECONDS = 60.0
MAX_EXITED = 64


class StartError(Exception):
    """One line for the operator."""


@dataclass(slots=True)
class WorkerProcess:
    """A web worker and the pipe that commands go through."""

    replica: str
    process: subprocess.Popen[bytes]
    is_ready: bool = False  # as far as `look` knows
    is_silent: bool = False  # it says nothing any more
    problem: str | None = None  # why it cannot serve, as far as `look` knows
    owes_models: bool = False  # it does not know yet how they are now
    _said: bytes = b""  # and not read yet
    _unsent: bytes = b""  # it reads too slowly

    @property
    def stdout(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def look(self) -> str | None:
        """Read whether it serves, if it has said so; else why it cannot, empty if it just ended."""
        if self.is_ready or self.problem is not None:
            return self.problem
        while (line := self._next_line()) is not None and "ready" not in line:
            pass  # what a library has printed
        if line is None and not self.is_silent:
            return None
        report = {} if line is None else line
        self.is_ready = bool(report.get("ready"))
        if not self.is_ready:
            self.problem = str(report.get("error", ""))
        return self.problem

    def hear(self) -> Iterator[dict[str, Any]]:
        """What it has said since it serves."""
        self.look()
        while self.is_ready and (line := self._next_line()) is not None:
            yield line

    def _next_line(self) -> dict[str, Any] | None:
        """Without waiting. A line that is not by us is empty."""
        while b"\n" not in self._said and not self.is_silent:
            if not select.select([self.stdout], [], [], 0)[0]:
                return None
            said = os.read(self.stdout.fileno(), 65536)
            self._said += said
            self.is_silent = not said
        line, newline, rest = self._said.partition(b"\n")
        if not newline:
            return None
        self._said = rest
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        return found if isinstance(found, dict) else {}

    def tell(self, command: Any) -> None:
        """Without waiting: what finds no room is sent by `flush`."""
        self._unsent += json.dumps(command).encode() + b"\n"
        self.flush()

    def tell_models(self, command: Any) -> None:
        """The same of how the models are. One that reads too slowly hears the last word alone."""
        self.owes_models = not self.flush()
        if not self.owes_models:
            self.tell(command)

    def flush(self) -> bool:
        """Send what has found no room. Whether all is sent."""
        stdin = self.process.stdin
        assert stdin is not None
        try:
            os.set_blocking(stdin.fileno(), False)
            while self._unsent:
                self._unsent = self._unsent[os.write(stdin.fileno(), self._unsent) :]
        except BlockingIOError:
            return False
        except (BrokenPipeError, ValueError):
            self._unsent = b""  # it is dying, and will be noticed
        return True


class WorkerKeeper:
    """`config` is what all of them get; `on_exit` hears of each that has died."""

    def __init__(
        self, config: SharedConfig, on_exit: Callable[[str], None] = lambda replica: None
    ) -> None:
        self.config = config
        self._on_exit = on_exit
        self._workers: list[WorkerProcess] = []
        self._starts: list[float] = []  # when the next ones are due
        # Replicas whose runs nobody may have adopted yet; without it, their leases end anyway.
        self._exited: deque[str] = deque(maxlen=MAX_EXITED)

    @property
    def due(self) -> float | None:
        """When `watch` has something to start (`time.monotonic()`)."""
        return min(self._starts, default=None)

    @property
    def voices(self) -> list[int]:
        """Descriptors that can be read when one of them says something."""
        return [worker.stdout.fileno() for worker in self._workers if not worker.is_silent]

    def hear(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Who has said what."""
        for worker in self._workers:
            for line in worker.hear():
                yield worker.replica, line

    @property
    def is_alive(self) -> bool:
        """Whether any worker runs."""
        return any(worker.process.poll() is None for worker in self._workers)

    def start(self) -> None:
        """Start one more."""
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "server.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(self.config.listen_fd,),
            process_group=0,  # Ctrl-C is for us; the workers get their command in turn
            env={**os.environ, "PYTHONPATH": _python_path()},
        )
        # Readable for an operator, and never the same twice.
        replica = f"{socket.gethostname()[:24]}-{process.pid}-{secrets.token_hex(3)}"
        worker = WorkerProcess(replica, process)
        shared = msgspec.structs.asdict(self.config)
        config = WorkerConfig(**shared, replica=replica, exited=tuple(self._exited))
        worker.tell(msgspec.to_builtins(config))
        self._workers.append(worker)

    def look(self) -> bool:
        """Whether all of them serve. Raises `StartError` if one of them cannot."""
        for worker in self._workers:
            if (problem := worker.look()) is not None:
                status = worker.process.poll()
                ended = "a web worker did not start" + (f" (exit {status})" if status else "")
                raise StartError(problem or ended)
        return all(worker.is_ready for worker in self._workers)

    def await_ready(self, raise_if_interrupted: Callable[[], None]) -> None:
        """Wait until all of them serve. Raises `StartError` if one does not."""
        deadline = time.monotonic() + READY_SECONDS
        while not self.look():
            raise_if_interrupted()
            if time.monotonic() >= deadline:
                raise StartError(f"a web worker did not start within {READY_SECONDS:g} s")
            silent = [worker.stdout for worker in self._workers if not worker.is_ready]
            select.select(silent, [], [], 0.1)
        self._exited.clear()

    def answer(self, replica: str, number: int, problem: str | None) -> None:
        """Tell one of them what has become of what it has asked under this number."""
        for worker in self._workers:
            if worker.replica == replica:
                worker.tell({"type": "asked", "number": number, "problem": problem})

    def tell(self, what: str) -> None:
        """Send all of them this command."""
        for worker in self._workers:
            worker.tell({"type": what})

    def tell_models(self, statuses: Sequence[ModelStatus]) -> None:
        """Tell all of them, and those that come, how the models are now."""
        self.config = msgspec.structs.replace(self.config, models=tuple(statuses))
        for worker in self._workers:
            worker.tell_models(self._models_command())

    def _models_command(self) -> dict[str, Any]:
        return {"type": "models", "models": msgspec.to_builtins(self.config.models)}

    def watch(self) -> None:
        """Notice who died, tell the others, and start what is due.

        Raises `StartError` if one ended because the session store must not be used.
        """
        for worker in list(self._workers):
            if (status := worker.process.poll()) is not None:
                self._workers.remove(worker)
                self._bury(worker, status)
        for worker in self._workers:
            if worker.flush() and worker.owes_models:
                worker.tell_models(self._models_command())
        now = time.monotonic()
        for due in [at for at in self._starts if at <= now]:
            self._starts.remove(due)
            self.start()

    def _bury(self, worker: WorkerProcess, status: int) -> None:
        reason = {"error": problem} if (problem := worker.look()) else {}
        _close_pipes(worker.process)
        if status == 0:
            logger.info("worker left", replica=worker.replica)
        else:
            logger.error("worker died", replica=worker.replica, status=status, **reason)
        if status == EXIT_REFUSED:
            raise StartError("the session store is not usable any more (see above)")
        # waitpid is the proof that it writes nothing any more: its runs may be taken over at once.
        self._exited.append(worker.replica)
        self._on_exit(worker.replica)
        for other in self._workers:
            other.tell({"type": "exited", "replica": worker.replica})
        self._starts.append(time.monotonic() + RESTART_SECONDS)

    def stop(
        self, seconds: float, *, is_hurried: Callable[[], bool], meanwhile: Callable[[], None]
    ) -> None:
        """Let them finish for so long, or until somebody is in a hurry; then kill them.

        `meanwhile` is called again and again: their answers need what else there is.
        """
        for worker in self._workers:
            worker.process.terminate()
        deadline = time.monotonic() + seconds
        while self.is_alive and time.monotonic() <= deadline and not is_hurried():
            meanwhile()
            time.sleep(0.05)  # processes end without an event that a plain loop could wait for
        for worker in self._workers:
            worker.process.kill()
            worker.process.wait()
            _close_pipes(worker.process)


def _python_path() -> str:
    root = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH")
    return f"{root}{os.pathsep}{known}" if known else root


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    pipes: tuple[IO[bytes] | None, ...] = (process.stdin, process.stdout)
    for pipe in pipes:
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                pass
