"""Workers die, hang, leave: their answers go on elsewhere, to the same text, and nowhere twice."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import psutil
import pytest

from server.intervals import SHORTENED
from tests.end_to_end.client_model import Answer, Frame
from tests.end_to_end.harness import Client, Server
from tests.end_to_end.spelling_model import SPELLED, build_spelling_model
from tests.redis_server import redis_binaries, running_redis
from tests.tiny_model import oracle_answer, oracle_word

NewServer = Callable[..., Server]

LEASE_SECONDS, DRAIN_SECONDS = SHORTENED.lease, SHORTENED.drain
NUM_TOKENS = 250
SETTINGS = {"temperature": 0, "max_output_tokens": NUM_TOKENS}
TEXT = "response.output_text.delta"


@pytest.fixture(scope="module")
def pair(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two workers on one host; tests that kill one leave two behind."""
    data = tmp_path_factory.mktemp("pair") / "data"
    server = Server(data, oracle_model, None, **TESTING, PARLEY_WORKERS="2", PARLEY_PACE="100")
    try:
        yield server.start()
    finally:
        server.close()


TESTING = {"PARLEY_TESTING": "1", "PARLEY_WATCHDOG_SECONDS": "30"}


def replica_pid(replica: str) -> int:
    return int(replica.split("-")[-2])


async def two_workers_serve(server: Server) -> None:
    """Wait until as many workers accept connections as there should be."""
    seen: set[str] = set()
    async with asyncio.timeout(20):
        while len(seen) < 2:
            async with Client(server) as client:
                replica = (await client.next("connection.ready"))["replica"]
            if psutil.pid_exists(replica_pid(replica)):
                seen.add(replica)
            seen = {r for r in seen if psutil.pid_exists(replica_pid(r))}
            await asyncio.sleep(0.02)


@asynccontextmanager
async def owner_and_other(server: Server) -> AsyncIterator[tuple[Client, Client, int]]:
    """Clients of both workers, and the pid of the first one's."""
    await two_workers_serve(server)
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(Client(server))
        replica = (await owner.next("connection.ready"))["replica"]
        for _ in range(100):
            other = Client(server)
            await other.__aenter__()
            if (await other.next("connection.ready"))["replica"] != replica:
                stack.push_async_exit(other.__aexit__)
                yield owner, other, replica_pid(replica)
                return
            await other.__aexit__()
        raise AssertionError("a hundred connections, all to one worker")


async def begin(owner: Client, other: Client, word: int = 0, **settings: object) -> tuple[str, str]:
    """An answer at the owner that the other one watches: session and response."""
    session = await owner.new_session()
    await other.reply("session.subscribe", session_id=session)
    response = await owner.ask(session, oracle_word(word), settings={**SETTINGS, **settings})
    await other.deltas(response, 5)
    return session, response


def position(response: str, known: Answer) -> Frame:
    return {
        "response_id": response,
        "fence": known.fence,
        "after_sequence_number": known.last,
    }


async def resume(client: Client, session: str, response: str, known: Answer) -> Answer:
    """Come back with what another connection knew, and wait for the end."""
    client.answers[response] = known
    responses = [position(response, known)]
    await client.reply("session.subscribe", session_id=session, responses=responses)
    return await client.done(response)


async def run_of(server: Server, response: str) -> dict[str, str]:
    stored = await asyncio.to_thread(server._read_store)
    assert stored is not None
    run = stored.run(response)
    assert run is not None
    return run.fields


def status_of(answer: Answer) -> tuple[str, str]:
    assert answer.done is not None
    response = answer.done["response"]
    return response["status"], response["status_details"]["reason"]


# ---- a worker dies ------------------------------------------------------------------------------


async def test_s1_answer_of_a_killed_worker_goes_on_within_two_seconds(pair: Server) -> None:
    async with owner_and_other(pair) as (owner, other, pid):
        session, response = await begin(owner, other)
        pair.history.fault("kill -9 of the owner")
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        queued = await other.next("response.queued")
        assert (queued["response_id"], queued["reason"]) == (response, "takeover")
        await other.next(TEXT)
        assert time.monotonic() - killed < 2.0
        async with Client(pair) as back:
            resumed = await resume(back, session, response, owner.answers[response])
        watched = await other.done(response)
        assert resumed.final == watched.final == oracle_answer(0, NUM_TOKENS)
        assert watched.done is not None
        assert watched.done["fence"] == 2
        assert watched.done["response"]["usage"]["output_tokens"] == NUM_TOKENS
        timings = watched.done["response"]["timings"]
        moments = [timings[n] for n in ("created_at", "started_at", "first_token_at", "done_at")]
        assert moments == sorted(moments)
        assert (await run_of(pair, response))["fence"] == "2"


