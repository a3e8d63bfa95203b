"""`python -m bench.relay`: what the server adds between a step of the engine and the sockets.

The engine core replays recorded step durations (`replay_core.py`), so it costs next to
nothing and its tokens come when a real one's would. Each delta is measured from the moment at which
it could first have been sent: when its first token left the core, or 25 ms after the previous
delta, which is how long the server collects text on purpose.

A second part counts the calls to Redis that the workers send for each token, at two rates. A third
says what a token costs a worker, a fourth compares OpenAI's door with the websocket; `--doors` is
that one alone.
"""

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import uvloop

from bench.harness.report import Figure, latencies, report
from bench.harness.servers import running_server, user_tokens
from bench.harness.socket_client import BenchSocket
from bench.relay.doors import doors
from bench.relay.token_cost import token_cost
from server.runs.producer import FLUSH_SECONDS
from tests.end_to_end.site.harness import Server
from tests.helpers.tiny_model import oracle_word

SCHEDULE = Path(__file__).parents[1] / "schedules" / "decode_64.json"
WORD = len(oracle_word(0))
MAX_RELAY_MS = 5.0
MAX_CALLS_PER_TOKEN = 0.25
MAX_CALLS_PER_SECOND = 40.0
FAST, SLOW = 160.0, 40.0  # tokens/s of a stream
TOKEN_COST_RATE = 30.0
DOOR_RATES = (30.0, 100.0)
NUM_COUNTED_STREAMS = 32  # enough that what a worker asks for itself weighs little


class ReplayServer(Server):
    """Its engine core replays steps instead of running a model."""

    module = "bench.relay.replay_server"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.relay", description=__doc__)
    parser.add_argument("--streams", type=int, default=500, help="answers at once")
    parser.add_argument("--seats", type=int, default=64, help="answers in the engine's batch")
    parser.add_argument("--tokens", type=int, default=100, help="length of each answer")
    parser.add_argument("--workers", type=int, default=1, help="web processes")
    parser.add_argument("--record", action="store_true", help="record the schedule again, and end")
    parser.add_argument("--doors", action="store_true", help="compare two doors, and end")
    arguments = parser.parse_args()
    if arguments.record:
        record(arguments.seats)
        return
    if arguments.doors:
        report("doors", compare_doors())
        return
    figures = relay(arguments.streams, arguments.seats, arguments.tokens, arguments.workers)
    for rate in (FAST, SLOW):
        figures += redis_calls(rate)
    figures += token_cost(TOKEN_COST_RATE, ReplayServer)
    figures += compare_doors()
    report("relay", figures)


def compare_doors() -> list[Figure]:
    """With a step for each chunk, and with several."""
    return [figure for rate in DOOR_RATES for figure in doors(rate, ReplayServer)]


