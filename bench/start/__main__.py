"""`python -m bench.start`: from `parley serve` to its first good `/readyz`, and over a dead core.

Each round starts a server twice on the same data, the second time with a standby core, and kills
its engine core during an answer: how long until a core serves again, by the supervisor's log, and
until the answer goes on? Processor time is that of all processes, from their start to the good
`/readyz`. The first start of all is not counted: it reads what later ones find in the system's
cache of files.
"""

import argparse
import json
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

import psutil
import uvloop

from bench.harness.report import Figure, report
from bench.harness.socket_client import BenchSocket
from engine import demo_model
from server.config.settings import DEMO_PACE
from tests.end_to_end.site.harness import Server

START_SECONDS = 4.0
RESTART_SECONDS = 2.5
STANDBY_SECONDS = 0.5
LOOK_SECONDS = 0.01
SERVES_AGAIN = "core serves again"
IS_READY = "standby core is ready"
NUM_TOKENS = 600  # of an answer: it lasts longer than the core is away
PROMPT = "Please tell me a very long story."


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.start", description=__doc__)
    parser.add_argument("--model", type=Path, default=demo_model(), help="folder of a checkpoint")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    starts, processor = [], []
    restarts, takeovers = [], []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        pace = {"PARLEY_PACE": f"{DEMO_PACE:g}"}
        with closing(Server(data, arguments.model, None, **pace)) as server:
            start(server)
        for _ in range(arguments.rounds):
            with closing(Server(data, arguments.model, None, **pace)) as server:
                seconds, used = start(server)
                starts.append(seconds)
                processor.append(used)
                restarts.append(kill_core(server))
            with closing(
                Server(data, arguments.model, None, **pace, PARLEY_STANDBY_CORE="1")
            ) as server:
                said = server.log(None).count(IS_READY)  # of those before it, in the same file
                start(server)
                while server.log(None).count(IS_READY) == said:
                    time.sleep(LOOK_SECONDS)  # only its log tells of it: there is no event
                takeovers.append(kill_core(server))
    report(
        "start",
        [
            *figures("start", starts, START_SECONDS),
            *figures("processor time of a start", processor, None),
            *figures("killed core replaced", [core for core, _ in restarts], RESTART_SECONDS),
            *figures("its answer goes on", [answer for _, answer in restarts], None),
            *figures(
                "replaced by a standby core", [core for core, _ in takeovers], STANDBY_SECONDS
            ),
            *figures("then its answer goes on", [answer for _, answer in takeovers], None),
        ],
    )


def figures(what: str, seconds: list[float], target: float | None) -> list[Figure]:
    return [
        Figure(f"{what}, median", statistics.median(seconds), target, "s"),
        Figure(f"{what}, max", max(seconds), None, "s"),
    ]


def start(server: Server) -> tuple[float, float]:
    """Seconds until `/readyz` is good, and of processor time in all processes."""
    begun = time.monotonic()
    server.begin_start()
    assert server.process is not None
    while not server.is_ready():
        assert server.process.poll() is None, server.log()
        time.sleep(LOOK_SECONDS)  # a start is observed from outside: there is no event to wait for
    seconds = time.monotonic() - begun
    own = psutil.Process(server.process.pid)
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    ended = own.cpu_times()
    of_ended = ended.children_user + ended.children_system
    return seconds, sum(each.user + each.system for each in times) + of_ended


def kill_core(server: Server) -> tuple[float, float]:
    """Seconds until a core serves again, and until an answer goes on."""
    said = server.log(None).count(SERVES_AGAIN)
    seconds = uvloop.run(gap(server))
    events = [line for line in server.log(None).splitlines() if SERVES_AGAIN in line]
    assert len(events) == said + 1, events
    return float(json.loads(events[-1])["after_seconds"]), seconds


async def gap(server: Server) -> float:
    """Seconds from the death of the core to the next text of an answer."""
    socket = await BenchSocket.open(server)
    session = await socket.new_session()
    await socket.ask(session, PROMPT, max_output_tokens=NUM_TOKENS, temperature=0)
    for _ in range(10):
        await socket.next("response.output_text.delta")
    serving = next(each for each in server.children("engine.core") if is_serving(each))
    killed = time.monotonic()
    serving.kill()
    await socket.next("response.queued")
    text = await socket.next("response.output_text.delta")
    socket.close()
    return text.at - killed


def is_serving(core: psutil.Process) -> bool:
    return "--standby" not in core.cmdline()


if __name__ == "__main__":
    main()