async def test_s1_queued_answer_of_a_killed_worker_has_its_turn(pair: Server) -> None:
    async with owner_and_other(pair) as (owner, other, pid):
        session, response = await begin(owner, other)
        queued = await owner.ask(session, oracle_word(7), settings=SETTINGS, on_busy="queue")
        os.kill(pid, signal.SIGKILL)
        assert (await other.done(response)).final == oracle_answer(0, NUM_TOKENS)
        assert (await other.done(queued)).final == oracle_answer(7, NUM_TOKENS)


async def test_s1_continued_answer_of_a_killed_worker_goes_on_in_its_message(
    pair: Server,
) -> None:
    async with owner_and_other(pair) as (owner, other, pid):
        session, first = await begin(owner, other)
        await owner.send("stop", response_id=first)
        stopped = await other.done(first)
        await other.next("message.updated")
        assert stopped.done is not None
        created = await owner.reply(
            "response.create",
            session_id=session,
            idempotency_key="continue",
            continue_of=stopped.done["response"]["message_id"],
            settings=SETTINGS,
        )
        response = created["response"]["id"]
        await other.deltas(response, 5)
        os.kill(pid, signal.SIGKILL)
        answer = await other.done(response)
        assert answer.final == oracle_answer(0, len(stopped.final.split()) + NUM_TOKENS)
        assert answer.done is not None and answer.done["fence"] == 2


async def test_s1_stop_that_was_stored_before_the_death_is_carried_out(pair: Server) -> None:
    async with owner_and_other(pair) as (owner, other, pid):
        _, response = await begin(owner, other)
        os.kill(pid, signal.SIGSTOP)
        await other.send("stop", response_id=response, seen_sequence_number=4)
        assert (await other.next("response.cancelling"))["durable"] is True
        os.kill(pid, signal.SIGKILL)
        answer = await other.done(response)
        assert status_of(answer) == ("cancelled", "client_cancelled")
        texts = [f for f in owner.answers[response].frames if f["type"] == TEXT]
        seen = "".join(f["delta"] for f in texts if f["sequence_number"] <= 4)
        assert answer.final == seen != ""


@pytest.mark.parametrize("rounds", [2, pytest.param(30, marks=pytest.mark.slow)])
async def test_s1_text_goes_on_inside_a_character_and_a_stop_string(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, rounds: int
) -> None:
    model, num_tokens = build_spelling_model(tmp_path_factory.mktemp("spelling"))
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    server = Server(
        tmp_path / "data", model, None, **TESTING, PARLEY_WORKERS="2", PARLEY_PACE="150"
    )
    stop = SPELLED[-40:-20]
    try:
        server.start()
        for _ in range(rounds):
            async with owner_and_other(server) as (owner, other, pid):
                whole, cut = [await owner.new_session() for _ in range(2)]
                for session in (whole, cut):
                    await other.reply("session.subscribe", session_id=session)
                settings = {"temperature": 0, "max_output_tokens": num_tokens}
                first = await owner.ask(whole, "x", settings=settings)
                second = await owner.ask(cut, "x", settings={**settings, "stop": [stop]})
                await other.deltas(second, 2)
                await asyncio.sleep(rng.random() * num_tokens / 150)
                os.kill(pid, signal.SIGKILL)
                assert (await other.done(first)).final == SPELLED
                answer = await other.done(second)
                assert answer.final == SPELLED[:-40]
                assert status_of(answer) == ("completed", "stop")
    finally:
        server.close()


