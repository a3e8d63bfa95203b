"""Workers leave when they are asked to: their answers end in time, or go on elsewhere."""

import asyncio
import os
import signal
from collections.abc import Callable

import psutil
import pytest

from server.config.intervals import SHORTENED
from tests.end_to_end.clients.http_client import Http, admin_token
from tests.end_to_end.frames.client_model import Answer, Frame
from tests.end_to_end.site.harness import Client, Server
from tests.end_to_end.site.owned_answer import NUM_TOKENS, begin, owner_and_other, resume
from tests.end_to_end.site.wiring import two_workers_serve
from tests.helpers.running_time import running_time
from tests.helpers.tiny_model import oracle_answer, oracle_word

DRAIN_SECONDS = SHORTENED.drain


class Follower:
    """A client that comes back by itself, as docs/protocol.md says, until its answer has ended."""

    def __init__(self, server: Server, word: int, num_tokens: int) -> None:
        self.server, self.word, self.num_tokens = server, word, num_tokens
        self.session = self.response = ""
        self.known = Answer()
        self.close_codes: list[int] = []
        self.errors: list[Frame] = []
        self.streams = asyncio.Event()

    async def run(self) -> Answer:
        while True:
            async with Client(self.server) as client:
                try:
                    return await self._serve(client)
                except AssertionError:
                    if client.close_code is None:
                        raise
                finally:
                    self.errors += [f for f in client.frames if f["type"] == "error"]
                    self.known = client.answers.get(self.response, self.known)
                if client.socket.close_reason != "keepalive ping timeout":  # 1 s, on a busy machine
                    self.close_codes.append(client.close_code)
            await asyncio.sleep(0.05)

    async def _serve(self, client: Client) -> Answer:
        if self.response:
            return await resume(client, self.session, self.response, self.known)
        self.session = await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": self.num_tokens}
        self.response = await client.ask(self.session, oracle_word(self.word), settings=settings)
        await client.deltas(self.response, 3)
        self.streams.set()
        return await client.done(self.response)


@pytest.mark.row("S4")
@pytest.mark.parametrize("count", [12, pytest.param(50, marks=pytest.mark.slow)])
async def test_rolling_restart_under_load_loses_nothing(two_workers: Server, count: int) -> None:
    await two_workers_serve(two_workers)
    before = {worker.pid: worker for worker in two_workers.children("server.worker")}
    # Longer than a worker waits for its answers, so that each worker hands some over.
    followers = [Follower(two_workers, 100 * n, 600 + 10 * n) for n in range(count)]
    running = [asyncio.create_task(follower.run()) for follower in followers]
    await asyncio.gather(*(follower.streams.wait() for follower in followers))
    for worker in before.values():
        worker.terminate()
        await asyncio.to_thread(psutil.wait_procs, [worker], 10)
        await two_workers_serve(two_workers)
    for follower, answer in zip(followers, await asyncio.gather(*running), strict=True):
        assert answer.final == oracle_answer(follower.word, follower.num_tokens)
        assert set(follower.close_codes) <= {1012}
        assert follower.errors == []
    assert any(follower.close_codes for follower in followers)
    assert not before.keys() & {worker.pid for worker in two_workers.children("server.worker")}


@pytest.mark.row("S4")
async def test_new_responses_are_refused_while_a_worker_leaves(two_workers: Server) -> None:
    async with owner_and_other(two_workers) as (owner, other, pid):
        _, response = await begin(owner, other, max_output_tokens=500)
        os.kill(pid, signal.SIGTERM)
        await owner.next("connection.draining")
        elsewhere = await owner.new_session()
        key = {"session_id": elsewhere, "idempotency_key": "late"}
        refused = await owner.reply("response.create", input="x", **key)
        assert refused["error"]["code"] == "draining"
        assert await owner.closed() == 1012
        known = owner.answers[response]
        assert known.done is None
        queued = await other.next("response.queued")
        assert queued["reason"] == "takeover"
        assert (await other.done(response)).final == oracle_answer(0, 500)


@pytest.mark.row("S4")
@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["at the owner", "elsewhere"])
async def test_a_stop_holds_while_its_worker_leaves(
    two_workers: Server, is_elsewhere: bool
) -> None:
    async with owner_and_other(two_workers) as (owner, other, pid):
        _, response = await begin(owner, other, max_output_tokens=500)
        os.kill(pid, signal.SIGTERM)
        await owner.next("connection.draining")
        asker = other if is_elsewhere else owner
        await asker.send("stop", response_id=response)
        assert (await asker.next("response.cancelling"))["durable"] is True
        for client in (owner, other):
            answer = await client.done(response)
            assert answer.done is not None
            assert answer.done["response"]["status"] == "cancelled"
            assert answer.done["fence"] == 1  # the leaving worker stopped it, nobody took it over
            assert oracle_answer(0, 500).startswith(answer.final)
        assert await owner.closed() == 1012


@pytest.mark.row("S5")
async def test_second_signal_hands_over_at_once(two_workers: Server) -> None:
    async with owner_and_other(two_workers) as (owner, other, pid):
        _, response = await begin(owner, other)
        os.kill(pid, signal.SIGTERM)
        await owner.next("connection.draining")
        os.kill(pid, signal.SIGINT)
        again = running_time()
        assert await owner.closed() == 1012
        assert running_time() - again < DRAIN_SECONDS
        assert (await other.done(response)).final == oracle_answer(0, NUM_TOKENS)


@pytest.mark.slow
@pytest.mark.row("S5")
async def test_an_engine_that_is_away_when_the_server_is_told_to_end_comes_back_for_its_answers(
    new_server: Callable[..., Server],
) -> None:
    server = new_server(PARLEY_DRAIN_SECONDS="120")
    assert server.process is not None
    async with Http(server, admin_token(server)) as admin, Client(server) as client:
        session = await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": 200}
        response = await client.ask(session, oracle_word(0), settings=settings)
        await client.deltas(response, 10)
        (engine,) = (await admin.get("/v1/admin/health")).json()["engines"]
        server.history.fault("restart engine.core")
        await admin.post(f"/v1/admin/engines/{engine['name']}/restart")
        while (await client.next("response.queued"))["reason"] != "engine_restart":
            pass  # it was not told to wait for that
        server.process.terminate()
        answer = await client.done(response)
        assert answer.final == oracle_answer(0, 200)
        assert await client.closed() == 1012
    await asyncio.to_thread(server.process.wait)
