"""`GroupSessions`: members keep no more sessions together than their group may."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from sessions.directory.groups import Group, Groups
from sessions.directory.users import Users
from sessions.model.errors import QuotaExceeded
from sessions.model.ids import new_session_id
from sessions.model.quotas import GROUP_SESSIONS, USER_SESSIONS, GroupQuotas, OwnQuotas
from sessions.store.store import SessionStore


def groups_of(store: SessionStore) -> Groups:
    users = Users(store.client, store.keys)
    return Groups(store.client, store.keys, users, store.allowances, store.group_sessions)


async def team(store: SessionStore, *, sessions: int) -> tuple[Group, str, str]:
    group = await groups_of(store).create("team", GroupQuotas(sessions=sessions))
    users = Users(store.client, store.keys)
    ada, bob = (await users.create("Ada")).uid, (await users.create("Bob")).uid
    for uid in (ada, bob):
        await groups_of(store).join(group.gid, uid)
    return group, ada, bob


async def make(store: SessionStore, uid: str, key: str = "") -> str:
    created = await store.sessions.create(uid, idempotency_key=key or secrets.token_hex(8))
    return created.session.id


async def num_sessions(store: SessionStore, group: Group) -> int:
    (usage,) = await store.budgets.group_usage([group.gid])
    return usage.num_sessions


async def test_one_session_more_than_the_group_may_is_refused(store: SessionStore) -> None:
    group, ada, bob = await team(store, sessions=2)
    first = await make(store, ada, "first")
    await make(store, bob)
    with pytest.raises(QuotaExceeded) as caught:
        await make(store, bob)
    assert (caught.value.quota, caught.value.limit) == (GROUP_SESSIONS, 2)
    assert len((await store.lists.page(bob)).sessions) == 1
    assert await make(store, ada, "first") == first  # a repeat is no one more
    await store.sessions.delete(ada, first)
    await make(store, bob)
    assert await num_sessions(store, group) == 2


async def test_racing_sessions_are_never_more_than_the_group_may(
    store: SessionStore, other_store: SessionStore
) -> None:
    group, ada, bob = await team(store, sessions=7)
    made = await asyncio.gather(
        *(make((store, other_store)[n % 2], (ada, bob)[n % 2]) for n in range(60)),
        return_exceptions=True,
    )
    assert sum(isinstance(one, str) for one in made) == 7
    assert await num_sessions(store, group) == 7


async def test_who_comes_brings_their_sessions_and_takes_them_along(store: SessionStore) -> None:
    group, ada, _ = await team(store, sessions=2)
    carol = (await Users(store.client, store.keys).create("Carol")).uid
    kept = [await make(store, carol) for _ in range(3)]
    await groups_of(store).join(group.gid, carol)
    assert await num_sessions(store, group) == 3  # more than may be: nothing is taken away
    with pytest.raises(QuotaExceeded):
        await make(store, ada)
    assert {one.id for one in (await store.lists.page(carol)).sessions} == set(kept)
    await groups_of(store).leave(group.gid, carol)
    assert await num_sessions(store, group) == 0
    await make(store, ada)


async def test_a_session_that_was_there_before_is_found_in_a_full_group(
    store: SessionStore,
) -> None:
    """An older worker has made it, and entered it nowhere but in its user's list."""
    group, ada, bob = await team(store, sessions=1)
    known = await make(store, ada, "known")
    await store.client.call("ZREM", store.keys.group_sessions(group.gid), known)
    await make(store, bob)
    assert await make(store, ada, "known") == known
    assert len((await store.lists.page(ada)).sessions) == 1


async def test_entries_without_a_session_go_when_the_group_is_full(store: SessionStore) -> None:
    group, ada, _ = await team(store, sessions=3)
    index = store.keys.group_sessions(group.gid)
    for _ in range(3):
        await store.client.call("ZADD", index, 5, new_session_id())
    await make(store, ada)
    assert await num_sessions(store, group) == 1


async def test_a_users_own_number_stands_above_the_servers(store: SessionStore) -> None:
    _, ada, _ = await team(store, sessions=0)
    await groups_of(store).limit_user(ada, OwnQuotas(sessions=1))
    await make(store, ada)
    with pytest.raises(QuotaExceeded) as caught:
        await make(store, ada)
    assert (caught.value.quota, caught.value.limit) == (USER_SESSIONS, 1)