@pytest.mark.slow  # `make demo-crash`, which is tested too, shows the same for one answer
async def test_s1_seeded_and_greedy_answers_of_a_trained_model_go_on_as_undisturbed(
    tmp_path: Path,
) -> None:
    server = Server(tmp_path / "data", "demo", None, **TESTING, PARLEY_WORKERS="2")
    asked: list[Frame] = [
        {"temperature": 0, "max_output_tokens": 150},
        {"temperature": 0.9, "seed": 11, "max_output_tokens": 150, "frequency_penalty": 0.3},
    ]
    question = "Tell me a long story about the sea."
    try:
        server.start()
        async with owner_and_other(server) as (owner, other, pid):
            undisturbed = []
            for settings in asked:
                session = await other.new_session()
                undisturbed.append(await other.ask(session, question, settings=settings))
            expected = [(await other.done(response)).final for response in undisturbed]
            assert expected[0] != expected[1]
            assert all(len(text) > 100 for text in expected)
            responses = []
            for settings in asked:
                session = await owner.new_session()
                await other.reply("session.subscribe", session_id=session)
                responses.append(await owner.ask(session, question, settings=settings))
            await other.deltas(responses[-1], 20)
            os.kill(pid, signal.SIGKILL)
            answers = [await other.done(response) for response in responses]
            assert [answer.final for answer in answers] == expected
            assert {answer.fence for answer in answers} == {2}
    finally:
        server.close()


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.slow)])
async def test_s9_death_right_behind_the_beginning_loses_neither_question_nor_answer(
    pair: Server, rounds: int
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    settings = {"temperature": 0, "max_output_tokens": 20}
    for _ in range(rounds):
        async with owner_and_other(pair) as (owner, other, pid):
            sessions = [await owner.new_session() for _ in range(5)]
            for session in sessions:
                await other.reply("session.subscribe", session_id=session)
            creates = [
                {"session_id": session, "idempotency_key": "k", "input": oracle_word(100 * number)}
                for number, session in enumerate(sessions)
            ]
            for create in creates:
                await owner.send("response.create", **create, settings=settings)
                await asyncio.sleep(rng.random() * 0.008)
            os.kill(pid, signal.SIGKILL)
            await owner.closed()
            for number, create in enumerate(creates):
                # Acknowledged or not: the same request begins it once, or finds what was begun.
                frame = await other.reply("response.create", **create, settings=settings)
                assert frame["type"] == "response.created", frame
                answer = await other.done(frame["response"]["id"])
                assert answer.final == oracle_answer(100 * number, 20)
                path = f"/v1/sessions/{create['session_id']}/messages"
                messages = (await asyncio.to_thread(pair.get_json, path))["messages"]
                assert [m["role"] for m in messages] == ["user", "assistant"]


def is_running(process: psutil.Process) -> bool:
    """Not gone, nor dead and waiting for init to notice."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def supervisor_is_killed(server: Server) -> None:
    """It alone; all that it had started ends by itself."""
    assert server.process is not None
    family = psutil.Process(server.process.pid).children(recursive=True)
    server.process.kill()
    _, alive = await asyncio.to_thread(psutil.wait_procs, family, 5)
    assert [process for process in alive if is_running(process)] == []


async def everything_is_killed(server: Server) -> None:
    assert server.process is not None
    family = [psutil.Process(server.process.pid)]
    family += family[0].children(recursive=True)
    for process in family:
        process.kill()
    await asyncio.to_thread(psutil.wait_procs, family, 5)


async def supervisor_gets_two_signals(server: Server) -> None:
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.1)  # two signals at once may be seen as one
    server.process.send_signal(signal.SIGTERM)


async def test_s5_s10_next_start_goes_on_whatever_was_killed(new_server: NewServer) -> None:
    server = new_server(**TESTING)
    ways = (supervisor_is_killed, everything_is_killed, supervisor_gets_two_signals)
    for number, die in enumerate(ways):
        word = 1000 * number
        async with Client(server) as client:
            session = await client.new_session()
            response = await client.ask(session, oracle_word(word), settings=SETTINGS)
            known = await client.deltas(response, 10)
            await die(server)
            await client.closed()
        assert server.process is not None
        await asyncio.to_thread(server.process.wait, 20)
        await asyncio.to_thread(server.start)
        async with Client(server) as client:
            answer = await resume(client, session, response, known)
            assert answer.final == oracle_answer(word, NUM_TOKENS)


# ---- a worker hangs -----------------------------------------------------------------------------


async def owner_hangs(server: Server) -> None:
    """It shows nothing after it was replaced, but the text that the next owner has stored."""
    async with owner_and_other(server) as (owner, other, pid):
        _, response = await begin(owner, other)
        os.kill(pid, signal.SIGSTOP)
        try:
            queued = await other.next("response.queued")
            assert queued["reason"] == "takeover"
            await other.next(TEXT)
            before = len(owner.frames)
        finally:
            os.kill(pid, signal.SIGCONT)
        there, here = await other.done(response), await owner.done(response)
        assert here.final == there.final == oracle_answer(0, NUM_TOKENS)
        about = [f for f in owner.frames[before:] if f.get("response_id") == response]
        texts = [f for f in about if f["type"].startswith("response.output_text")]
        assert texts[0]["type"] == "response.output_text.snapshot"
        assert {f["fence"] for f in texts} == {2}
        assert (await run_of(server, response))["fence"] == "2"


async def test_s3_owner_that_hung_shows_nothing_after_it_was_replaced(pair: Server) -> None:
    await owner_hangs(pair)


@pytest.mark.slow
async def test_s3_owner_that_hung_for_a_whole_lease_shows_nothing(new_server: NewServer) -> None:
    await owner_hangs(new_server(PARLEY_WORKERS="2"))


# ---- a worker leaves ----------------------------------------------------------------------------


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


@pytest.mark.parametrize("count", [12, pytest.param(50, marks=pytest.mark.slow)])
async def test_s4_rolling_restart_under_load_loses_nothing(pair: Server, count: int) -> None:
    await two_workers_serve(pair)
    before = {worker.pid: worker for worker in pair.children("server.worker")}
    followers = [Follower(pair, 100 * n, 200 + 20 * n) for n in range(count)]
    running = [asyncio.create_task(follower.run()) for follower in followers]
    await asyncio.gather(*(follower.streams.wait() for follower in followers))
    for worker in before.values():
        worker.terminate()
        await asyncio.to_thread(psutil.wait_procs, [worker], 10)
        await two_workers_serve(pair)
    for follower, answer in zip(followers, await asyncio.gather(*running), strict=True):
        assert answer.final == oracle_answer(follower.word, follower.num_tokens)
        assert set(follower.close_codes) <= {1012}
        assert follower.errors == []
    assert any(follower.close_codes for follower in followers)
    assert not before.keys() & {worker.pid for worker in pair.children("server.worker")}


async def test_s4_new_responses_are_refused_while_a_worker_leaves(pair: Server) -> None:
    async with owner_and_other(pair) as (owner, other, pid):
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


async def test_s5_second_signal_hands_over_at_once(pair: Server) -> None:
    async with owner_and_other(pair) as (owner, other, pid):
        _, response = await begin(owner, other)
        os.kill(pid, signal.SIGTERM)
        await owner.next("connection.draining")
        os.kill(pid, signal.SIGINT)
        again = time.monotonic()
        assert await owner.closed() == 1012
        assert time.monotonic() - again < DRAIN_SECONDS
        assert (await other.done(response)).final == oracle_answer(0, NUM_TOKENS)


# ---- two hosts ----------------------------------------------------------------------------------


@contextmanager
def two_hosts(model: Path, folder: Path, **environment: str) -> Iterator[tuple[Server, Server]]:
    """Two `parley serve` that share nothing but a Redis."""
    with running_redis(next(iter(redis_binaries().values()))) as redis:
        environment |= {"PARLEY_PACE": "100", "PARLEY_REDIS_URL": redis.url}
        first = Server(folder / "a", model, None, **environment)
        second = Server(folder / "b", model, first.history, **environment)
        try:
            yield first.start(), second.start()
        finally:
            first.close()
            second.close()


@pytest.fixture(scope="module")
def hosts(
    oracle_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Server]]:
    with two_hosts(oracle_model, tmp_path_factory.mktemp("hosts"), **TESTING) as servers:
        yield servers


async def one_host_dies(first: Server, second: Server, seconds: float) -> None:
    """Its answer goes on at the other host, within so long after the kill."""
    assert first.process is not None
    async with Client(first) as owner, Client(second) as other:
        session, response = await begin(owner, other)
        first.history.fault("kill -9 of all of one host")
        killed = time.monotonic()
        await everything_is_killed(first)
        await owner.closed()
        async with Client(second) as back:  # before anybody has taken the answer over
            resuming = asyncio.create_task(resume(back, session, response, owner.answers[response]))
            queued = await other.next("response.queued")
            assert queued["reason"] == "takeover"
            await other.next(TEXT)
            pause = time.monotonic() - killed
            print(f"next delta after {pause:.2f} s")
            assert pause < seconds
            assert (await resuming).final == oracle_answer(0, NUM_TOKENS)
        assert (await other.done(response)).final == oracle_answer(0, NUM_TOKENS)
        assert (await run_of(second, response))["fence"] == "2"
    first.process.wait()


async def test_s1_s2_another_host_goes_on_when_the_lease_has_ended(
    hosts: tuple[Server, Server],
) -> None:
    first, second = hosts
    await one_host_dies(first, second, LEASE_SECONDS + 2.0)
    await asyncio.to_thread(first.start)


@pytest.mark.slow
async def test_s1_s2_another_host_goes_on_within_twelve_seconds(
    oracle_model: Path, tmp_path: Path
) -> None:
    with two_hosts(oracle_model, tmp_path) as (first, second):
        await one_host_dies(first, second, 12.0)


async def test_e10_core_of_one_host_dies_and_the_other_never_notices(
    hosts: tuple[Server, Server],
) -> None:
    first, second = hosts
    async with Client(first) as here, Client(second) as there:
        sessions = [await client.new_session() for client in (here, there)]
        mine = await here.ask(sessions[0], oracle_word(0), settings=SETTINGS)
        theirs = await there.ask(sessions[1], oracle_word(300), settings=SETTINGS)
        await here.deltas(mine, 5)
        await there.deltas(theirs, 5)
        first.kill_child("engine.core")
        assert (await here.next("connection.degraded"))["engine"] == "unavailable"
        assert (await there.done(theirs)).final == oracle_answer(300, NUM_TOKENS)
        assert not [f for f in there.frames if f["type"] == "connection.degraded"]
        answer = await here.done(mine)
        assert answer.final == oracle_answer(0, NUM_TOKENS)
        assert answer.fence == 1
