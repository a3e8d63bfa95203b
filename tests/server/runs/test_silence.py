"""`Hub.show` and its like: nothing is shown while another worker may have taken the answer over."""

import asyncio
from typing import Any

import pytest

from server.live.subscription import Subscription
from tests.server.helpers.answering import Answering, output, until
from tests.server.helpers.appends import Outage
from tests.server.helpers.watching import Viewer


async def texts_of(answering: Answering) -> list[str]:
    frames = await answering.viewer.sent()
    return [f["delta"] for f in frames if f["type"] == "response.output_text.delta"]


async def shown_and_stored(answering: Answering, outage: Outage) -> asyncio.Task[Any]:
    """One text was sent and stored, and the outage has begun."""
    producing = answering.start()
    answering.engine.say(output(answering.rid, "shown "))
    await answering.text_comes()
    await until(lambda: answering.run.num_stored == answering.run.sequence_number)
    outage.lasts = True
    return producing


@pytest.mark.parametrize("has_peers", [True, False])
async def test_owner_without_renewal_shows_nothing_where_others_could_take_over(
    answering: Answering, monkeypatch: pytest.MonkeyPatch, has_peers: bool
) -> None:
    outage = Outage(answering.store.appends, monkeypatch)
    answering.has_peers = has_peers
    producing = await shown_and_stored(answering, outage)
    answering.run.renewed_at -= answering.intervals.silence
    answering.engine.say(output(answering.rid, "held "))
    await until(lambda: answering.run.text() == "shown held ")
    assert await texts_of(answering) == ([] if has_peers else ["held "])
    outage.lasts = False
    answering.engine.say(output(answering.rid, "end"), output(answering.rid, "", "stop"))
    await producing
    assert "".join(await texts_of(answering)) == ("held end" if has_peers else "end")
    assert (await answering.stored())[1] == "shown held end"


async def test_owner_that_lost_its_answer_drops_what_it_held_and_shows_the_log(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(answering.store.appends, monkeypatch)
    answering.has_peers = True
    producing = await shown_and_stored(answering, outage)
    answering.run.renewed_at -= answering.intervals.silence
    answering.engine.say(output(answering.rid, "held "))
    await until(lambda: answering.run.text() == "shown held ")
    await answering.store.runs.reap(answering.rid, new_owner="w2", exited_owner="w1")
    outage.lasts = False
    assert await producing is None
    frame = await answering.viewer.next()
    assert (frame["type"], frame["text"]) == ("response.output_text.snapshot", "shown ")
    assert frame["fence"] == 2
    assert await texts_of(answering) == []


async def shown_and_queued(answering: Answering, outage: Outage) -> asyncio.Task[Any]:
    """One text was sent and stored; another is queued in time, and its reader is slow."""
    answering.has_peers = True
    producing = await shown_and_stored(answering, outage)
    answering.engine.say(output(answering.rid, "queued "))
    await until(lambda: answering.run.text() == "shown queued ")
    answering.run.renewed_at -= answering.intervals.silence
    assert await texts_of(answering) == []
    return producing


async def test_text_that_was_queued_in_time_is_not_sent_too_late(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(answering.store.appends, monkeypatch)
    producing = await shown_and_queued(answering, outage)
    newcomer = Viewer()
    subscription = Subscription(newcomer, answering.chat.session_id)
    await answering.hub.join(subscription)
    await answering.hub.catch_up.attach(subscription, answering.rid)
    subscription.end_join(subscription.offset)
    assert await newcomer.sent() == []
    outage.lasts = False
    for viewer in (answering.viewer, newcomer):
        frame = await viewer.next()
        assert (frame["type"], frame["text"]) == ("response.output_text.snapshot", "shown queued ")
        assert (frame["fence"], frame["sequence_number"]) == (1, answering.run.sequence_number)
    answering.engine.say(output(answering.rid, "end"), output(answering.rid, "", "stop"))
    await producing
    assert await texts_of(answering) == ["end"]
    assert (await answering.stored())[1] == "shown queued end"


async def test_text_that_was_queued_in_time_is_never_sent_if_the_answer_is_lost(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(answering.store.appends, monkeypatch)
    producing = await shown_and_queued(answering, outage)
    await answering.store.runs.reap(answering.rid, new_owner="w2", exited_owner="w1")
    outage.lasts = False
    assert await producing is None
    frame = await answering.viewer.next()
    assert (frame["type"], frame["text"]) == ("response.output_text.snapshot", "shown ")
    assert (frame["fence"], await texts_of(answering)) == (2, [])