def relay(num_streams: int, seats: int, num_tokens: int, num_workers: int) -> list[Figure]:
    """How late deltas are, over all of `num_streams` answers."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with replay_server(SCHEDULE, log, seats, num_workers) as server:
            sockets = uvloop.run(streams(server, num_streams, num_tokens))
        left = read_log(log)
    late = [x for rid, socket in sockets.items() for x in lateness(socket, rid, left[rid])]
    figures = latencies(f"lateness of a delta, {num_streams} streams", late, MAX_RELAY_MS)
    return [*figures, Figure("deltas measured", len(late), None, "")]


def replay_server(
    schedule: Path, log: Path, seats: int, num_workers: int = 1
) -> AbstractContextManager[Server]:
    os.environ.update(REPLAY_SCHEDULE=str(schedule), REPLAY_LOG=str(log))
    settings = {
        "PARLEY_MAX_NUM_SEQS": str(seats),
        "PARLEY_MAX_NUM_QUEUED_REQS": "0",  # all ask at once
        "PARLEY_WORKERS": str(num_workers),
    }
    return running_server(None, ReplayServer, **settings)


async def streams(server: Server, num_streams: int, num_tokens: int) -> dict[str, BenchSocket]:
    """Ask once on each of so many sockets at the same time, and read all answers to their ends."""
    tokens = await user_tokens(server, num_streams)
    sockets = [await BenchSocket.open(server, token) for token in tokens]
    sessions = [await socket.new_session() for socket in sockets]

    async def one(socket: BenchSocket, session: str) -> str:
        settings = {"temperature": 0, "max_output_tokens": num_tokens}
        response = await socket.ask(session, oracle_word(0), **settings)
        await socket.next("response.done")
        return response

    asking = (one(socket, session) for socket, session in zip(sockets, sessions, strict=True))
    responses = await asyncio.gather(*asking)
    for socket in sockets:
        socket.close()
    return dict(zip(responses, sockets, strict=True))


def read_log(path: Path) -> dict[str, list[float]]:
    """Response id → when each of its tokens left the core."""
    entries = map(json.loads, path.read_text().splitlines())
    return {internal_id.rpartition("-")[0]: times for internal_id, times in entries}


def lateness(socket: BenchSocket, response_id: str, left: Sequence[float]) -> Iterator[float]:
    """Seconds by which each delta of an answer came later than it could have come."""
    earliest = 0.0
    for at, payload in socket.received:
        if b'"type":"response.output_text.delta"' in payload:
            body = json.loads(payload)
            assert body["response_id"] == response_id
            first_token = body["text_offset"] // WORD
            yield max(0.0, at - max(earliest, left[first_token]))
            earliest = at + FLUSH_SECONDS


def redis_calls(rate: float) -> list[Figure]:
    """Calls for each token, and for each stream and second, at so many tokens/s and stream."""
    num_tokens = int(rate * 10)
    with tempfile.TemporaryDirectory() as folder:
        schedule = Path(folder) / "schedule"
        schedule.write_text(json.dumps([1000 / rate]))
        with replay_server(schedule, Path(folder) / "log", NUM_COUNTED_STREAMS) as server:
            before = server.metric("parley_store_calls_total")
            sockets = uvloop.run(streams(server, NUM_COUNTED_STREAMS, num_tokens))
            calls = server.metric("parley_store_calls_total") - before
        left = read_log(Path(folder) / "log")
    seconds = sum(left[rid][-1] - left[rid][0] for rid in sockets) / len(sockets)
    achieved = num_tokens / seconds
    where = f"at {achieved:.0f} tokens/s and stream"
    per_token = calls / num_tokens / NUM_COUNTED_STREAMS
    per_second = calls / seconds / NUM_COUNTED_STREAMS
    targets: Mapping[bool, tuple[float | None, float | None]] = {
        True: (MAX_CALLS_PER_TOKEN, None),
        False: (None, MAX_CALLS_PER_SECOND),
    }
    token_target, second_target = targets[rate >= FAST]
    return [
        Figure(f"Redis calls per token {where}", per_token, token_target, ""),
        Figure(f"Redis calls per stream and second {where}", per_second, second_target, ""),
    ]


def record(seats: int) -> None:
    """Write the durations of decode steps of the demo model with a full batch."""
    from engine import demo_model

    os.environ.pop("REPLAY_SCHEDULE", None)
    with tempfile.TemporaryDirectory() as folder:
        recorded = Path(folder) / "recorded"
        os.environ.update(REPLAY_RECORD=str(recorded), REPLAY_LOG=str(Path(folder) / "log"))
        with running_server(demo_model(), ReplayServer, PARLEY_MAX_NUM_SEQS=str(seats)) as server:
            uvloop.run(streams(server, 2 * seats, 200))
        durations = json.loads(recorded.read_text())
    SCHEDULE.parent.mkdir(exist_ok=True)
    SCHEDULE.write_text(json.dumps(durations) + "\n")


if __name__ == "__main__":
    main()
