"""Users found by a part of their name."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from sessions.background import Background
from sessions.directory.finding import names
from sessions.directory.finding.names import UserNames
from sessions.directory.users import Users
from sessions.model.errors import StoreUnavailable
from sessions.model.events import LiveFrame
from sessions.store.store import SessionStore
from tests.helpers.patience import PATIENCE


@pytest.fixture
def users(store: SessionStore) -> Users:
    return Users(store.client, store.keys)


@pytest.fixture
def found(store: SessionStore) -> UserNames:
    return UserNames(store.client, store.keys, {"local": "local"})


@pytest.fixture
async def kept(found: UserNames) -> AsyncIterator[UserNames]:
    """The same, read in the background as at a worker."""
    background = Background()
    background.spawn(found.keep_forever())
    yield found
    await background.close()


async def named(found: UserNames, text: str, limit: int = 10) -> list[str]:
    return [user.name for user in await found.find(text, limit)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


async def test_a_part_of_a_name_in_any_case_finds_its_users_those_that_begin_with_it_first(
    users: Users, found: UserNames
) -> None:
    for name in ("Grace Hopper", "Ada Lovelace", "Radia", "ADA", "Straße"):
        await users.create(name)
    assert await named(found, "ada") == ["ADA", "Ada Lovelace"]
    assert await named(found, "adi") == ["Radia"]
    assert await named(found, "STRASSE") == ["Straße"]
    assert await named(found, "loc") == ["local"]
    assert await named(found, "nobody") == []
    assert await named(found, "a", 1) == ["ADA"]


async def test_a_name_is_found_however_unicode_writes_it_and_whatever_is_hidden_in_it(
    users: Users, found: UserNames
) -> None:
    hidden, apart = "A\u200bda\u00ad", "Rene\u0301e"
    uids = {name: (await users.create(name)).uid for name in (hidden, apart)}
    assert await named(found, "ada") == [hidden]
    assert await named(found, "REN\u00c9") == [apart]
    assert await found.same("Ada") == [uids[hidden]]
    assert await found.same("Ren\u00e9e") == [uids[apart]]


async def test_who_came_or_went_since_the_last_search_is_known(
    users: Users, found: UserNames
) -> None:
    first = await users.create("Ada One")
    assert await named(found, "ada") == ["Ada One"]
    await users.create("Ada Two")
    assert await named(found, "ada") == ["Ada One", "Ada Two"]
    await users.forget(first.uid)
    assert await named(found, "ada") == ["Ada Two"]


async def test_who_came_at_a_worker_whose_clock_is_behind_is_known(
    users: Users, found: UserNames, store: SessionStore
) -> None:
    await users.create("Ada One")
    assert await named(found, "ada") == ["Ada One"]
    late = await users.create("Ada Two")
    await store.client.call("ZADD", store.keys.users, late.created_at - 5_000, late.uid)
    assert await named(found, "ada") == ["Ada One", "Ada Two"]


async def test_a_change_that_is_announced_is_known_at_once(users: Users, found: UserNames) -> None:
    ada, grace = await users.create("Ada"), await users.create("Grace")
    assert await named(found, "a") == ["Ada", "Grace", "local"]
    await users.update(ada.uid, name="Zoe")
    await users.forget(grace.uid)
    for uid in (ada.uid, grace.uid, "usr_unknown"):
        found.on_announcement(LiveFrame({"type": "user_changed", "uid": uid}))
    found.on_announcement(LiveFrame({"type": "notice"}))
    assert await named(found, "o") == ["Zoe", "local"]
    assert await named(found, "a") == ["local"]


async def test_a_change_is_not_forgotten_when_redis_is_away_while_it_is_read(
    users: Users, found: UserNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = await users.create("Ada")
    assert await named(found, "ada") == ["Ada"]
    await users.update(ada.uid, name="Zoe")
    found.on_announcement(LiveFrame({"type": "user_changed", "uid": ada.uid}))
    with monkeypatch.context() as outage:
        outage.setattr(found._client, "is_trusted", False)
        with pytest.raises(StoreUnavailable):
            await found.find("zoe", 10)
    assert await named(found, "zoe") == ["Zoe"]


async def test_a_worker_reads_all_names_at_its_start_so_that_the_first_search_reads_few(
    users: Users, kept: UserNames, store: SessionStore
) -> None:
    await users.create("Ada")
    await until(lambda: kept._read_at is not None)
    before = store.client.num_calls
    assert await named(kept, "ada") == ["Ada"]
    assert store.client.num_calls - before <= 3


async def test_of_very_many_users_nothing_is_read_before_somebody_searches(
    users: Users, found: UserNames, store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "MAX_READ_AT_START", 1)
    for number in range(2):
        await users.create(f"Ada {number}")
    background = Background()
    background.spawn(found.keep_forever())
    await asyncio.sleep(0)
    await store.client.call("PING")  # answered after what it has asked
    await asyncio.sleep(0)
    assert found._read_at is None and not found._due.is_set()
    assert await named(found, "ada") == ["Ada 0", "Ada 1"]
    await background.close()


async def test_a_change_of_which_no_message_came_is_known_after_a_minute_or_a_resync(
    users: Users, kept: UserNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = await users.create("Ada")
    assert await named(kept, "ada") == ["Ada"]
    await users.update(user.uid, name="Grace")
    assert await named(kept, "grace") == []
    kept.on_resync()
    await until(lambda: "Grace" in kept._names.values())
    await users.update(user.uid, name="Zoe")
    monkeypatch.setattr(names, "RENEW_SECONDS", 0.0)
    assert await named(kept, "grace") == ["Grace"]
    await until(lambda: "Zoe" in kept._names.values())


async def test_who_changes_while_everybody_is_read_is_read_again(
    users: Users, found: UserNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = await users.create("Ada")
    read = found._read

    async def slowly(uids: list[str]) -> dict[str, str]:
        old = await read(uids)
        monkeypatch.setattr(found, "_read", read)
        await users.update(ada.uid, name="Zoe")
        found.on_announcement(LiveFrame({"type": "user_changed", "uid": ada.uid}))
        return old

    monkeypatch.setattr(found, "_read", slowly)
    assert await named(found, "zoe") == ["Zoe"]


async def test_many_are_read_in_parts(
    users: Users, found: UserNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "READS_AT_ONCE", 2)
    for number in range(5):
        await users.create(f"User {number}")
    assert await named(found, "user") == [f"User {number}" for number in range(5)]
