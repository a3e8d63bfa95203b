"""Who watches, what they are sent beside the text, and what a session's settings change."""

import asyncio
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.clients.http_client import Http, admin_token
from tests.end_to_end.clients.operators import new_user
from tests.end_to_end.site.harness import Client, Server, clients
from tests.end_to_end.site.recovery import next_question_works
from tests.end_to_end.site.wiring import at_both
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import oracle_answer, oracle_word

GREEDY = {"temperature": 0, "max_output_tokens": 20}
LONG = {"temperature": 0, "max_output_tokens": 2000}


@pytest.fixture(scope="module")
def limited(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two answers at once, three of one user, two workers."""
    server = Server(
        tmp_path_factory.mktemp("limited") / "data",
        oracle_model,
        PARLEY_WORKERS="2",
        PARLEY_PACE="100",
        PARLEY_MAX_NUM_SEQS="2",
        PARLEY_MAX_ACTIVE_RESPONSES_PER_USER="3",
    )
    try:
        yield server.start()
    finally:
        server.close()


async def begin(client: Client, text: str = oracle_word(0), **settings: Any) -> tuple[str, str]:
    """A new session and its answer."""
    session = await client.new_session()
    async with asyncio.timeout(PATIENCE):
        for attempt in itertools.count():
            answer = await client.reply(
                "response.create",
                session_id=session,
                idempotency_key=f"k{attempt}",
                input=text,
                settings={**LONG, **settings},
            )
            if answer["type"] == "response.created":
                break
            # A slot of an earlier answer is given back a moment after its `response.done`.
            assert answer["error"]["code"] == "rate_limited"
    return session, str(answer["response"]["id"])


async def in_the_engines_queue(client: Client, response: str) -> dict[str, Any]:
    """The frame that says so."""

    def place() -> dict[str, Any] | None:
        for frame in client.frames:
            if (frame["type"], frame.get("response_id")) == ("response.queued", response):
                return frame
        return None

    queued: dict[str, Any] = await client.wait(place, "a place in the queue")
    assert queued["reason"] == "engine"
    return queued


def message_of(server: Server, session: str) -> dict[str, Any]:
    """The newest message."""
    page = server.get_json(f"/v1/sessions/{session}/messages")
    message: dict[str, Any] = page["messages"][-1]
    return message


# ---- viewers ------------------------------------------------------------------------------------


async def test_every_viewer_hears_how_many_there_are_on_all_workers(two_workers: Server) -> None:
    async with at_both(two_workers) as (one, other):
        session = await one.new_session()
        subscribed = await other.reply("session.subscribe", session_id=session)
        assert subscribed["viewers"] == 2
        assert (await one.next("viewer.changed"))["viewers"] == 2
        async with Client(two_workers) as third:
            assert (await third.reply("session.subscribe", session_id=session))["viewers"] == 3
            assert (await one.next("viewer.changed"))["viewers"] == 3
            third.cut()
            await third.closed()
        assert (await one.next("viewer.changed"))["viewers"] == 2
        await other.reply("session.unsubscribe", session_id=session)
        assert (await one.next("viewer.changed"))["viewers"] == 1


async def test_an_answer_that_nobody_watches_ends_if_its_session_says_so(
    two_workers: Server,
) -> None:
    async with Client(two_workers) as client:
        session, response = await begin(client, on_no_viewers={"stop_after_s": 1})
        other, going_on = await begin(client)
        await client.deltas(response, 2)
    async with asyncio.timeout(PATIENCE):
        message = await asyncio.to_thread(message_of, two_workers, session)
        while message["status"] == "in_progress":  # asked over HTTP, because nobody may watch
            message = await asyncio.to_thread(message_of, two_workers, session)
    assert message["status"] == "interrupted"
    assert message["status_details"]["reason"] == "no_viewers"
    assert oracle_answer(0, 3000).startswith(message["content"][0]["text"])
    assert message_of(two_workers, other)["status"] == "in_progress"
    async with Client(two_workers) as client:
        await client.reply("session.subscribe", session_id=other)
        await client.send("stop", response_id=going_on)
        await client.done(going_on)


async def test_an_answer_goes_on_while_somebody_watches_on_another_worker(
    two_workers: Server,
) -> None:
    async with at_both(two_workers) as (owner, other):
        session, response = await begin(owner, on_no_viewers={"stop_after_s": 1})
        await other.reply("session.subscribe", session_id=session)
        await owner.reply("session.unsubscribe", session_id=session)
        held = await other.deltas(response, 3)
        # At 100 tokens a second this lasts longer than the second after which it would end.
        await other.wait(lambda: len(held.text.split()) > 250, "250 words")
        assert held.done is None
        await other.send("stop", response_id=response)
        await other.done(response)


async def test_a_tab_at_another_worker_sees_the_answer_and_stops_it(two_workers: Server) -> None:
    async with at_both(two_workers) as (owner, other):
        session = await owner.new_session()
        await other.next("session.created")
        await other.reply("session.subscribe", session_id=session)
        response = await owner.ask(session, oracle_word(0), settings=LONG)
        await other.deltas(response, 5)
        await other.send("stop", session_id=session)
        assert (await other.next("response.cancelling"))["durable"] is True
        here, there = await other.done(response), await owner.done(response)
        assert here.final == there.final
        assert here.done is not None and here.done["response"]["status"] == "cancelled"
        await owner.next("message.updated")
        await other.next("message.updated")
        await next_question_works(other, session)
        await owner.deltas(list(other.answers)[-1], 1)


async def test_an_observer_sees_everything_and_changes_nothing(two_workers: Server) -> None:
    token = admin_token(two_workers)
    async with Client(two_workers) as user, Client(two_workers, token=token) as admin:
        session, response = await begin(user)
        await user.deltas(response, 3)
        refused = await user.reply("session.subscribe", session_id=session, observe=True)
        assert (refused["error"]["code"], refused["error"]["param"]) == ("forbidden", "observe")
        foreign = await admin.reply("session.subscribe", session_id=session)
        assert foreign["error"]["code"] == "session_not_found"
        subscribed = await admin.reply("session.subscribe", session_id=session, observe=True)
        assert subscribed["viewers"] == 2
        assert subscribed["active_responses"] == [response]
        await admin.deltas(response, 2)
        for kind, fields in (
            ("session.update", {"title": "mine"}),
            ("session.delete", {}),
            ("response.create", {"idempotency_key": "k", "input": "hi"}),
            ("response.cancel", {}),
        ):
            answer = await admin.reply(kind, session_id=session, **fields)
            assert answer["error"]["code"] == "session_not_found", kind
        for fields in ({"response_id": response}, {}):
            answer = await admin.reply("stop", **fields)
            assert answer["error"]["code"] == "response_not_found"
        await user.send("stop", response_id=response)
        assert (await admin.done(response)).final == (await user.done(response)).final


# ---- settings -----------------------------------------------------------------------------------


async def test_a_sessions_settings_are_in_force_unless_a_response_has_its_own(
    server: Server,
) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        given = {"temperature": 0, "max_output_tokens": 5, "seed": 7, "system": "Be brief."}
        updated = await client.reply("session.update", session_id=session, settings=given)
        assert updated["session"]["settings"] == given
        first = await client.done(await client.ask(session, oracle_word(3)))
        own = {"max_output_tokens": 9, "seed": None, "temperature": 0.5}
        second = await client.done(await client.ask(session, oracle_word(3), settings=own))
        assert first.done is not None and second.done is not None
        in_force = first.done["response"]["settings"]
        assert {name: in_force[name] for name in given} == given
        assert first.final == oracle_answer(3, 5)
        drawn = second.done["response"]["settings"]
        assert (drawn["max_output_tokens"], drawn["temperature"]) == (9, 0.5)
        assert drawn["system"] == "Be brief."
        assert isinstance(drawn["seed"], int) and drawn["seed"] != 7
        # The seed that was drawn gives the same answer again.
        again = await client.reply(
            "response.create",
            session_id=session,
            idempotency_key="again",
            regenerate_of=second.done["response"]["message_id"],
            settings={**own, "seed": drawn["seed"]},
        )
        assert (await client.done(again["response"]["id"])).final == second.final


async def test_log_probabilities_come_with_their_tokens_and_again_with_a_replay(
    server: Server,
) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(3), settings={**GREEDY, "logprobs": 2})
        answer = await client.done(response)
        sent = [one for frame in answer.frames for one in frame.get("logprobs", ())]
        assert "".join(one["token"] for one in sent) == answer.final
        for one in sent:
            assert one["top"][0]["token"] == one["token"]  # greedy
            assert len(one["top"]) == 2
            assert math.exp(one["logprob"]) <= 1
        async with Client(server) as late:
            late.answers[response] = type(answer)(text="", last=2, fence=1)
            await late.send(
                "response.resume", response_id=response, fence=1, after_sequence_number=2
            )
            replayed = await late.done(response)
            again = [one for frame in replayed.frames for one in frame.get("logprobs", ())]
            assert again == sent


# ---- positions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [{"epoch": "other"}, {"offset": 10_000}, {"offset": 10**15}])
async def test_a_position_that_the_log_does_not_hold_is_not_called_recovered(
    server: Server, wrong: dict[str, Any]
) -> None:
    async with Client(server) as client:
        created = await client.reply("session.create", idempotency_key="not-recovered")
        session = created["session"]["id"]
        after = {"epoch": created["epoch"], "offset": created["offset"], **wrong}
        subscribed = await client.reply("session.subscribe", session_id=session, after=after)
        assert subscribed["recovered"] is False
        assert subscribed["snapshot"]["session"]["id"] == session


async def test_a_position_under_another_fence_is_answered_with_a_snapshot(server: Server) -> None:
    async with clients(server, 2) as (client, late):
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings=GREEDY)
        answer = await client.done(response)
        await late.send("response.resume", response_id=response, fence=9, after_sequence_number=5)
        snapshot = await late.next("response.output_text.snapshot")
        assert snapshot["text"] == answer.final
        assert (snapshot["part"], snapshot["parts"]) == (1, 1)


# ---- limits, queues and priorities --------------------------------------------------------------


async def test_a_users_answers_are_counted_over_all_workers(limited: Server) -> None:
    async with at_both(limited) as (one, other):
        begun = []
        for client in (one, other, one):
            begun.append(await begin(client))
            (left,) = (await client.next("rate_limits.updated"))["rate_limits"]
            assert (left["name"], left["limit"]) == ("responses", 3)
            assert left["remaining"] <= 3 - len(begun)  # an earlier test's may still be counted
        assert left["remaining"] == 0
        for client in (one, other):
            session = await client.new_session()
            refused = await client.reply(
                "response.create", session_id=session, idempotency_key="more", input="hi"
            )
            assert refused["error"]["code"] == "rate_limited"
            assert refused["error"]["retry_after_ms"] > 0
        # The third is accepted, but the engine decodes two: it waits, and hears how long.
        queued = await in_the_engines_queue(one, begun[2][1])
        assert (queued["position"], queued["ahead_tokens"]) == (0, 0)
        for client, (_, response) in zip((one, other, one), begun, strict=True):
            await client.send("stop", response_id=response)
            await client.done(response)
        _, response = await begin(other, oracle_word(5), max_output_tokens=20)
        assert (await other.done(response)).final == oracle_answer(5, 20)


async def test_an_answer_behind_another_hears_its_place_and_a_guess_of_the_wait(
    server: Server,
) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        await client.done(await client.ask(session, oracle_word(1), settings=GREEDY))
        first = await client.ask(
            session, oracle_word(1), settings={**GREEDY, "max_output_tokens": 99}
        )
        second = await client.ask(session, oracle_word(2), settings=GREEDY, on_busy="queue")
        queued = await client.next("response.queued")
        assert (queued["response_id"], queued["reason"]) == (second, "session")
        assert queued["position"] == 1
        assert 0 < queued["eta_ms"] < 60_000
        await client.done(first)
        assert (await client.done(second)).final == oracle_answer(2, 20)


async def test_only_admins_have_priority_and_theirs_comes_first(limited: Server) -> None:
    token = admin_token(limited)
    async with Client(limited) as user, Client(limited, token=token) as admin:
        session = await user.new_session()
        refused = await user.reply(
            "response.create", session_id=session, idempotency_key="k", input="hi", priority=-1
        )
        assert (refused["error"]["code"], refused["error"]["param"]) == ("forbidden", "priority")
        # Two seats of one user and one of each of the others: nobody has to make way.
        async with Http(limited, token) as http:
            guest = await new_user(http)
        async with Client(limited, token=guest["token"]) as other:
            running = []
            for client in (user, user, admin, other):
                _, response = await begin(client)
                await client.deltas(response, 1)
                running.append(response)
            _, later = await begin(other, max_output_tokens=5)
            session = await admin.new_session()
            urgent = await admin.ask(session, oracle_word(4), settings=LONG, priority=-5)
            await in_the_engines_queue(other, later)
            assert (await in_the_engines_queue(admin, urgent))["position"] == 0  # before it
            await user.send("stop", response_id=running[0])
            for client, response in ((admin, urgent), (other, later)):
                await client.deltas(response, 1)
                await client.send("stop", response_id=response)
                await client.done(response)
            for client, response in ((user, running[1]), (admin, running[2]), (other, running[3])):
                await client.send("stop", response_id=response)
                await client.done(response)
