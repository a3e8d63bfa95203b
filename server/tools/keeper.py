"""`ToolKeeper`: the supervisor's half of the tool process: when it starts, and when it ends.

The socket that workers connect to is the supervisor's own. So the process is started when the first
of them comes, one that comes while there is none just waits, and no worker needs to know any of it.
"""

import contextlib
import os
import secrets
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from server.tools.configuration import ServerConfig
from server.tools.reaping import kill_marked

logger = structlog.get_logger("server")

PROGRAM = "server.tools.process"
BACKLOG = 128
HANG_SECONDS = 15.0  # without a sign of life
START_SECONDS = 60.0  # until the first one: imports, on a busy machine
STABLE_SECONDS = 60.0
MAX_DELAY_SECONDS = 30.0
STOP_SECONDS = 10.0


class ToolKeeper:
    """Of the supervisor's own thread, which calls `watch` when a descriptor can be read, or when
    something is due. `now` is replaced in tests.
    """

    def __init__(
        self,
        servers: Sequence[ServerConfig],
        log_level: str,
        log_format: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = tuple(servers)
        self._log = (log_level, log_format)
        self._now = now
        self._folder = Path(tempfile.mkdtemp(prefix="parley-tools-"))  # mode 0700
        self.path = self._folder / "socket"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen(BACKLOG)
        self._mark = secrets.token_hex(8)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._alive_at: float | None = None  # when it last said so
        self._num_failures = 0  # in a row
        self._may_start_at = 0.0

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def descriptors(self) -> list[int]:
        """Those that call for `watch` when they can be read."""
        if self._process is not None:
            assert self._process.stdout is not None
            return [self._process.stdout.fileno()]
        return [self._listener.fileno()] if self._now() >= self._may_start_at else []

    @property
    def due(self) -> float | None:
        """When `watch` must be called without that (`time.monotonic()`)."""
        return self._deadline if self._process is not None else self._may_start_at or None

    @property
    def _deadline(self) -> float:
        if self._alive_at is None:
            return self._started_at + START_SECONDS
        return self._alive_at + HANG_SECONDS

    def watch(self) -> None:
        """Start it for who waits; bury it when it has died; kill it when it hangs."""
        if self._process is None:
            self._start_if_wanted()
            return
        self._hear(self._process)
        if self._process.poll() is None:
            if self._now() < self._deadline:
                return
            logger.error("tool process hangs and is killed", pid=self._process.pid)
            self._process.kill()
        self._bury(self._process)

    def stop(self) -> None:
        """End it with all that it has started. Idempotent."""
        if self._process is not None:
            self._close(self._process)  # its thread sees that, and ends its servers
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
            self._process.kill()
            self._process.wait()
            self._process = None
            kill_marked(self._mark)
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start_if_wanted(self) -> None:
        now = self._now()
        if now < self._may_start_at:
            return
        self._may_start_at = 0.0
        if not select.select([self._listener], [], [], 0)[0]:
            return
        config = self._config_file()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", PROGRAM, str(self._listener.fileno()), str(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(self._listener.fileno(), config),
                start_new_session=True,  # Ctrl-C is for us
                env={**os.environ, "PYTHONPATH": _python_path()},
            )
        finally:
            os.close(config)
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._started_at, self._alive_at = now, None

    def _config_file(self) -> int:
        """In memory: neither a command line nor an environment shows it."""
        log_level, log_format = self._log
        config = {
            "servers": msgspec.to_builtins(self._servers),
            "mark": self._mark,
            "log_level": log_level,
            "log_format": log_format,
        }
        descriptor = os.memfd_create("parley-tools")
        with open(descriptor, "wb", closefd=False) as file:
            file.write(msgspec.msgpack.encode(config))
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

    def _hear(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(BlockingIOError):
            if os.read(process.stdout.fileno(), 65536):
                self._alive_at = self._now()
            else:
                process.wait()  # it has closed its stdout, which it does by ending

    def _bury(self, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        self._close(process)
        self._process = None
        num_left = kill_marked(self._mark)  # servers that its end has left behind
        lived = 0.0 if self._alive_at is None else self._now() - self._started_at
        self._num_failures = 0 if lived >= STABLE_SECONDS else self._num_failures + 1
        delay = 0.0
        if self._num_failures > 1:
            delay = min(2.0 ** (self._num_failures - 2), MAX_DELAY_SECONDS)
        self._may_start_at = self._now() + delay
        logger.error("tool process died", status=status, servers=num_left, delay_seconds=delay)

    def _close(self, process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _python_path() -> str:
    root = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH")
    return f"{root}{os.pathsep}{known}" if known else root
