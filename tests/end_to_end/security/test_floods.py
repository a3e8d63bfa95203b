"""Floods of tiny pieces: another user hardly notices, and the attackers are closed.

The short checks count what the attack costs the worker in processor time, which other load on the
machine does not change. The long one measures the pings of another user, as that user would.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.clients.http_client import admin_token
from tests.end_to_end.oracle.floods import ATTACKS, NUM_ATTACKERS, attack
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT

ATTACK_SECONDS = 8.0
CPU_SECONDS = 0.05  # that one attacker may cost, its connection and handshake included
PINGS_PER_S = 15  # more would be refused
SLOWER_MS = 50.0  # that another user's ping may take longer, at the 99th percentile


def worker_of(server: Server) -> psutil.Process:
    (worker,) = server.children("server.worker")
    return worker


def cpu_of(worker: psutil.Process) -> float:
    times = worker.cpu_times()
    return float(times.user + times.system)


@pytest.mark.row("B6")
@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "messages"])
async def test_floods_cost_little_and_their_senders_are_closed(server: Server, name: str) -> None:
    worker = worker_of(server)
    async with Client(server, token=admin_token(server)) as other:
        await other.reply("session.create", idempotency_key=name.replace(" ", "-"))
        before = cpu_of(worker)
        await asyncio.gather(*(attack(server, name) for _ in range(NUM_ATTACKERS)))
        await other.reply("session.create", idempotency_key=name.replace(" ", "_"))
        spent = cpu_of(worker) - before
    print(f"{name}: {spent:.2f} s of the worker for {NUM_ATTACKERS} attackers")
    assert spent < NUM_ATTACKERS * CPU_SECONDS


async def pings(client: Client, seconds: float) -> list[float]:
    """How long each took, in ms; one after the other."""
    taken = []
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        number += 1
        await asyncio.sleep(1 / PINGS_PER_S)
        sent = time.monotonic()
        await client.send("ping", t=number)
        while (await client.next("pong"))["t"] != number:
            pass
        taken.append((time.monotonic() - sent) * 1000)
    return taken


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


@pytest.fixture
def quiet_server(oracle_model: Path, tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "data", oracle_model, PARLEY_MAX_MESSAGES_PER_S="20")
    try:
        yield server.start()
    finally:
        server.close()


@pytest.mark.row("B6")
@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
async def test_another_users_pings_hardly_change_beside_eight_attackers(
    quiet_server: Server, name: str
) -> None:
    """The attackers come back at once, all of them, for as long as it lasts."""
    server = quiet_server
    memory = worker_of(server).memory_info().rss
    async with Client(server, token=admin_token(server)) as other:
        await other.next("connection.ready")
        alone = await pings(other, ATTACK_SECONDS)
        attackers = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.end_to_end.oracle.floods"),
            *(server.url, server.token, name, str(ATTACK_SECONDS)),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        beside = await pings(other, ATTACK_SECONDS)
        async with asyncio.timeout(PATIENCE):
            rounds = int((await attackers.communicate())[0])
    grown = (worker_of(server).memory_info().rss - memory) / 2**20
    print(
        f"{name}: p99 {p99(alone):.1f} ms alone, {p99(beside):.1f} ms beside {rounds} attacks, "
        f"max {max(beside):.1f} ms; {grown:.0f} MiB more"
    )
    assert rounds >= NUM_ATTACKERS
    assert p99(beside) <= p99(alone) + SLOWER_MS
