"""What a web worker says of its start, as the supervisor reads it."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from server.supervisor.workers import WorkerProcess
from tests.helpers.patience import PATIENCE


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


def test_a_line_that_is_no_report_is_no_problem() -> None:
    with ended_worker('a library\n{"type": "load", "model": "a"}\n[]\n{"ready": true}') as worker:
        assert worker.look() is None
        assert worker.is_ready


def test_what_it_says_later_is_heard_in_order() -> None:
    lines = '{"ready": true}\\n{"type": "uses", "models": ["a"]}\\nno line\\n{"type": "load"}'
    with ended_worker(lines.replace("\\n", "\n")) as worker:
        assert worker.look() is None
        heard = list(worker.hear())
        assert heard == [{"type": "uses", "models": ["a"]}, {}, {"type": "load"}]
        assert worker.is_silent


def test_a_worker_that_reads_nothing_holds_nobody_up_and_hears_the_last_word() -> None:
    program = "import sys; sys.stdin.readline(); [print(line) for line in sys.stdin]"
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1) as process:
        worker = WorkerProcess("w", process)
        worker.tell({"filling": "x" * 300_000})  # more than a pipe holds
        for number in range(3):
            worker.tell_models({"number": number})
        assert worker.owes_models
        deadline = time.monotonic() + PATIENCE
        while not worker.flush() and time.monotonic() < deadline:
            pass  # the process reads meanwhile
        worker.tell_models({"number": 3})
        assert not worker.owes_models
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        assert process.stdout.read() == b'{"number": 3}\n\n'
