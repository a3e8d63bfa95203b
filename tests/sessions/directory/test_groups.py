"""Groups: a user is in one at most, and nothing of a group that is removed stays."""

from __future__ import annotations

import pytest

from sessions.directory import groups as module
from sessions.directory.groups import Groups
from sessions.directory.users import Users
from sessions.model.errors import GroupNotFound, QuotaExceeded, UserNotFound
from sessions.model.ids import is_group_id
from sessions.model.quotas import GroupQuotas, OwnQuotas
from sessions.store.store import SessionStore


@pytest.fixture
def users(store: SessionStore) -> Users:
    return Users(store.client, store.keys)


@pytest.fixture
def groups(store: SessionStore, users: Users) -> Groups:
    return Groups(store.client, store.keys, users, store.allowances, store.group_sessions)


async def test_a_new_group_has_an_id_of_ours_and_can_be_read(groups: Groups) -> None:
    group = await groups.create("Physics", GroupQuotas(tokens_per_day=5, answers=2))
    assert is_group_id(group.gid)
    assert await groups.group(group.gid) == group
    for unknown in ("grp_" + "x" * 22, "grp_", "usr_" + "x" * 22):
        with pytest.raises(GroupNotFound):
            await groups.group(unknown)


async def test_groups_come_in_pages_newest_first(groups: Groups) -> None:
    made = [(await groups.create(f"g{number}", GroupQuotas())).gid for number in range(5)]
    page = await groups.page(3)
    rest = await groups.page(3, page.next_cursor)
    assert {one.gid for one in (*page.groups, *rest.groups)} == set(made)
    assert (len(page.groups), len(rest.groups), rest.next_cursor) == (3, 2, None)


async def test_what_is_given_is_changed(groups: Groups) -> None:
    group = await groups.create("Physics", GroupQuotas(tokens_per_day=5))
    named = await groups.update(group.gid, name="Chemistry")
    assert (named.name, named.quotas) == ("Chemistry", GroupQuotas(tokens_per_day=5))
    limited = await groups.update(group.gid, quotas=GroupQuotas(sessions=9))
    assert (limited.name, limited.quotas) == ("Chemistry", GroupQuotas(sessions=9))
    with pytest.raises(GroupNotFound):
        await groups.update("grp_" + "x" * 22, name="none")


async def test_who_joins_another_group_leaves_their_own(
    groups: Groups, users: Users, store: SessionStore
) -> None:
    ada = await users.create("Ada")
    one = await groups.create("one", GroupQuotas(answers=1))
    two = await groups.create("two", GroupQuotas(answers=2))
    await groups.join(one.gid, ada.uid)
    assert (await store.allowances.of(ada.uid)).shared == one.quotas
    await groups.join(two.gid, ada.uid)
    assert (await users.user(ada.uid)).group == two.gid
    assert (await store.allowances.of(ada.uid)).shared == two.quotas
    assert (await groups.members(one.gid)).users == ()
    assert [user.uid for user in (await groups.members(two.gid)).users] == [ada.uid]
    with pytest.raises(UserNotFound):
        await groups.leave(one.gid, ada.uid)


async def test_members_come_in_pages_without_those_who_are_gone(
    groups: Groups, users: Users, store: SessionStore
) -> None:
    group = await groups.create("team", GroupQuotas())
    uids = [(await users.create(f"user {number}")).uid for number in range(5)]
    for uid in uids:
        await groups.join(group.gid, uid)
    await users.forget(uids[0])
    await store.client.call("ZADD", store.keys.group_members(group.gid), 1, "usr_" + "x" * 22)
    found, cursor = [], None
    while True:
        page = await groups.members(group.gid, 2, cursor)
        found += [user.uid for user in page.users]
        if (cursor := page.next_cursor) is None:
            break
    assert sorted(found) == sorted(uids[1:])
    assert await store.client.call("ZCARD", store.keys.group_members(group.gid)) == 4


async def test_a_group_that_is_removed_lets_its_members_go(
    groups: Groups, users: Users, store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MEMBERS_AT_ONCE", 2)
    group = await groups.create("team", GroupQuotas(answers=1))
    uids = [(await users.create(f"user {number}")).uid for number in range(5)]
    for uid in uids:
        await groups.join(group.gid, uid)
    await groups.remove(group.gid)
    assert {user.group for user in (await users.users(uids)).values()} == {""}
    assert (await store.allowances.of(uids[0])).group is None
    replies = await store.client.everywhere("KEYS", f"{store.keys.prefix}g*")
    assert not [key for keys in replies for key in keys]


async def test_a_group_takes_so_many_and_no_more(
    groups: Groups, users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_MEMBERS", 1)
    group = await groups.create("team", GroupQuotas())
    ada, bob = await users.create("Ada"), await users.create("Bob")
    await groups.join(group.gid, ada.uid)
    with pytest.raises(QuotaExceeded):
        await groups.join(group.gid, bob.uid)
    with pytest.raises(UserNotFound):
        await groups.join(group.gid, "usr_" + "x" * 22)


async def test_a_users_own_quotas_are_in_the_record_and_can_be_taken_back(
    groups: Groups, users: Users
) -> None:
    ada = await users.create("Ada")
    await groups.limit_user(ada.uid, OwnQuotas(tokens_per_day=0, sessions=7))
    assert (await users.user(ada.uid)).quotas == OwnQuotas(tokens_per_day=0, sessions=7)
    await groups.limit_user(ada.uid, OwnQuotas())
    assert await users.user(ada.uid) == ada


async def test_a_part_of_a_name_in_any_case_finds_groups_however_old(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NAMES_AT_ONCE", 2)
    for name in ("Astrophysics", "Physics", "Straße", "Chemistry", "PHYSICS 2"):
        await groups.create(name, GroupQuotas(answers=2))
    found, number = await groups.find(" phys", 2)
    assert [one.name for one in found] == ["Physics", "PHYSICS 2"]
    assert (number, found[0].quotas) == (3, GroupQuotas(answers=2))
    found, number = await groups.find("STRASSE", 2)
    assert ([one.name for one in found], number) == (["Straße"], 1)
    assert await groups.find("nobody", 2) == ([], 0)
    assert await groups.find(found[0].gid, 2) == (found, 1)
    assert await groups.find("grp_" + "x" * 22, 2) == ([], 0)
