"""What a web worker says of its start, as the supervisor reads it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from server.supervisor.workers import WorkerProcess


@contextmanager
def ended_worker(said: str) -> Iterator[WorkerProcess]:
    with subprocess.Popen([sys.executable, "-c", f"print({said!r})"], stdout=-1) as process:
        process.wait()
        yield WorkerProcess("w", process)


def test_a_worker_that_cannot_serve_says_why() -> None:
    with ended_worker('{"ready": false, "error": "tokenizer.json: is missing"}') as worker:
        assert worker.look() == "tokenizer.json: is missing"
        assert not worker.is_ready


def test_a_worker_that_just_ends_has_no_reason() -> None:
    with ended_worker("") as worker:
        assert worker.look() == ""


def test_a_worker_that_serves_is_ready_and_has_no_problem() -> None:
    with ended_worker('{"ready": true}') as worker:
        assert worker.look() is None
        assert worker.is_ready
        assert worker.look() is None
