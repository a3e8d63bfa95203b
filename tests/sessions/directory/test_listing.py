"""The operators' list: everybody's sessions in order, filtered, a page at a time."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from sessions.connection.embedded import EmbeddedRedis
from sessions.directory.listing import Listed, Listing
from sessions.directory.users import Users
from sessions.model.codec import MAX_COUNT
from sessions.model.errors import InvalidCursor, SessionNotFound
from sessions.model.ids import new_session_id
from sessions.store.store import SessionStore
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import running_redis
from tests.sessions.helpers.chat import Chat
from tests.sessions.helpers.many_sessions import store_many_sessions


@pytest.fixture
def listing(store: SessionStore) -> Listing:
    return Listing(store.client, store.keys)


def ids(page: Listed) -> list[str]:
    return [session.id for session in page.sessions]


async def test_all_sessions_are_listed_newest_first_page_by_page(
    store: SessionStore, listing: Listing
) -> None:
    made = [(await Chat.create(store, uid=f"user{n % 3}")).session_id for n in range(11)]
    read: list[str] = []
    cursor = None
    while True:
        page = await listing.sessions(4, cursor)
        assert len(page.sessions) <= 4
        read += ids(page)
        if (cursor := page.next_cursor) is None:
            break
    assert sorted(read) == sorted(made)
    updated = [(await store.sessions.get(None, session_id)).updated_at for session_id in read]
    assert updated == sorted(updated, reverse=True)
    assert await listing.num_sessions() == 11


async def test_a_row_says_what_is_going_on(store: SessionStore, listing: Listing) -> None:
    user = await Users(store.client, store.keys).create("Ada")
    chat = await Chat.create(store, uid=user.uid, title="T", model="m")
    begun = await chat.begin(owner="w1")
    await chat.append(begun.response_id, 2, "one", "two", token_ids=[1, 2, 3])
    await chat.begin(on_busy="queue")
    fresh = int(time.time() * 1000)
    key = store.keys.session(chat.session_id, "v")
    await store.client.call("HSET", key, "w1", f"2 {fresh}", "w2", f"1 {fresh - 300_000}")
    (row,) = (await listing.sessions()).sessions
    assert (row.id, row.uid, row.user_name) == (chat.session_id, user.uid, "Ada")
    assert (row.title, row.model, row.viewers, row.num_queued) == ("T", "m", {"w1": 2}, 1)
    assert row.run is not None
    assert (row.run.response_id, row.run.owner) == (begun.response_id, "w1")
    assert (row.run.num_tokens, row.run.cancel) == (3, False)
    assert row.run.first_token_at is not None
    assert row.run.tokens_per_s(row.run.first_token_at + 1000) == 2.0
    assert row.run.tokens_per_s(row.run.first_token_at) is None


async def test_a_count_of_tokens_without_bound_makes_no_list_unreadable(
    store: SessionStore, listing: Listing
) -> None:
    chat = await Chat.create(store)
    key = store.keys.session(chat.session_id, "m")
    await store.client.call("HSET", key, "input_tokens", 2**64, "output_tokens", 2**70)
    (row,) = (await listing.sessions()).sessions
    (session,) = (await store.lists.page("alice")).sessions
    for shown in (row, session):
        assert (shown.input_tokens, shown.output_tokens) == (MAX_COUNT, MAX_COUNT)


async def test_a_user_and_a_model_can_be_asked_for(store: SessionStore, listing: Listing) -> None:
    for number in range(6):
        await Chat.create(store, uid=f"user{number % 2}", model=f"model{number % 3}")
    assert {one.uid for one in (await listing.sessions(uids=["user1"])).sessions} == {"user1"}
    page = await listing.sessions(model="model2")
    assert [one.model for one in page.sessions] == ["model2"] * 2
    assert page.next_cursor is None
    both = await listing.sessions(uids=["user1"], model="model1")
    assert [(one.uid, one.model) for one in both.sessions] == [("user1", "model1")]
    assert (await listing.sessions(uids=["nobody"])).sessions == ()


async def test_pages_of_a_model_miss_nothing(store: SessionStore, listing: Listing) -> None:
    made = [
        (await Chat.create(store, model=f"model{number % 2}")).session_id for number in range(12)
    ]
    read: list[str] = []
    cursor = None
    while True:
        page = await listing.sessions(2, cursor, model="model0")
        read += ids(page)
        if (cursor := page.next_cursor) is None:
            break
    assert sorted(read) == sorted(made[::2])


async def test_those_that_are_longest_unused_come_first_where_that_is_asked_for(
    store: SessionStore, listing: Listing
) -> None:
    for number in range(9):
        await Chat.create(store, model=f"m{number % 2}")
    for model in (None, "m0"):
        read, cursor = list[str](), None
        while True:
            page = await listing.sessions(2, cursor, model=model, oldest_first=True)
            read += ids(page)
            if (cursor := page.next_cursor) is None:
                break
        assert read == ids(await listing.sessions(50, model=model))[::-1]


async def test_a_page_of_a_model_that_none_has_looks_at_so_many(
    store: SessionStore, listing: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.directory.listing.EXAMINED_AT_ONCE", 2)
    monkeypatch.setattr("sessions.directory.listing.MAX_EXAMINED", 4)
    for _ in range(5):
        await Chat.create(store)
    page = await listing.sessions(model="other")
    assert (page.sessions, page.examined) == ((), 4) and page.next_cursor is not None
    rest = await listing.sessions(model="other", cursor=page.next_cursor)
    assert (rest.examined, rest.next_cursor) == (1, None)


async def test_live_sessions_are_found_by_replica_user_and_model(
    store: SessionStore, listing: Listing
) -> None:
    idle = await Chat.create(store)
    chats = [await Chat.create(store, uid=f"user{number}") for number in range(4)]
    for number, chat in enumerate(chats):
        await chat.begin(owner=f"w{number % 2}", model=f"model{number // 2}")
    live = ids(await listing.live())
    assert sorted(live) == sorted(chat.session_id for chat in chats)
    assert idle.session_id not in live
    assert ids(await listing.live(replica="w1", model="model0")) == [chats[1].session_id]
    assert ids(await listing.live(uids=["user2"])) == [chats[2].session_id]
    first = await listing.live(3)
    second = await listing.live(3, first.next_cursor)
    assert ids(first) + ids(second) == live and second.next_cursor is None


async def test_live_sessions_stand_in_the_order_that_is_asked_for(
    store: SessionStore, listing: Listing
) -> None:
    made = []
    for number in (2, 3, 1):
        chat = await Chat.create(store)
        begun = await chat.begin()
        ids_of = list(range(number))
        await chat.append(begun.response_id, 2, *map(str, ids_of), token_ids=ids_of)
        made.append(chat.session_id)
    assert ids(await listing.live(order="age")) == made[::-1]
    assert ids(await listing.live(order="-age")) == made
    most = [made[1], made[0], made[2]]
    assert ids(await listing.live(order="-tokens")) == most
    assert ids(await listing.live(order="tokens")) == most[::-1]
    await store.client.call("HSET", store.keys.user_record("alice"), "name", "Zoe")
    other = await Chat.create(store, uid="bob")  # has no name, as built-in users have none
    await other.begin(owner="w0", model="a-model")
    assert ids(await listing.live(order="user")) == [other.session_id, *made[::-1]]
    assert ids(await listing.live(order="-user"))[-1] == other.session_id
    assert ids(await listing.live(order="-model"))[0] == other.session_id
    assert ids(await listing.live(order="worker"))[0] == other.session_id
    assert ids(await listing.live(order="-state"))[0] == other.session_id  # it is queued
    first = await listing.live(2, uids=["alice"], order="-tokens")
    second = await listing.live(2, first.next_cursor, uids=["alice"], order="-tokens")
    assert ids(first) + ids(second) == most and second.next_cursor is None


async def test_a_part_of_a_title_finds_its_sessions_page_by_page(
    store: SessionStore, listing: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.directory.listing.EXAMINED_AT_ONCE", 3)
    titles = ["Tides", "Bread", "Why tides turn", "Boats", "TIDES again", "Tea", "Sails"]
    made = [(await Chat.create(store, title=title)).session_id for title in titles]
    page = await listing.titled("tides")
    assert ids(page) == [made[4], made[2], made[0]]
    assert (page.next_cursor, page.examined) == (None, 7)
    first = await listing.titled("tides", 2)
    rest = await listing.titled("tides", 2, first.next_cursor)
    assert ids(first) + ids(rest) == ids(page) and first.next_cursor is not None
    monkeypatch.setattr("sessions.directory.listing.MAX_EXAMINED", 3)
    short = await listing.titled("tides")  # it has looked at as many as one page does
    assert (ids(short), short.examined) == ([made[4]], 3) and short.next_cursor is not None


async def test_sessions_of_several_users_are_one_list(
    store: SessionStore, listing: Listing
) -> None:
    made = [(await Chat.create(store, uid=f"user{n % 3}")).session_id for n in range(6)]
    page = await listing.sessions(uids=["user0", "user2"])
    others = (made[1], made[4])
    assert ids(page) == [sid for sid in ids(await listing.sessions()) if sid not in others]


async def test_the_details_of_a_session_hold_its_answers(
    store: SessionStore, listing: Listing
) -> None:
    chat = await Chat.create(store)
    first = await chat.begin()
    await chat.finish(first.response_id, 2)
    second = await chat.begin()
    row, runs, now_ms = await listing.session(chat.session_id)
    assert row.run is not None and row.run.response_id == second.response_id
    assert {run.response_id for run in runs} == {first.response_id, second.response_id}
    assert {run.status for run in runs} == {"completed", "queued"}
    assert abs(now_ms - time.time() * 1000) < 5000


@pytest.mark.row("B59")
@pytest.mark.parametrize("session_id", ["*", "ses_x", "ses_AAAAAAAAAAAAAAAAAAAAAA"])
async def test_an_unknown_or_malformed_id_is_not_found(listing: Listing, session_id: str) -> None:
    with pytest.raises(SessionNotFound):
        await listing.session(session_id)


async def test_a_foreign_cursor_is_refused(listing: Listing) -> None:
    for page in (listing.sessions, listing.live):
        with pytest.raises(InvalidCursor):
            await page(50, "{x}")


async def test_entries_of_sessions_that_are_gone_are_dropped(
    store: SessionStore, listing: Listing
) -> None:
    gone = new_session_id()
    await store.client.call("ZADD", store.keys.all_sessions(gone), 1, gone)
    assert (await listing.sessions()).sessions == ()
    assert await listing.num_sessions() == 0


@pytest.fixture(scope="module")
def emptied_redis() -> Iterator[EmbeddedRedis]:
    with running_redis() as redis:
        yield redis


@pytest.mark.row("B59")
@pytest.mark.parametrize("num_sessions", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
async def test_a_page_costs_the_same_however_many_sessions_there_are(
    emptied_redis: EmbeddedRedis, num_sessions: int
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    url, prefix = emptied_redis.url, f"n{num_sessions}:"
    store = await SessionStore.open(url, prefix=prefix, timeout_seconds=PATIENCE)
    listing = Listing(store.client, store.keys)
    await store_many_sessions(store, num_sessions, seed)
    assert await listing.num_sessions() == num_sessions
    before, num_calls = await _calls(store), store.client.num_calls
    times, cursor = [], None
    for _ in range(40):
        began = time.perf_counter()
        page = await listing.sessions(50, cursor)
        times.append(time.perf_counter() - began)
        assert len(page.sessions) == 50
        cursor = page.next_cursor
    num_calls = store.client.num_calls - num_calls
    after = await _calls(store)
    print(f"page of 50 of {num_sessions:,}: median {sorted(times)[20] * 1000:.1f} ms")
    assert "keys" not in after and not {"scan", "hscan", "zscan", "sscan"} & after.keys()
    assert num_calls <= 40 * 6
    # Two rounds of the 64 shards at most for each page, and two questions a session.
    assert after["zrange"] - before.get("zrange", 0) <= 40 * 128
    assert after.get("llen", 0) == before.get("llen", 0)  # no answer is active
    assert after["hgetall"] - before.get("hgetall", 0) == 40 * 50
    await store.close()


async def _calls(store: SessionStore) -> dict[str, int]:
    """How often each command was called on this server."""
    text = bytes(await store.client.call("INFO", "commandstats")).decode()
    pairs = [line.split(":calls=") for line in text.splitlines() if ":calls=" in line]
    return {name.removeprefix("cmdstat_"): int(rest.split(",")[0]) for name, rest in pairs}
