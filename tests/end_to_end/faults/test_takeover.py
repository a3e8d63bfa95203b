"""Workers die and hang: their answers go on elsewhere, to the same text, and nowhere twice."""

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.frames.client_model import Frame
from tests.end_to_end.site.harness import TESTING, Client, Server
from tests.end_to_end.site.owned_answer import (
    NUM_TOKENS,
    SETTINGS,
    TEXT,
    begin,
    owner_and_other,
    resume,
    run_of,
    status_of,
)
from tests.helpers.running_time import running_time
from tests.helpers.tiny_model import oracle_answer, oracle_word

NewServer = Callable[..., Server]


@pytest.mark.row("S1")
async def test_answer_of_a_killed_worker_goes_on_within_two_seconds(two_workers: Server) -> None:
    async with owner_and_other(two_workers) as (owner, other, pid):
        session, response = await begin(owner, other)
        two_workers.history.fault("kill -9 of the owner")
        os.kill(pid, signal.SIGKILL)
        killed = running_time()
        queued = await other.next("response.queued")
        assert (queued["response_id"], queued["reason"]) == (response, "takeover")
        await other.next(TEXT)
        assert running_time() - killed < 2.0
        async with Client(two_workers) as back:
            resumed = await resume(back, session, response, owner.answers[response])
        watched = await other.done(response)
        assert resumed.final == watched.final == oracle_answer(0, NUM_TOKENS)
        assert watched.done is not None
        assert watched.done["fence"] == 2
        assert watched.done["response"]["usage"]["output_tokens"] == NUM_TOKENS
        assert watched.done["response"]["restarts"] == 1
        timings = watched.done["response"]["timings"]
        moments = [timings[n] for n in ("created_at", "started_at", "first_token_at", "done_at")]
        assert moments == sorted(moments)
        assert (await run_of(two_workers, response))["fence"] == "2"


@pytest.mark.row("S1")
async def test_queued_answer_of_a_killed_worker_has_its_turn(two_workers: Server) -> None:
    async with owner_and_other(two_workers) as (owner, other, pid):
        session, response = await begin(owner, other)
        queued = await owner.ask(session, oracle_word(7), settings=SETTINGS, on_busy="queue")
        os.kill(pid, signal.SIGKILL)
        assert (await other.done(response)).final == oracle_answer(0, NUM_TOKENS)
        assert (await other.done(queued)).final == oracle_answer(7, NUM_TOKENS)


@pytest.mark.row("S1")
async def test_continued_answer_of_a_killed_worker_goes_on_in_its_message(
    two_workers: Server,
) -> None:
    async with owner_and_other(two_workers) as (owner, other, pid):
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


@pytest.mark.row("S1")
async def test_stop_that_was_stored_before_the_death_is_carried_out(two_workers: Server) -> None:
    async with owner_and_other(two_workers) as (owner, other, pid):
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


@pytest.mark.row("S1")
@pytest.mark.slow  # `make demo-crash`, which is tested too, shows the same for one answer
async def test_seeded_and_greedy_answers_of_a_trained_model_go_on_as_undisturbed(
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


@pytest.mark.row("S9")
@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.slow)])
async def test_death_right_after_the_beginning_loses_neither_question_nor_answer(
    two_workers: Server, rounds: int
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    settings = {"temperature": 0, "max_output_tokens": 20}
    for _ in range(rounds):
        async with owner_and_other(two_workers) as (owner, other, pid):
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
                messages = (await asyncio.to_thread(two_workers.get_json, path))["messages"]
                assert [m["role"] for m in messages] == ["user", "assistant"]


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
        if (texts[0]["type"], texts[0]["fence"]) == (TEXT, 1):
            del texts[0]  # stopped between its last look at the lease and the write to the socket
        assert texts[0]["type"] == "response.output_text.snapshot"
        assert {f["fence"] for f in texts} == {2}
        assert (await run_of(server, response))["fence"] == "2"


@pytest.mark.row("S3")
async def test_owner_that_hung_shows_nothing_after_it_was_replaced(two_workers: Server) -> None:
    await owner_hangs(two_workers)


@pytest.mark.row("S3")
@pytest.mark.slow
async def test_owner_that_hung_for_a_whole_lease_shows_nothing(new_server: NewServer) -> None:
    await owner_hangs(new_server(PARLEY_WORKERS="2"))
