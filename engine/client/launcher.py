"""`CoreProcess`: an engine core as a child process, from its start to its end.

The child is `python -P -m engine.core`, started by `subprocess` and never by `multiprocessing`,
whose children import the caller's script again. Its configuration goes in as one JSON line on
stdin; the pipe then stays open, and when it closes (also because we were killed) the core exits.
Readiness comes back as one JSON line on stdout. The child has its own session: Ctrl-C reaches only
us.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import msgspec

from engine.config import EngineConfig
from engine.errors import EngineStartError, UnsupportedModelError
from engine.log import as_json_line

READY_TIMEOUT_SECONDS = 600.0  # a large model on a slow disk
STOP_TIMEOUT_SECONDS = 5.0  # between a polite request to end and SIGKILL
NUM_LOG_LINES = 40  # kept of stderr, for the message of an EngineStartError
MAX_SOCKET_PATH = 107  # bytes; the kernel's sun_path holds 108 with its final zero
PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class PrivateDirectory:
    """A fresh 0700 directory, short enough in name for a unix socket; `remove()` is idempotent."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="parley-"))
        if len(os.fsencode(self.path / "core.sock")) > MAX_SOCKET_PATH:
            self.path.rmdir()
            self.path = Path(tempfile.mkdtemp(prefix="parley-", dir="/tmp"))

    @property
    def address(self) -> str:
        """A ZeroMQ address in this directory for the core's socket."""
        return f"ipc://{self.path / 'core.sock'}"

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class CoreProcess:
    """A core that we started and must end. Every method blocks; none needs an event loop.

    `log` receives the core's stderr line by line; None passes it on to our own. Methods may be
    called from different threads, one at a time.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        log: IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
        module: str = "engine.core",
    ) -> None:
        self.config = config
        self._log = log
        self._last_lines: deque[str] = deque(maxlen=NUM_LOG_LINES)
        self._is_ready = False
        self._is_refusal = False  # the core's report says that it is for the model's sake
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_child_environment(os.environ if env is None else env),
            start_new_session=True,
        )
        self._report = b""  # the first line of stdout
        self._has_reported = threading.Event()
        self._readers = [
            threading.Thread(target=self._read_stderr, name="core-stderr", daemon=True),
            threading.Thread(target=self._read_stdout, name="core-stdout", daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        self._send_config()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_ready(self) -> bool:
        """`wait_ready` has returned and the core has not been seen to end."""
        return self._is_ready and self.poll() is None

    def wait_ready(self, timeout: float = READY_TIMEOUT_SECONDS) -> None:
        """Return when the model is loaded and requests are taken; then do nothing if called again.

        Raises `UnsupportedModelError` when the core refuses the model, `EngineStartError` with its
        last log lines when it fails, ends or takes longer than `timeout` seconds; the process has
        ended then.
        """
        if self._is_ready:
            return
        try:
            problem = self._wait_for_report(timeout)
        except BaseException:
            self.terminate(timeout=1.0)
            raise
        if problem is not None:
            self.terminate(timeout=1.0)
            if self._is_refusal:
                raise UnsupportedModelError(problem)
            raise EngineStartError(problem, self.last_log())
        self._is_ready = True

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        return self.process.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; `subprocess.TimeoutExpired` after `timeout` seconds."""
        return self.process.wait(timeout)

    def terminate(self, timeout: float = STOP_TIMEOUT_SECONDS) -> int:
        """End the core and reap it: SIGTERM, then SIGKILL after `timeout` seconds. Idempotent."""
        if self.process.poll() is None:
            self.process.terminate()
        with contextlib.suppress(OSError):
            self._stdin.close()
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        for reader in self._readers:
            reader.join(timeout=1.0)  # a child of the core may still hold the pipe
        return status

    def last_log(self) -> str:
        """The last lines that the core wrote to stderr."""
        return "\n".join(self._last_lines)

    @property
    def _stdin(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    def _send_config(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it died already: wait_ready says so
            self._stdin.write(msgspec.json.encode(self.config) + b"\n")
            self._stdin.flush()

    def _wait_for_report(self, timeout: float) -> str | None:
        """None when the core is ready, else what is wrong."""
        if not self._has_reported.wait(timeout):
            return f"the engine core was not ready within {timeout:g} s"
        if not self._report:
            return self._early_exit()
        try:
            report = json.loads(self._report)
            self._is_refusal = bool(report.get("is_refusal"))
            return None if report["ready"] else str(report["error"])
        except (ValueError, LookupError, TypeError, AttributeError):
            return "the engine core reported something unreadable"

    def _early_exit(self) -> str:
        try:
            status: int | str = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            status = "unknown"
        return f"the engine core exited before it was ready (status {status})"

    def _read_stdout(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            self._report = stream.readline()
            self._has_reported.set()
            while stream.read(65536):  # nothing more is expected; a full pipe would block the core
                pass

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip()
                self._last_lines.append(text)
                if self.config.log_format == "json":  # also what a library in C has printed
                    if not text:
                        continue
                    line = as_json_line(text, "core").encode() + b"\n"
                with contextlib.suppress(OSError, ValueError):  # a closed log loses the line only
                    if self._log is None:
                        os.write(2, line)
                    else:
                        self._log.write(line)


def _child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    path = environment.get("PYTHONPATH")
    root = str(PACKAGE_ROOT)
    return {**environment, "PYTHONPATH": f"{root}{os.pathsep}{path}" if path else root}
