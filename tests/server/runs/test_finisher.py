"""`Finisher`: one end, stored and sent alike, no matter what the store does meanwhile."""

import asyncio
from typing import Any

import pytest

from server.live.response_log import read_log
from server.runs.stop import Stop
from sessions.model.codec import encode_token_ids
from sessions.model.errors import StoreUnavailable
from sessions.store.appends.append import Append
from tests.server.helpers.answering import Answering, output, until
from tests.server.helpers.appends import Answered, Outcome, intercept


async def taken_over(answering: Answering) -> "asyncio.Task[Any]":
    """An answer that has shown something, and has another owner, of which it knows nothing yet."""
    producing = answering.start()
    answering.engine.say(output(answering.rid, "shown "))
    await answering.text_comes()
    await until(lambda: answering.run.num_stored == answering.run.sequence_number)
    await answering.store.runs.reap(answering.rid, new_owner="w2", exited_owner="w1")
    return producing


async def test_the_end_that_is_sent_is_the_end_that_is_stored(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = answering.store.runs.finish

    async def finish_while_the_stop_is_stored(response_id: str, **arguments: Any) -> Any:
        finished = await finish(response_id, **arguments)
        answering.run.timeline.note("cancel_at")
        return finished

    monkeypatch.setattr(answering.store.runs, "finish", finish_while_the_stop_is_stored)
    producing = answering.start()
    answering.engine.say(output(answering.rid, "kept "))
    await answering.text_comes()
    answering.run.stop(Stop())
    answering.engine.say(output(answering.rid, "", "abort"))
    await producing
    (done,) = (f for f in await answering.viewer.sent() if f["type"] == "response.done")
    log = await read_log(answering.store, "alice", answering.rid)
    assert {name: done[name] for name in log.end.data} == log.end.data


async def test_an_append_on_its_way_when_the_answer_ends_is_waited_for(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers are taken: an end that overtakes its reply would seem to leave a gap."""
    applied, reply = asyncio.Event(), asyncio.Event()
    finish = answering.store.runs.finish

    def hear_slowly(append: Append, outcome: Outcome, answered: Answered) -> None:
        applied.set()
        answering.hub.spawn(pass_on(outcome, answered))

    async def pass_on(outcome: Outcome, answered: Answered) -> None:
        await reply.wait()
        answered(outcome)

    async def finish_as_the_reply_comes(response_id: str, **arguments: Any) -> Any:
        reply.set()
        return await finish(response_id, **arguments)

    intercept(monkeypatch, answering.store.appends, hear_slowly)
    monkeypatch.setattr(answering.store.runs, "finish", finish_as_the_reply_comes)
    producing = answering.start()
    answering.engine.say(output(answering.rid, "one "))
    await applied.wait()
    answering.engine.say(output(answering.rid, "two "), output(answering.rid, "", "stop"))
    asyncio.get_running_loop().call_later(0.2, reply.set)
    await producing
    assert answering.run.status == "completed"
    assert await answering.stored() == (["one ", "two "], "one two ")
    record = await answering.store.runs.get("alice", answering.rid)
    assert record.num_tokens == 2


async def test_what_redis_lost_before_the_end_is_stored_with_it_and_no_token_twice_or_never(
    answering: Answering,
) -> None:
    store, chat, rid = answering.store, answering.chat, answering.rid
    call, keys = store.client.call, store.keys

    async def is_stored(count: int) -> None:
        while True:
            if (await store.runs.get("alice", rid)).num_tokens == count:
                return
            await asyncio.sleep(0.01)  # only the store tells

    producing = answering.start()
    answering.engine.say(output(rid, "one "))
    await is_stored(1)
    entries = await call("XRANGE", keys.events(chat.session_id, rid), "-", "+")
    answering.engine.say(output(rid, "two "))
    await is_stored(2)
    await call("DEL", keys.events(chat.session_id, rid))
    for name, fields in entries:
        await call("XADD", keys.events(chat.session_id, rid), name, *fields)
    await call("SET", keys.token_ids(chat.session_id, rid), encode_token_ids([1]))
    earlier = ("sequence_number", len(entries), "num_tokens", 1)
    await call("HSET", keys.run(chat.session_id, rid), *earlier)
    answering.engine.say(output(rid, "three", "stop"))
    await producing
    assert await answering.stored() == (["one ", "two ", "three"], "one two three")
    assert (await store.runs.get("alice", rid)).num_tokens == 3
    assert await store.runs.token_ids(rid) == [1, 1, 1]


async def test_a_deleted_session_ends_its_answer_for_those_who_watch(
    answering: Answering,
) -> None:
    producing = answering.start()
    answering.engine.say(output(answering.rid, "half "))
    await answering.text_comes()
    answering.run.delete()
    await answering.store.sessions.delete("alice", answering.chat.session_id)
    await answering.engine.abort(answering.rid)
    assert await producing is None
    (done,) = (f for f in await answering.viewer.sent() if f["type"] == "response.done")
    assert done["response"]["status_details"]["reason"] == "session_deleted"


async def test_stop_that_could_not_be_stored_goes_to_the_next_owner(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = asyncio.Event()
    request_cancel = answering.store.runs.request_cancel

    async def noted_request_cancel(*arguments: Any, **options: Any) -> Any:
        asked = await request_cancel(*arguments, **options)
        stored.set()
        return asked

    monkeypatch.setattr(answering.store.runs, "request_cancel", noted_request_cancel)
    producing = await taken_over(answering)
    answering.run.stop(Stop(seen=2))
    await answering.engine.abort(answering.rid)
    assert await producing is None
    await stored.wait()
    record = await answering.store.runs.get(None, answering.rid)
    assert (record.owner, record.cancel, record.seen_sequence_number) == ("w2", True, 2)


async def test_who_asked_for_a_stop_hears_that_it_is_stored_before_the_end_if_they_come_at_once(
    answering: Answering,
) -> None:
    was_done: list[bool] = []
    producing = answering.start()
    answering.engine.say(output(answering.rid, "half "))
    await answering.text_comes()
    answering.run.stop(Stop())  # nobody stores the wish alone
    answering.run.when_stop_is_stored(lambda: was_done.append(answering.run.done.is_set()))
    await answering.engine.abort(answering.rid)
    assert await producing is not None
    assert was_done == [False]


async def test_an_owner_that_lost_its_answer_tells_no_end_while_the_store_is_away(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, was_done = answering.store.runs.finish, []

    async def finish_after_an_outage(response_id: str, **arguments: Any) -> Any:
        was_done.append(answering.run.done.is_set())
        if len(was_done) == 1:
            raise StoreUnavailable("planted")
        return await finish(response_id, **arguments)

    monkeypatch.setattr(answering.store.runs, "finish", finish_after_an_outage)
    producing = await taken_over(answering)
    answering.run.lose()  # as an append says, which the store refuses
    await answering.engine.abort(answering.rid)
    assert await producing is None
    assert was_done == [False, False]


async def test_a_session_whose_deletion_the_store_tells_first_is_deleted_and_not_lost(
    answering: Answering,
) -> None:
    producing = answering.start()
    answering.engine.say(output(answering.rid, "half "))
    await answering.text_comes()
    await answering.store.sessions.delete("alice", answering.chat.session_id)
    await answering.engine.abort(answering.rid)
    assert await producing is None
    (done,) = (f for f in await answering.viewer.sent() if f["type"] == "response.done")
    assert done["response"]["status_details"]["reason"] == "session_deleted"
    assert done["durable"]
    assert answering.run.status == "cancelled"
