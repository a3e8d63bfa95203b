"""A real redis-server as a child of the supervisor: found, started, waited for, stopped.

It listens on a unix socket in a directory of its own (mode 0700) and on no port. The append-only
file is written on each command and synced each second: killing the process loses nothing that was
acknowledged, a power cut at most a second. Synchronous, because the supervisor is; it must be used
from the main thread, since the child dies with the *thread* that forked it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final
from urllib.parse import quote

from sessions.connection.redis_binary import RedisServer, find_server, version_of
from sessions.model.errors import EmbeddedRedisError

MAX_SOCKET_PATH_BYTES: Final = 100  # sun_path holds 108 with its terminator
START_SECONDS: Final = 60.0  # a large append-only file is read first; an empty one takes 20 ms
LOCK_SECONDS: Final = 5.0  # a predecessor that is ending writes its file first
STOP_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.005

_PR_SET_PDEATHSIG = 1


class EmbeddedRedis:
    """One redis-server on one directory, which belongs to it alone.

    `binary` is used as it is, else `find_server` chooses one. `start` may be called again after the
    child has died, also by `kill -9`: everything acknowledged is there again.
    """

    def __init__(
        self, directory: Path | str, *, binary: str | None = None, extra_args: Sequence[str] = ()
    ) -> None:
        self.directory = Path(directory).absolute()
        self._binary = binary
        self._extra_args = tuple(extra_args)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[bytes] | None = None
        self._runtime: str | None = None  # a short directory, when ours is too long for a socket

    @property
    def url(self) -> str:
        """Where it listens; the same after each start."""
        return "unix://" + quote(self.socket_path)

    @property
    def socket_path(self) -> str:
        """The unix socket, in the directory or, if that is too long a path, in a private one."""
        path = str(self.directory / "redis.sock")
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
            return path
        if self._runtime is None:
            self._runtime = tempfile.mkdtemp(prefix="parley-redis-")
        return os.path.join(self._runtime, "redis.sock")

    @property
    def pid(self) -> int | None:
        """The child's process id, None before the first start."""
        return self._process.pid if self._process else None

    def start(self, timeout_seconds: float = START_SECONDS) -> None:
        """Start the child and return when it answers.

        Raises `EmbeddedRedisError` when no binary is found, the directory cannot be used, another
        server uses it, the binary cannot read what it holds, or the child ends or stays silent;
        then nothing is left running.
        """
        if self._process is not None and self._process.poll() is None:
            raise EmbeddedRedisError("redis-server is running already")
        self._prepare_directory()
        self._take_lock()
        try:
            server = self._server()
            server.check_reads(self.directory)
            self._process = self._spawn(server.binary)
            self._wait_until_ready(timeout_seconds)
            server.record(self.directory)
        except BaseException:
            self.stop()  # nothing is left of a failed start, not even the lock
            raise

    def poll(self) -> int | None:
        """The child's exit status, None while it runs. Raises if it was never started."""
        if self._process is None:
            raise EmbeddedRedisError("redis-server was not started")
        return self._process.poll()

    def stop(self, timeout_seconds: float = STOP_SECONDS) -> None:
        """Let the child write its file and end; kill it if it takes too long. Repeatable."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self._runtime is not None:
            shutil.rmtree(self._runtime, ignore_errors=True)
            self._runtime = None

    # ---- starting --------------------------------------------------------------------------------

    def _server(self) -> RedisServer:
        if self._binary is None:
            return find_server(self.directory)
        return RedisServer(self._binary, version_of(self._binary))

    def _prepare_directory(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.directory.chmod(0o700)
        except OSError as error:
            raise EmbeddedRedisError(f"cannot use {self.directory}: {error.strerror}") from error

    def _take_lock(self) -> None:
        """Hold the directory. The child holds the lock too, so it outlives a killed supervisor."""
        if self._lock is not None:
            return
        lock = open(self.directory / "lock", "ab")
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    lock.close()
                    raise EmbeddedRedisError(
                        f"{self.directory} is in use by another server"
                    ) from None
                time.sleep(POLL_SECONDS)
        self._lock = lock

    def _spawn(self, binary: str) -> subprocess.Popen[bytes]:
        assert self._lock is not None
        with open(self.directory / "redis.log", "ab") as log:
            try:
                return subprocess.Popen(
                    [binary, *self._arguments()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    process_group=0,  # Ctrl-C is the supervisor's to handle
                    pass_fds=(self._lock.fileno(),),
                    preexec_fn=_dies_with(os.getpid()),
                )
            except OSError as error:
                raise EmbeddedRedisError(f"cannot run {binary}: {error.strerror}") from error

    def _arguments(self) -> list[str]:
        settings = {
            "port": "0",
            "unixsocket": self.socket_path,
            "unixsocketperm": "700",
            "dir": str(self.directory),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "daemonize": "no",
            "maxmemory-policy": "noeviction",
            "slowlog-log-slower-than": "-1",  # it would quote what users wrote
            "hash-max-ziplist-value": "1024",  # session hashes with settings inside stay compact
        }
        flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
        return [*flags, *self._extra_args]

    def _wait_until_ready(self, timeout_seconds: float) -> None:
        assert self._process is not None
        deadline = time.monotonic() + timeout_seconds
        while not self._answers():
            if (status := self._process.poll()) is not None:
                raise EmbeddedRedisError(
                    f"redis-server ended with status {status}: {self._last_log_line()}"
                )
            if time.monotonic() > deadline:
                raise EmbeddedRedisError(
                    f"redis-server did not answer within {timeout_seconds:g} s; "
                    f"see {self.directory / 'redis.log'}"
                )
            time.sleep(POLL_SECONDS)

    def _answers(self) -> bool:
        """Whether a PING is answered with PONG: not while the file is loaded."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            try:
                connection.connect(self.socket_path)
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
            except OSError:
                return False

    def _last_log_line(self) -> str:
        log = self.directory / "redis.log"
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        texts = [line.strip() for line in lines if line.strip()]
        return texts[-1] if texts else f"see {log}"


def _dies_with(parent: int) -> Callable[[], None] | None:
    """What the child does before exec: ask for SIGTERM when its parent dies, however it dies.

    libc is loaded here and not in the child, where only system calls are safe.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return before_exec
