"""`Calls`: which worker has a call, each place given once."""

from sessions.connection.feed import LiveFeed
from sessions.directory.calls import Calls, Claim, Place
from sessions.model.events import LiveFrame, LivePayload
from sessions.store.store import SessionStore

HERE, THERE = Place("w0", "one"), Place("w1", "two")


async def test_a_call_that_was_left_is_given_once_and_the_oldest_first(store: SessionStore) -> None:
    calls = Calls(store.client, store.keys)
    for place in (HERE, THERE, HERE):
        await calls.leave("n", place)
    assert await calls.take("other") is None
    assert await calls.take("n") == HERE
    await calls.withdraw("n", HERE)
    assert [await calls.take("n"), await calls.take("n")] == [THERE, None]


async def test_what_was_left_goes_by_itself(store: SessionStore) -> None:
    calls = Calls(store.client, store.keys)
    await calls.leave("n", HERE)
    assert 0 < await store.client.call("PTTL", store.keys.left_calls("n")) <= 60_000


async def test_a_key_is_of_one_call_until_that_is_dropped_or_lost(store: SessionStore) -> None:
    calls = Calls(store.client, store.keys)
    first = Claim(HERE, "body")
    assert await calls.claim("n", "body", HERE) == first
    assert await calls.claim("n", "body", HERE) == first  # a repeat, whose reply was lost
    assert await calls.claim("n", "else", THERE) == first
    assert await calls.claim("n", "body", THERE, instead_of="another") == first
    assert await calls.claim("n", "body", THERE, instead_of="one") == Claim(THERE, "body")
    await calls.drop("n", "one")
    assert await calls.claim("n", "body", HERE) == Claim(THERE, "body")
    await calls.drop("n", "two")
    assert await calls.claim("n", "else", HERE) == Claim(HERE, "else")
    await store.client.call("PEXPIRE", store.keys.keyed_call("n"), 1000)
    await calls.renew("n")
    assert await store.client.call("PTTL", store.keys.keyed_call("n")) > 1000


async def test_who_listens_hears_and_who_speaks_knows_whether_anybody_does(
    store: SessionStore,
) -> None:
    calls, heard = Calls(store.client, store.keys), list[LivePayload]()
    assert await calls.send("c", {"n": 0}) is store.client.is_cluster
    assert await calls.ask(HERE, "c") is store.client.is_cluster
    async with LiveFeed(store.client, store.keys) as feed:
        await feed.subscribe(store.keys.relay_channel("c"), heard.append)
        await feed.subscribe(store.keys.control_channel("w0"), heard.append)
        assert await calls.ask(HERE, "c") and await calls.send("c", {"n": 0})
        await calls.dismiss(HERE, "c")
        await feed.subscribe(store.keys.relay_channel("last"), heard.append)  # then all is here
    assert heard == [
        LiveFrame({"type": "relay", "call_id": "one", "channel": "c"}),
        LiveFrame({"n": 0}),
        LiveFrame({"type": "relay_end", "channel": "c"}),
    ]
