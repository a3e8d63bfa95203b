"""`Slots`: the answers of a user, and of all members of a group, at a time."""

from __future__ import annotations

import asyncio

import pytest

from sessions.directory.groups import Group, Groups
from sessions.directory.users import Users
from sessions.model.errors import NoSlot
from sessions.model.ids import new_response_id, new_session_id
from sessions.model.quotas import GROUP_ANSWERS, USER_ANSWERS, GroupQuotas, OwnQuotas, Room
from sessions.store.store import SessionStore

AT_ONCE = 100  # more of them would wait for a busy machine's Redis longer than a call may


def groups_of(store: SessionStore) -> Groups:
    users = Users(store.client, store.keys)
    return Groups(store.client, store.keys, users, store.allowances, store.group_sessions)


async def team(store: SessionStore, *, answers: int, size: int = 2) -> tuple[Group, list[str]]:
    group = await groups_of(store).create("team", GroupQuotas(answers=answers))
    users = Users(store.client, store.keys)
    members = [(await users.create(f"user {number}")).uid for number in range(size)]
    for uid in members:
        await groups_of(store).join(group.gid, uid)
    return group, members


def response() -> str:
    return new_response_id(new_session_id())


async def test_members_share_their_groups_answers(store: SessionStore) -> None:
    _, (ada, bob) = await team(store, answers=2)
    first = response()
    assert await store.slots.take(ada, first, 0) == Room(2, 1)
    assert await store.slots.take(bob, response(), 0) == Room(2, 0)
    with pytest.raises(NoSlot) as caught:
        await store.slots.take(bob, response(), 0)
    assert (caught.value.count, caught.value.quota) == (2, GROUP_ANSWERS)
    await store.slots.free(ada, first, 0)
    assert await store.slots.take(bob, response(), 0) == Room(2, 0)


async def test_a_refusal_by_the_group_leaves_the_users_own_slot_free(store: SessionStore) -> None:
    _, (ada, bob) = await team(store, answers=1)
    await store.slots.take(bob, response(), 1)
    with pytest.raises(NoSlot) as caught:
        await store.slots.take(ada, response(), 1)
    assert caught.value.quota == GROUP_ANSWERS
    assert await store.client.call("ZCARD", store.keys.user_slots(ada)) == 0


async def test_a_users_own_limit_stands_above_the_servers(store: SessionStore) -> None:
    _, (ada,) = await team(store, answers=0, size=1)
    await groups_of(store).limit_user(ada, OwnQuotas(answers=1))
    assert await store.slots.take(ada, response(), 5) == Room(1, 0)
    with pytest.raises(NoSlot) as caught:
        await store.slots.take(ada, response(), 5)
    assert caught.value.quota == USER_ANSWERS
    await groups_of(store).limit_user(ada, OwnQuotas(answers=0))
    assert await store.slots.take(ada, response(), 1) is None


async def test_a_thousand_racing_answers_are_never_more_than_their_group_may(
    store: SessionStore, other_store: SessionStore
) -> None:
    group, members = await team(store, answers=5, size=4)
    most, num_begun, places = 0, 0, asyncio.Semaphore(AT_ONCE)

    async def answer(number: int) -> None:
        async with places:
            await race(number)

    async def race(number: int) -> None:
        nonlocal most, num_begun
        at = (store, other_store)[number % 2]
        uid, rid = members[number % 4], response()
        try:
            await at.slots.take(uid, rid, 3)
        except NoSlot:
            return
        num_begun += 1
        most = max(most, await at.client.call("ZCARD", store.keys.group_slots(group.gid)))
        await at.slots.free(uid, rid, 3)

    await asyncio.gather(*map(answer, range(1000)))
    assert most == 5 and num_begun >= 5
    assert await store.client.call("ZCARD", store.keys.group_slots(group.gid)) == 0
