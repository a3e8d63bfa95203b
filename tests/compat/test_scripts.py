"""The calls of vLLM's and TensorRT-LLM's tutorials, as scripts in front of the real core.

A script needs no main guard and no shutdown: in every case, its process exits by itself and its
core is gone by then. `launch.py` sees to the last.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.helpers.tiny_model import build_tiny_model

pytestmark = pytest.mark.slow

SECONDS = 120
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRIPTS = HERE / "scripts"
EXAMPLES = ROOT / "examples"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"))


def launch(script: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script to its end; `launch.py` makes the exit code tell of orphans."""
    return subprocess.run(
        [sys.executable, HERE / "launch.py", script, *map(str, arguments)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )


def finish(script: Path, *arguments: object) -> str:
    """What a script prints; it must succeed, leave no child and complain of nothing."""
    done = launch(script, *arguments)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.slow
def test_one_request_without_guard_and_shutdown(model: Path) -> None:
    assert finish(SCRIPTS / "basic.py", model).count("Generated: ") >= 2


@pytest.mark.slow
def test_text_of_a_stream_is_cumulative_unless_deltas_are_asked_for(model: Path) -> None:
    assert finish(SCRIPTS / "stream.py", model).endswith("\nGeneration complete!\n")


@pytest.mark.slow
def test_four_requests_at_once_on_an_engine_of_module_scope(model: Path) -> None:
    printed = finish(SCRIPTS / "four_at_once.py", model)
    assert re.findall(r"^req-\d", printed, re.M) == ["req-0", "req-1", "req-2", "req-3"]


def test_a_batch_without_an_event_loop_and_without_a_shutdown(model: Path) -> None:
    lines = finish(SCRIPTS / "offline.py", model).splitlines()
    assert [line.partition(", Generated")[0] for line in lines] == [
        "Prompt: 'Hello, my name is'",
        "Prompt: 'The president of the United States is'",
        "Prompt: 'The capital of France is'",
        "Prompt: 'The future of AI is'",
    ]


@pytest.mark.slow
def test_steps_without_an_event_loop_and_without_a_shutdown(model: Path) -> None:
    lines = finish(SCRIPTS / "engine_steps.py", model).splitlines()
    first, second, third = sorted(lines)
    assert (first, second) == ("finished 0: 1", "finished 1: 1")
    assert third in ("finished 2: 1", "finished 2: 2")  # the end of one, or of both at once


@pytest.mark.slow
def test_deltas_with_a_main_guard_and_a_shutdown(model: Path) -> None:
    printed = finish(SCRIPTS / "tutorial.py", model)
    assert printed.count("\nGeneration complete!\n") == 3
    assert printed.endswith("Shutting down engine...\n")


@pytest.mark.slow
def test_a_controller_reads_steps_and_cancels(model: Path) -> None:
    assert finish(SCRIPTS / "stream_task.py", model).endswith("Every task has ended\n")


def test_abort_inside_the_loop_of_a_script_that_then_fails(model: Path) -> None:
    done = launch(SCRIPTS / "abort_in_loop.py", model)
    assert done.returncode == 1, done.stderr  # the script's own, no orphan's
    assert done.stdout == "Aborted\n"
    assert done.stderr.strip().endswith("KeyError: 'and the script fails'")


# ---- timeouts


async def test_wait_for_around_a_stream_is_a_type_error_of_any_engine() -> None:
    async def outputs() -> AsyncIterator[str]:
        yield "text"

    stream: Any = outputs()
    waiting: Any = asyncio.wait_for(stream, timeout=5.0)
    with pytest.raises(TypeError, match="__aiter__"):
        async for _ in waiting:
            pass
    waiting.close()


@pytest.mark.slow
def test_timeout_around_the_loop_aborts_and_frees_every_block(model: Path) -> None:
    arguments = ("--model", model, "--seconds", 0.5, "--pace", 20)
    printed = finish(EXAMPLES / "timeout.py", *arguments)
    assert "Generated so far: " in printed
    assert "timed out" in printed and "cancelled successfully" in printed
    (before, after) = re.findall(r"(\d+) before, (\d+) after", printed)[0]
    assert before == after


@pytest.mark.slow
def test_the_example_of_a_stream_task_stops_at_enough(tmp_path: Path) -> None:
    model = build_tiny_model(tmp_path)
    for name in ("config.json", "generation_config.json"):  # chance must not end the answer before
        fields = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps(fields | {"eos_token_id": None}))
    arguments = ("--model", model, "--step", 5, "--enough", 12)
    printed = finish(EXAMPLES / "stream_task.py", *arguments)
    (count,) = re.findall(r"\[(\d+) tokens, abort\]", printed)
    assert int(count) >= 12


# ---- HTTP


@pytest.fixture
def app(model: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """The app's address and process, under a server that is interrupted at the end."""
    arguments = ("-m", "uvicorn", "http_app:app", "--app-dir", str(SCRIPTS), "--port", "0")
    process = subprocess.Popen(
        [sys.executable, str(HERE / "launch.py"), *arguments],
        env={**ENVIRONMENT, "MODEL": str(model)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if address := re.search(r"running on (http://\S+)", line):
            break
    else:
        raise AssertionError(f"uvicorn ended with {process.wait()}")
    yield address[1], process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
    process.wait(SECONDS)
    process.stderr.close()


def interrupt(process: "subprocess.Popen[str]") -> str:
    """Press Ctrl-C; what the server says of its end."""
    os.killpg(process.pid, signal.SIGINT)
    assert process.stderr is not None
    errors = process.stderr.read()
    assert process.wait(SECONDS) == 0, errors
    return errors


def test_http_app_streams_cancels_and_ends(app: tuple[str, "subprocess.Popen[str]"]) -> None:
    address, process = app
    with httpx2.Client(base_url=address, timeout=SECONDS) as client:
        texts = []
        options = {"prompt": "Once upon a time", "max_tokens": "400"}
        with client.stream("POST", "/generate", params=options) as response:
            assert response.headers["content-type"].startswith("text/plain")
            for line in response.iter_lines():
                if line:
                    texts.append(json.loads(line.removeprefix("data: "))["text"])
                if len(texts) == 3:
                    cancelled = client.delete(f"/cancel/{response.headers['x-request-id']}")
                    assert cancelled.json() == {"message": "Request cancelled"}
        assert 3 <= len(texts) < 400 and texts[-1].startswith(texts[0])
        assert client.get("/num_unfinished").json() == 0
    interrupt(process)


def test_http_client_that_leaves_has_its_request_aborted(
    app: tuple[str, "subprocess.Popen[str]"],
) -> None:
    address, process = app
    with httpx2.Client(base_url=address, timeout=SECONDS) as client:
        options = {"prompt": "Once upon a time", "max_tokens": "400"}
        with client.stream("POST", "/generate", params=options) as response:
            lines = response.iter_lines()  # held: without it the response would be closed
            next(lines)
            assert client.get("/num_unfinished").json() == 1
        num_asked = 0
        while client.get("/num_unfinished").json():  # until the server has seen that we left
            num_asked += 1
            assert num_asked < 1000, interrupt(process)
    interrupt(process)
