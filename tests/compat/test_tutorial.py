"""The calls of vLLM's tutorials, as scripts of their own in front of the real core."""

import os
import select
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.tiny_model import build_tiny_model

SCRIPT_SECONDS = 120

TELL_CORE = """
import engine.launcher
class TellingCore(engine.launcher.CoreProcess):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        print("core", self.pid, flush=True)
import engine.async_llm
engine.async_llm.CoreProcess = TellingCore
"""

TUTORIAL = """
import asyncio
from engine import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams

async def stream(engine, prompt, request_id):
    params = SamplingParams(
        max_tokens=20, temperature=0.8, top_p=0.95, seed=42, output_kind=RequestOutputKind.DELTA
    )
    async for output in engine.generate(
        request_id=request_id, prompt=prompt, sampling_params=params
    ):
        for completion in output.outputs:
            if completion.text:
                print(completion.text, end="", flush=True)
        if output.finished:
            print("\\nComplete!")
            break

async def main():
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=MODEL, enforce_eager=True))
    try:
        for number, prompt in enumerate(["The future is", "In a galaxy", "The key to"]):
            await stream(engine, prompt, f"example-{number}")
    finally:
        engine.shutdown()
"""

CONCURRENT = """
import asyncio
from engine import AsyncEngineArgs, AsyncLLMEngine, SamplingParams

engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=MODEL, max_num_seqs=10))

async def ask(number):
    final = None
    async for output in engine.generate(f"Question {number}", SamplingParams(max_tokens=8), number):
        final = output
    return final

async def main():
    outputs = await asyncio.gather(*[ask(number) for number in range(4)])
    for output in outputs:
        assert len(output.outputs[0].token_ids) == 8, output
        print("Complete!")
    assert await engine.get_num_unfinished_requests() == 0
    await engine.check_health()

asyncio.run(main())
"""

TIMEOUT = """
import asyncio
from engine import AsyncEngineArgs, AsyncLLMEngine, SamplingParams

async def main():
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=MODEL, pace=20))
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    blocks = (await engine.metrics())["num_blocks_free"]
    try:
        async for output in asyncio.wait_for(engine.generate("Hi", params, "wrong"), 5.0):
            pass
    except TypeError as error:
        print(error)
    try:
        async with asyncio.timeout(0.3):
            async for output in engine.generate("Hi", params, "right"):
                pass
    except TimeoutError:
        await engine.abort("right")
        print("Timed out")
    await engine.check_health()
    assert (await engine.metrics())["num_blocks_free"] == blocks
    print("Complete!")

asyncio.run(main())
"""

ABORT_INSIDE = """
import asyncio
from engine import AsyncEngineArgs, AsyncLLMEngine, SamplingParams

async def main():
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=MODEL))
    async for output in engine.generate("What is LLM?", SamplingParams(temperature=0.0), 0):
        if not output.finished:
            await engine.abort(0)
    assert output.outputs[0].finish_reason == "abort" and output.request_id == 0
    print("Complete!")
    raise KeyError("and the script fails")

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"))


def _run(script: str, model: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script as a file of its own, and see that its core is gone with it."""
    path = folder / "script.py"
    path.write_text(f"MODEL = {str(model)!r}\n{TELL_CORE}\n{textwrap.dedent(script)}")
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
        timeout=SCRIPT_SECONDS,
    )
    pids = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("core ")]
    assert len(pids) == 1, done
    _wait_gone(pids[0])
    return done


def _wait_gone(pid: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with os.fdopen(pidfd):
        assert select.select([pidfd], [], [], 10)[0], f"the core {pid} still runs"


def test_streaming_tutorial_with_a_main_guard(model: Path, tmp_path: Path) -> None:
    guard = '\nif __name__ == "__main__":\n    asyncio.run(main())\n'
    done = _run(TUTORIAL + guard, model, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Complete!") == 3


def test_concurrent_requests_without_guard_and_shutdown(model: Path, tmp_path: Path) -> None:
    done = _run(CONCURRENT, model, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Complete!") == 4
    assert "Traceback" not in done.stderr


def test_timeout_around_a_stream_aborts_it(model: Path, tmp_path: Path) -> None:
    done = _run(TIMEOUT, model, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "__aiter__" in done.stdout  # wait_for around a generator works on no engine
    assert "Timed out" in done.stdout and "Complete!" in done.stdout


def test_abort_inside_the_loop_and_a_script_that_fails(model: Path, tmp_path: Path) -> None:
    done = _run(ABORT_INSIDE, model, tmp_path)
    assert done.returncode == 1
    assert "Complete!" in done.stdout
    assert done.stderr.strip().endswith("KeyError: 'and the script fails'")
