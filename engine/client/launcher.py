"""`CoreProcess`: an engine core as a child process, from its start to its end.

The child is `python -P -m engine.core`, started by `subprocess` and never by `multiprocessing`,
whose children import the caller's script again. Its configuration goes in as one JSON line on
stdin; the pipe then stays open, and when it closes (also because we were killed) the core exits.
Readiness comes back as one JSON line on stdout. The child has its own session: Ctrl-C reaches only
us.

A standby core is loaded and waits; it says so in a line before, and serves when it is called.
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
from queue import Empty, SimpleQueue
from typing import IO, Any

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

    `log` receives the core's stderr line by line; None passes it on to our own. With
    `standby_bytes` it is a standby core, which does not start unless there is so much memory.
    Methods may be called from different threads, one at a time.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        log: IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
        module: str = "engine.core",
        standby_bytes: int | None = None,
    ) -> None:
        self.config = config
        self._log = log
        self._last_lines: deque[str] = deque(maxlen=NUM_LOG_LINES)
        self._is_ready = False
        self._is_refusal = False  # the core's report says that it is for the model's sake
        self.is_prepared = False  # a standby core that may be called
        self.report: dict[str, Any] = {}  # of a core that is ready, what it says of itself
        self._num_reports = 1 if standby_bytes is None else 2
        as_standby = [] if standby_bytes is None else ["--standby", str(standby_bytes)]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *as_standby],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_child_environment(os.environ if env is None else env),
            # Ctrl-C is not for it. A session of its own would be a group of the scheduler too
            # (sched(7), autogroup), and answers would wait for processor time between groups.
            process_group=0,
        )
        self._reports: SimpleQueue[bytes] = SimpleQueue()  # lines of stdout; an empty one: the end
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
        self.report = self._wait_for("ready", timeout)
        self._is_ready = True

    def wait_prepared(self, timeout: float = READY_TIMEOUT_SECONDS) -> None:
        """Return when a standby core is loaded. Raises as `wait_ready` does."""
        self._wait_for("standby", timeout)
        self.is_prepared = True

    def call(self) -> None:
        """Have a standby core serve, on the address of its configuration."""
        with contextlib.suppress(OSError, ValueError):  # it has died: wait_ready says so
            self._stdin.write(b"serve\n")
            self._stdin.flush()

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

    def _wait_for(self, stage: str, timeout: float) -> dict[str, Any]:
        """What the core says when it has come so far. Ends it, and raises, if it does not."""
        try:
            found = self._wait_for_report(stage, timeout)
        except BaseException:
            self.terminate(timeout=1.0)
            raise
        if isinstance(found, dict):
            return found
        self.terminate(timeout=1.0)
        if self._is_refusal:
            raise UnsupportedModelError(found)
        raise EngineStartError(found, self.last_log())

    def _wait_for_report(self, stage: str, timeout: float) -> dict[str, Any] | str:
        """Its next report, or what is wrong."""
        try:
            line = self._reports.get(timeout=timeout)
        except Empty:
            return f"the engine core was not ready within {timeout:g} s"
        if not line:
            return self._early_exit()
        try:
            report: dict[str, Any] = json.loads(line)
            self._is_refusal = bool(report.get("is_refusal"))
            return report if report.get(stage) else str(report["error"])
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
            for _ in range(self._num_reports):
                self._reports.put(stream.readline())
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
