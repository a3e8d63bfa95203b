"""The real core process, through a raw socket."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import zmq

from engine.config import EngineConfig
from engine.core.__main__ import num_threads, translate_out_of_memory
from engine.core.scheduling.sequence import ScheduledSequence, Tokens
from engine.ipc import (
    Abort,
    ClientMessage,
    CoreMessage,
    Dead,
    Hello,
    Ping,
    Pong,
    Ready,
    SequenceOutput,
    StepOutputs,
    Utility,
    UtilityReply,
    decode_core_message,
    encode,
)
from tests.engine.helpers.fakes import make_request
from tests.helpers.root import ROOT
from tests.helpers.tiny_model import build_oracle_model

TIMEOUT_MS = 20_000
STANDBY = ("-m", "engine.core", "--standby")  # and the memory that it needs


class CoreUnderTest:
    """`python -m engine.core` and one raw DEALER socket."""

    def __init__(
        self, model: Path, folder: Path, program: tuple[str, ...] = (), **settings: Any
    ) -> None:
        self.address = f"ipc://{folder}/core.sock"
        config = EngineConfig(
            model=str(model), address=self.address, served_model_name="tiny", **settings
        )
        self.process = subprocess.Popen(
            [sys.executable, "-P", *(program or ("-m", "engine.core"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(msgspec.json.encode(config) + b"\n")
        self.process.stdin.flush()
        self.report: dict[str, Any] = msgspec.json.decode(self.process.stdout.readline())
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.set(zmq.IDENTITY, b"me")
        self.socket.connect(self.address)

    def hello(self) -> Ready:
        self.send(Hello("me", os.getpid()))
        ready = self.receive()
        assert isinstance(ready, Ready)
        return ready

    def send(self, message: ClientMessage) -> None:
        self.socket.send(encode(message))

    def receive(self) -> CoreMessage:
        assert self.socket.poll(TIMEOUT_MS), "the core says nothing"
        message: CoreMessage = decode_core_message(self.socket.recv())
        return message

    def outputs_until(
        self, is_last: Callable[[list[SequenceOutput]], bool]
    ) -> list[SequenceOutput]:
        """Outputs, of one request, until they are what the test waits for."""
        outputs: list[SequenceOutput] = []
        while not is_last(outputs):
            message = self.receive()
            assert isinstance(message, StepOutputs)
            outputs += message.outputs
        return outputs

    def call(self, name: str) -> Any:
        self.send(Utility(1, name))
        while not isinstance(message := self.receive(), UtilityReply):
            pass
        assert message.error is None
        return message.value

    def close(self) -> None:
        self.socket.close(linger=0)
        self.context.term()
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        self.process.wait()


def test_torchs_lack_of_memory_is_a_memory_error_and_nothing_else_is() -> None:
    def allocate(scheduled: list[ScheduledSequence]) -> Callable[[], Tokens]:
        torch.empty(1 << 50)
        return list

    def fail(scheduled: list[ScheduledSequence]) -> Callable[[], Tokens]:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(MemoryError):
        translate_out_of_memory(allocate)([])
    with pytest.raises(RuntimeError, match="mat1"):
        translate_out_of_memory(fail)([])


def _is_ended(outputs: list[SequenceOutput]) -> bool:
    return bool(outputs) and outputs[-1].finish_reason is not None


def _tokens(outputs: list[SequenceOutput]) -> list[int]:
    return [token for output in outputs for token in output.new_token_ids]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_oracle_model(tmp_path_factory.mktemp("oracle"))


@contextlib.contextmanager
def _running_core(oracle: Path, *program: str) -> Iterator[CoreUnderTest]:
    with tempfile.TemporaryDirectory(prefix="parley-") as folder:  # a socket's path must be short
        core = CoreUnderTest(oracle, Path(folder), program, num_blocks=256)
        try:
            yield core
        finally:
            core.close()


@pytest.fixture(scope="module")
def core(oracle: Path) -> Iterator[CoreUnderTest]:
    """One process for all tests that leave it alive: it takes seconds to start."""
    with _running_core(oracle) as core:
        yield core


def test_a_real_core_counts_stops_and_frees_every_block(core: CoreUnderTest) -> None:
    assert core.report["ready"] is True
    ready = core.hello()
    assert (ready.num_blocks, ready.vocab_size, ready.eos_token_ids) == (256, 17_000, [])
    assert core.hello() == ready  # said twice, answered twice

    core.send(make_request("counted", prompt=[417], max_tokens=20))
    assert _tokens(core.outputs_until(_is_ended)) == list(range(418, 438))

    core.send(make_request("long", prompt=[5000], max_tokens=3000))
    core.outputs_until(lambda outputs: len(_tokens(outputs)) >= 10)
    core.send(Abort(["long"]))
    end = core.outputs_until(_is_ended)[-1]
    assert end.finish_reason == "abort"
    assert core.call("check_integrity") is None
    metrics = core.call("metrics")
    assert metrics["num_blocks_free"] == metrics["num_blocks_total"] == 256
    assert core.call("num_unfinished") == 0

    core.send(Ping(9))
    pong = core.receive()
    assert isinstance(pong, Pong) and (pong.number, pong.epoch) == (9, ready.epoch)


def test_killing_a_client_ends_its_requests(core: CoreUnderTest) -> None:
    core.hello()
    victim = subprocess.Popen(
        [sys.executable, "-c", _CLIENT_SCRIPT, core.address],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with victim:
        assert victim.stdout is not None and victim.stdout.readline() == b"running\n"
        assert core.call("num_unfinished") == 1
        victim.kill()
    deadline = time.monotonic() + 5
    while core.call("num_unfinished") and time.monotonic() < deadline:
        pass
    metrics = core.call("metrics")
    assert metrics["num_running"] == 0
    assert metrics["num_blocks_free"] == metrics["num_blocks_total"]


_CLIENT_SCRIPT = """
import os, sys, time, zmq
from engine.ipc import Hello, encode
from tests.engine.helpers.fakes import make_request
socket = zmq.Context().socket(zmq.DEALER)
socket.set(zmq.IDENTITY, b"victim")
socket.connect(sys.argv[1])
socket.send(encode(Hello("victim", os.getpid())))
socket.send(encode(make_request("a", prompt=[1], max_tokens=4000)))
socket.recv(), socket.recv()
print("running", flush=True)
time.sleep(60)
"""


def test_garbage_makes_a_client_dead_and_disturbs_nobody(core: CoreUnderTest) -> None:
    core.hello()
    core.send(make_request("a", prompt=[1], max_tokens=200))
    other = core.context.socket(zmq.DEALER)
    other.connect(core.address)
    for garbage in (b"", b"\xc1", b"not msgpack", encode(Abort([]))[:-1]):
        other.send(garbage)
    other.close(linger=1000)
    assert len(_tokens(core.outputs_until(_is_ended))) == 200


@pytest.mark.parametrize("how", ["eof", "sigterm"])
def test_the_core_exits_cleanly_and_says_so(oracle: Path, how: str) -> None:
    with _running_core(oracle) as core:
        core.hello()
        core.process.send_signal(signal.SIGINT)  # ignored
        if how == "eof":
            assert core.process.stdin is not None
            core.process.stdin.close()
        else:
            core.process.terminate()
        assert isinstance(core.receive(), Dead)
        assert core.process.wait(10) == 0
        assert not Path(core.address.removeprefix("ipc://")).exists()


def test_a_failing_forward_pass_is_reported_and_ends_the_process(oracle: Path) -> None:
    with _running_core(oracle, "-c", _FAILING_SCRIPT) as core:
        core.hello()
        core.send(make_request("a", prompt=[1]))
        while not isinstance(message := core.receive(), Dead):
            pass
        assert message.reason == "ZeroDivisionError in the step loop"
        assert core.process.wait(10) == 1


_FAILING_SCRIPT = """
import sys
from engine.core import __main__ as core; from engine.core.runner import model_runner
model_runner.ModelRunner.launch = lambda runner, scheduled: 1 / 0
sys.exit(core.main())
"""


def test_a_broken_folder_is_one_clear_line(tmp_path: Path) -> None:
    core = CoreUnderTest(tmp_path, tmp_path)
    try:
        problem = f"{tmp_path} has no config.json"
        assert core.report == {"ready": False, "error": problem, "is_refusal": True}
        assert core.process.wait(10) == 1
        assert core.process.stderr is not None
        assert b"Traceback" not in core.process.stderr.read()
    finally:
        core.close()


def test_a_standby_core_is_loaded_and_serves_when_it_is_called(oracle: Path) -> None:
    with _running_core(oracle, *STANDBY, "1") as core:
        assert core.report == {"standby": True}
        assert not Path(core.address.removeprefix("ipc://")).exists()
        assert core.process.stdin is not None and core.process.stdout is not None
        core.process.stdin.write(b"serve\n")
        core.process.stdin.flush()
        report = msgspec.json.decode(core.process.stdout.readline())
        ready = core.hello()
        assert report["ready"] and report["num_blocks"] == ready.num_blocks
        assert report["standby_bytes"] > 1 << 20
        core.send(make_request("a", prompt=[5], max_tokens=3))
        assert _tokens(core.outputs_until(_is_ended)) == [6, 7, 8]


def test_a_standby_core_does_not_start_where_memory_is_short(oracle: Path) -> None:
    with _running_core(oracle, *STANDBY, str(1 << 60)) as core:
        assert core.report["ready"] is False
        assert "MiB of memory are needed" in core.report["error"]


def test_a_standby_core_ends_with_its_parent(oracle: Path) -> None:
    with _running_core(oracle, *STANDBY, "1") as core:
        assert core.report == {"standby": True} and core.process.stdin is not None
        core.process.stdin.close()
        assert core.process.wait(TIMEOUT_MS / 1000) == 1


@pytest.mark.parametrize(
    ("threads", "num_sharing", "told", "expected"),
    [
        (0, 1, None, 8),
        (0, 2, None, 4),
        (0, 3, None, 2),
        (0, 9, None, 1),
        (5, 2, None, 5),
        (0, 2, "8", 8),
    ],
)
def test_a_core_has_its_share_of_the_threads_unless_somebody_says_how_many(
    monkeypatch: pytest.MonkeyPatch, threads: int, num_sharing: int, told: str | None, expected: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if told is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", told)
    config = EngineConfig(
        model="", address="", served_model_name="", threads=threads, num_sharing=num_sharing
    )
    assert num_threads(config, 8) == expected
