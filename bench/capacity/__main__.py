"""`python -m bench.capacity`: what a worker, a socket, an answer, a stream and a session take.

Of everything it is processor time and memory that are measured, of each process for itself, since
other programs take their part of the machine. The engine core replays steps: what a model takes is
measured by `make bench-peers`. docs/deployment/capacity.md says what the figures add up to.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from bench.capacity.parts import ReplayServer
from bench.capacity.rest import at_rest
from bench.capacity.stored import short_answers, stored_sessions
from bench.capacity.streams import running_streams
from bench.harness.report import Figure, report
from bench.harness.servers import running_server
from engine import demo_model
from tests.end_to_end.site.harness import Server
from tests.helpers.redis_topology import running_cluster

FAST_STEP_MS = 5.0
CLUSTERS = (3, 12)  # nodes
SEATS = 256
PARTS = ("rest", "sessions", "streams", "clusters")
DEMO_MODEL = demo_model()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.capacity", description=__doc__)
    parser.add_argument("--sockets", type=int, default=1000)
    parser.add_argument("--sessions", type=int, default=600)
    parser.add_argument("--answers", type=int, default=1024)
    parser.add_argument("--streams", type=int, default=64, help="answers at once")
    parser.add_argument("--rate", type=float, default=30.0, help="tokens/s of each")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    figures: list[Figure] = []
    if "rest" in arguments.parts:
        with replaying(FAST_STEP_MS) as server:
            figures += uvloop.run(at_rest(server, arguments.sockets))
            figures += uvloop.run(short_answers(server, arguments.answers))
    if "sessions" in arguments.parts:
        with replaying(FAST_STEP_MS, model=None) as server:  # whose tokens are words
            figures += uvloop.run(stored_sessions(server, arguments.sessions))
    if "streams" in arguments.parts:
        with replaying(1000 / arguments.rate) as server:
            figures += uvloop.run(running_streams(server, arguments.streams, arguments.rate))
    for size in CLUSTERS if "clusters" in arguments.parts else ():
        with running_cluster(size=size) as cluster:
            with replaying(1000 / arguments.rate, PARLEY_REDIS_URL=cluster.url) as server:
                streams = running_streams(server, arguments.streams, arguments.rate, cluster)
                figures += uvloop.run(streams)
    report("capacity", figures)


@contextmanager
def replaying(step_ms: float, model: Path | None = DEMO_MODEL, **settings: str) -> Iterator[Server]:
    """A server whose steps all take that long; of no `model` it is the one that counts."""
    with tempfile.TemporaryDirectory() as folder:
        schedule = Path(folder) / "schedule"
        schedule.write_text(json.dumps([step_ms]))
        os.environ.update(REPLAY_SCHEDULE=str(schedule), REPLAY_LOG=str(Path(folder) / "log"))
        seats = {"PARLEY_MAX_NUM_SEQS": str(SEATS), "PARLEY_MAX_CONNECTIONS": "0"}
        with running_server(model, ReplayServer, **seats, **settings) as server:
            yield server


if __name__ == "__main__":
    main()
