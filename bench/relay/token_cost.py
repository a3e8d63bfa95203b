"""What a token costs a worker: its processor time and Redis', with store and sockets.

The engine core replays steps of one length, so that all answers get a token at the same moment, as
in a batch; each has a socket of its own. Clients and core are processes of their own and not in it.
"""

import asyncio
import json
import os
import tempfile
from pathlib import Path

import psutil
import uvloop

from bench.harness.report import Figure
from bench.harness.servers import running_server, user_tokens
from bench.harness.socket_client import BenchSocket
from engine import demo_model
from tests.end_to_end.site.harness import Server

NUM_STREAMS = 64
WARM_SECONDS = 1.0  # until all answers have begun
SECONDS = 8.0
MAX_WORKER_MS = 0.04
TOKENS = "parley_generation_tokens_total"
PARTS = {"worker": "server.worker", "redis": "unixsocket"}  # in their command lines


def token_cost(rate: float, kind: type[Server]) -> list[Figure]:
    """Milliseconds for each token, at so many tokens/s and stream."""
    with tempfile.TemporaryDirectory() as folder:
        schedule = Path(folder) / "schedule"
        schedule.write_text(json.dumps([1000 / rate]))
        os.environ.update(REPLAY_SCHEDULE=str(schedule), REPLAY_LOG=str(Path(folder) / "log"))
        with running_server(demo_model(), kind) as server:
            used, num_tokens = uvloop.run(_streams(server, rate))
    where = f"{NUM_STREAMS} streams of {num_tokens / SECONDS / NUM_STREAMS:.0f} tokens/s"
    return [
        Figure(
            f"worker's processor time for a token, {where}", used["worker"], MAX_WORKER_MS, "ms"
        ),
        Figure(f"Redis' processor time for a token, {where}", used["redis"], None, "ms"),
    ]


async def _streams(server: Server, rate: float) -> tuple[dict[str, float], int]:
    tokens = await user_tokens(server, NUM_STREAMS)
    sockets = [await BenchSocket.open(server, token) for token in tokens]
    sessions = [await socket.new_session() for socket in sockets]
    length = int((WARM_SECONDS + SECONDS + 2.0) * rate)
    responses = await asyncio.gather(
        *(
            socket.ask(session, "Tell me a story.", max_output_tokens=length)
            for socket, session in zip(sockets, sessions, strict=True)
        )
    )
    await asyncio.sleep(WARM_SECONDS)
    counted = await asyncio.to_thread(server.metric, TOKENS)
    started = _seconds_of(server)
    await asyncio.sleep(SECONDS)
    ended = _seconds_of(server)
    num_tokens = int(await asyncio.to_thread(server.metric, TOKENS) - counted)
    for socket, response in zip(sockets, responses, strict=True):
        socket.send("stop", response_id=response)
        await socket.next("response.done")
        socket.close()
    return {part: (ended[part] - started[part]) / num_tokens * 1e3 for part in PARTS}, num_tokens


def _seconds_of(server: Server) -> dict[str, float]:
    """Processor time so far, of each part."""
    assert server.process is not None
    seconds = dict.fromkeys(PARTS, 0.0)
    for process in psutil.Process(server.process.pid).children(recursive=True):
        line = " ".join(process.cmdline())
        for part, mark in PARTS.items():
            if mark in line:
                times = process.cpu_times()
                seconds[part] += times.user + times.system
    return seconds
