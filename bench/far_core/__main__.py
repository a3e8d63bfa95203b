"""`python -m bench.far_core`: what a core on another machine costs beside one on this.

A core without a model sends steps, as a real one does, to one client: by a unix socket, and by TCP
with CURVE over this machine's own network, in turns. Shown are the processor time of either
process for a step and for a token, and how long a step takes from one to the other. What a net in
between adds is not in it. With `--flood` another client, of the same key, sends messages meanwhile
as fast as it can.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import zmq
from rich.console import Console
from rich.table import Table

from bench.harness.report import percentile
from engine.client.far.connection import FarCoreConnection
from engine.client.requests.core_connection import CoreConnection
from engine.client.requests.core_link import CoreState
from engine.config import EngineConfig, FarDoor
from engine.core.io_thread import IoThread
from engine.far.keys import make_keys, read_keys, trust
from engine.far.sockets import set_client
from engine.ipc import (
    Abort,
    AddRequest,
    Hello,
    Pong,
    Ready,
    SchedulerStats,
    SequenceOutput,
    StepOutputs,
    encode,
)
from engine.sampling_params import SamplingParams

STATS = SchedulerStats(1, 0, 0, 100, 50)
FAR = "tcp://127.0.0.1:17700"
READY_SECONDS = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.far_core", description=__doc__)
    parser.add_argument("--core", type=Path, help=argparse.SUPPRESS)  # we are the core
    parser.add_argument("--flooder", type=Path, help=argparse.SUPPRESS)  # we are the other client
    parser.add_argument("--flood", type=int, help="bytes of each message of another client")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200, help="in a round")
    parser.add_argument("--rate", type=float, default=30.0, help="steps a second")
    arguments = parser.parse_args()
    if arguments.core is not None:
        serve(arguments.core, arguments.rate)
        return
    if arguments.flooder is not None:
        flood(arguments.flooder, arguments.flood)
        return
    with tempfile.TemporaryDirectory(prefix="parley-") as folder:
        core_key, client_key = (make_keys(Path(folder, name)) for name in ("core", "client"))
        trust(Path(folder, "core"), "client", client_key)
        trust(Path(folder, "client"), "core", core_key)
        command = [sys.executable, "-m", "bench.far_core", "--core", folder]
        processes = [subprocess.Popen([*command, "--rate", str(arguments.rate)])]
        if arguments.flood is not None:
            command = [sys.executable, "-m", "bench.far_core", "--flooder", folder]
            processes.append(subprocess.Popen([*command, "--flood", str(arguments.flood)]))
        try:
            asyncio.run(measure(Path(folder), processes[0].pid, arguments.rounds, arguments.steps))
        finally:
            for process in processes:
                process.kill()
                process.wait()


# ---- the core ---------------------------------------------------------------------------------


def serve(folder: Path, rate: float) -> None:
    """Answer a request with as many steps as it may have tokens, each of as many as its prompt."""
    address = f"ipc://{folder}/core.sock"
    config = EngineConfig(model="", address=address, served_model_name="")
    ready = Ready(1, os.getpid(), 8192, 100, 16, 1000, [0], 64, "float32", "none", 0.0, config)
    door = FarDoor(address=FAR, keys=str(folder / "core"))
    io = IoThread(address, ready, lambda ping: Pong(ping.number, 1, 0.0, STATS), far=door)
    io.start()
    while True:
        match io.inbox.get():
            case (client_id, AddRequest() as request):
                _answer(io, client_id, request, 1 / rate)


def _answer(io: IoThread, client_id: str, request: AddRequest, step_seconds: float) -> None:
    due = time.monotonic()
    for step in range(request.params.max_tokens or 0):
        due += step_seconds
        # A step is due at its time, as in a core that decodes at that pace.
        time.sleep(max(0.0, due - time.monotonic()))
        now = time.monotonic()
        outputs = [
            SequenceOutput(f"{request.request_id}-{n}", [step], scheduled_ts=now)
            for n in range(len(request.prompt_token_ids))
        ]
        io.send(client_id, StepOutputs(1, step, outputs, STATS))


def flood(folder: Path, num_bytes: int) -> None:
    """Until it is killed. What it sends is read to its end, and then ignored."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.set(zmq.IDENTITY, b"flooding")
        set_client(socket, read_keys(folder / "client"), FAR)
        socket.set(zmq.RECONNECT_IVL, 100)  # the core may not be there yet
        socket.connect(FAR)
        socket.send(encode(Hello("flooding", os.getpid())))
        message = encode(Abort(["x" * num_bytes]))
        while True:
            socket.send(message)


# ---- the client -------------------------------------------------------------------------------


class Reader:
    """Notes how old each step is when it is here."""

    def __init__(self, num_steps: int) -> None:
        self.ages: list[float] = []
        self.has_all = asyncio.Event()
        self._num_steps = num_steps

    def on_core_outputs(self, outputs: Sequence[SequenceOutput]) -> None:
        self.ages.append(time.monotonic() - outputs[0].scheduled_ts)
        if len(self.ages) == self._num_steps:
            self.has_all.set()

    def on_core_silent(self, request_ids: Sequence[str]) -> None:
        pass

    def on_core_state(self, state: CoreState, reason: str) -> None:
        pass


async def measure(folder: Path, core_pid: int, num_rounds: int, num_steps: int) -> None:
    ways = {"unix socket": False, "TCP with CURVE": True}
    table = Table("answers", "", "client, µs a step", "core", "both, µs a token", "ms there", "p99")
    for num_answers in (1, 16, 64):
        found: dict[str, list[tuple[float, ...]]] = {name: [] for name in ways}
        for _ in range(num_rounds):
            for name, is_far in ways.items():
                found[name].append(await _round(folder, core_pid, is_far, num_answers, num_steps))
        for name, rounds in found.items():
            client, core, age, late = (median(values) for values in zip(*rounds, strict=True))
            cells = (client * 1e6, core * 1e6, (client + core) * 1e6 / num_answers)
            ages = (f"{age * 1e3:.2f}", f"{late * 1e3:.2f}")
            table.add_row(str(num_answers), name, *(f"{cell:.1f}" for cell in cells), *ages)
    Console(width=110).print(table)


async def _round(
    folder: Path, core_pid: int, is_far: bool, num_answers: int, num_steps: int
) -> tuple[float, ...]:
    """Processor seconds of client and core for a step; the median age of one, and its p99."""
    link: CoreConnection
    if is_far:
        link = FarCoreConnection(FAR, folder / "client")
    else:
        link = CoreConnection(f"ipc://{folder}/core.sock", reconnect=True)
    reader = Reader(num_steps)
    link.listen(reader)
    async with asyncio.timeout(READY_SECONDS):
        await link.wait_ready()
    before = (_seconds(os.getpid()), _seconds(core_pid))
    params = SamplingParams(max_tokens=num_steps)
    link.send(AddRequest("r", [1] * num_answers, params, time.time()))
    await reader.has_all.wait()
    after = (_seconds(os.getpid()), _seconds(core_pid))
    link.close()
    used = [(late - early) / num_steps for early, late in zip(before, after, strict=True)]
    return (*used, median(reader.ages), percentile(reader.ages, 99))


def _seconds(pid: int) -> float:
    """Of all of its threads: the kernel's count of nanoseconds, not that of ticks."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


if __name__ == "__main__":
    main()
