"""Users found by a part of their name."""

import pytest

from sessions.directory.finding import names
from sessions.directory.finding.names import UserNames
from sessions.directory.users import Users
from sessions.store.store import SessionStore


@pytest.fixture
def users(store: SessionStore) -> Users:
    return Users(store.client, store.keys)


@pytest.fixture
def found(store: SessionStore) -> UserNames:
    return UserNames(store.client, store.keys, {"local": "local"})


async def named(found: UserNames, text: str, limit: int = 10) -> list[str]:
    return [user.name for user in await found.find(text, limit)]


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


async def test_who_came_or_went_since_the_last_search_is_known(
    users: Users, found: UserNames
) -> None:
    first = await users.create("Ada One")
    assert await named(found, "ada") == ["Ada One"]
    await users.create("Ada Two")
    assert await named(found, "ada") == ["Ada One", "Ada Two"]
    await users.forget(first.uid)
    assert await named(found, "ada") == ["Ada Two"]


async def test_a_new_name_is_known_within_a_minute(
    users: Users, found: UserNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = await users.create("Ada")
    assert await named(found, "ada") == ["Ada"]
    await users.update(user.uid, name="Grace")
    monkeypatch.setattr(names, "RENEW_SECONDS", 0.0)
    assert await named(found, "ada") == []
    assert await named(found, "grace") == ["Grace"]


async def test_many_are_read_in_parts(
    users: Users, found: UserNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "READS_AT_ONCE", 2)
    for number in range(5):
        await users.create(f"User {number}")
    assert await named(found, "user") == [f"User {number}" for number in range(5)]
