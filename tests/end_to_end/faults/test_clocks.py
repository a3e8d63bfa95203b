"""N10, R17: clocks that jump, Redis' own or those of all our processes; libfaketime moves them."""

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sessions.connection.redis_binary import find_server
from tests.end_to_end.frames.client_model import Frame
from tests.end_to_end.frames.raw import ask, log_in, request
from tests.end_to_end.site.harness import Server
from tests.end_to_end.site.wiring import at_both, pid_of, replica_of, two_workers_serve
from tests.helpers.redis_server import redis_6_2, running_redis
from tests.helpers.tiny_model import oracle_answer, oracle_word

pytestmark = pytest.mark.slow

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
HOUR, DAY = 3_600, 86_400
LEASE_SECONDS = 10.0
NUM_TOKENS = 400
PATIENT = {"ping_interval": None}  # of our clients: a worker that hangs answers no ping
SETTINGS: Frame = {"temperature": 0, "max_output_tokens": NUM_TOKENS}


class Clock:
    """The wall clock of the processes started with `environment`. Monotonic time stays true."""

    def __init__(self, folder: Path) -> None:
        if LIBRARY is None:
            pytest.skip("no libfaketime: apt install libfaketime")
        self._offset = folder / "offset"
        self.jump(0)
        self.environment = {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def jump(self, seconds: int) -> None:
        """So far from the true time, from now on."""
        new = self._offset.with_suffix(".new")
        new.write_text(f"{seconds:+d}")
        new.replace(self._offset)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, for sockets."""
    with tempfile.TemporaryDirectory(prefix="clock-") as name:
        yield Path(name)


@contextmanager
def serving(folder: Path, model: Path, binary: str, **environment: str) -> Iterator[Server]:
    """Two workers on a Redis of that binary."""
    with running_redis(binary) as redis:
        settings = {"PARLEY_WORKERS": "2", "PARLEY_PACE": "100", "PARLEY_REDIS_URL": redis.url}
        server = Server(folder / "data", model, None, **settings, **environment)
        try:
            yield server.start()
        finally:
            server.close()


@pytest.mark.row("R17")
async def test_answers_survive_the_jumps_of_redis_clock(oracle_model: Path, folder: Path) -> None:
    clock = Clock(folder)
    if (real := redis_6_2()) is None:
        pytest.skip("Debian's redis-server does not start under libfaketime")
    binary = folder / "redis-server"
    settings = " ".join(f"{name}={value}" for name, value in clock.environment.items())
    binary.write_text(f'#!/bin/sh\nexec env {settings} {real} "$@"\n')
    binary.chmod(0o700)
    with serving(folder, oracle_model, str(binary)) as server:
        await two_workers_serve(server)
        async with at_both(server, **PATIENT) as (owner, other):
            session = await owner.new_session()
            await other.reply("session.subscribe", session_id=session)
            pid = pid_of(await replica_of(owner))
            # Back: the lease of an owner that hangs now lies an hour ahead.
            response = await owner.ask(session, oracle_word(0), settings=SETTINGS)
            await other.deltas(response, 5)
            os.kill(pid, signal.SIGSTOP)
            clock.jump(-HOUR)
            try:
                async with asyncio.timeout(LEASE_SECONDS + 2):
                    assert (await other.next("response.queued"))["reason"] == "takeover"
                answer = await other.done(response)
                assert (answer.final, answer.fence) == (oracle_answer(0, NUM_TOKENS), 2)
            finally:
                os.kill(pid, signal.SIGCONT)
            assert (await owner.done(response)).final == answer.final
            # Forward: every lease has ended, although all owners live.
            for client, word in ((owner, 1), (other, 2)):
                response = await client.ask(session, oracle_word(word), settings=SETTINGS)
                await client.deltas(response, 5)
                clock.jump(HOUR if word == 2 else 0)
                for viewer in (owner, other):
                    assert (await viewer.done(response)).final == oracle_answer(word, NUM_TOKENS)


@pytest.mark.row("N10")
async def test_the_jumps_of_our_own_clocks_change_nothing(oracle_model: Path, folder: Path) -> None:
    clock = Clock(folder)
    with serving(folder, oracle_model, find_server().binary, **clock.environment) as server:
        await two_workers_serve(server)
        cookie = ("Cookie", await log_in(server))
        async with at_both(server, **PATIENT) as (owner, other):
            session = await owner.new_session()
            await other.reply("session.subscribe", session_id=session)
            for word, seconds in enumerate((-DAY, HOUR, 0)):
                response = await owner.ask(session, oracle_word(word), settings=SETTINGS)
                await other.deltas(response, 5)
                clock.jump(seconds)
                for viewer in (owner, other):
                    answer = await viewer.done(response)
                    assert (answer.final, answer.fence) == (oracle_answer(word, NUM_TOKENS), 1)
                listed = await ask(server, request(server, "GET", "/v1/sessions", [cookie]))
                assert listed.status == 200
            stopped = await owner.ask(session, oracle_word(9), settings=SETTINGS)
            await other.deltas(stopped, 5)
            clock.jump(-DAY)
            await other.send("stop", response_id=stopped)
            assert (await other.done(stopped)).final == (await owner.done(stopped)).final
            # An owner that hangs is replaced as soon as ever.
            response = await owner.ask(session, oracle_word(5), settings=SETTINGS)
            await other.deltas(response, 5)
            pid = pid_of(await replica_of(owner))
            os.kill(pid, signal.SIGSTOP)
            try:
                answer = await other.done(response)
            finally:
                os.kill(pid, signal.SIGCONT)
            assert (answer.final, answer.fence) == (oracle_answer(5, NUM_TOKENS), 2)
            assert (await owner.done(response)).final == answer.final
