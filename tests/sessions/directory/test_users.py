"""Users: records that change for everybody at once, and go with all that is theirs."""

from __future__ import annotations

import asyncio

import pytest

from sessions.connection.feed import LiveFeed
from sessions.directory.credentials import Credentials, digest_of
from sessions.directory.users import Users
from sessions.model.errors import IdempotencyKeyReused, InvalidCursor, TokenEnded, UserNotFound
from sessions.model.events import LiveFrame, LivePayload
from sessions.model.ids import derived_user_id, is_user_id
from sessions.model.keys import USER_KEY_MS
from sessions.store.store import SessionStore


@pytest.fixture
def users(store: SessionStore) -> Users:
    return Users(store.client, store.keys)


@pytest.fixture
def credentials(store: SessionStore) -> Credentials:
    return Credentials(store.client, store.keys)


async def listening(store: SessionStore) -> tuple[LiveFeed, asyncio.Queue[LivePayload]]:
    """What is announced to every worker, from now on."""
    feed, heard = LiveFeed(store.client, store.keys), asyncio.Queue[LivePayload]()
    await feed.start()
    await feed.subscribe(store.keys.system_channel, heard.put_nowait)
    return feed, heard


async def test_a_new_user_has_an_id_of_ours_and_can_be_read(users: Users) -> None:
    user = await users.create("Ada", ("user", "admin"))
    assert is_user_id(user.uid) and not user.disabled
    assert await users.user(user.uid) == user


async def test_an_unknown_user_is_not_found(users: Users) -> None:
    with pytest.raises(UserNotFound):
        await users.user("nobody")
    with pytest.raises(UserNotFound):
        await users.update("nobody", name="Somebody")
    assert await users.users(["nobody"]) == {}


async def test_users_are_listed_newest_first_page_by_page(users: Users) -> None:
    made = [(await users.create(f"user {number}")).uid for number in range(5)]
    listed: list[str] = []
    cursor = None
    while True:
        page = await users.page(2, cursor)
        listed += [user.uid for user in page.users]
        if (cursor := page.next_cursor) is None:
            break
    assert sorted(listed) == sorted(made)
    with pytest.raises(InvalidCursor):
        await users.page(2, "{}")


async def test_a_change_is_stored_and_announced(users: Users, store: SessionStore) -> None:
    user = await users.create("Ada")
    feed, heard = await listening(store)
    changed = await users.update(user.uid, roles=("user", "admin"), disabled=True)
    assert (changed.name, changed.roles, changed.disabled) == ("Ada", ("user", "admin"), True)
    assert await heard.get() == LiveFrame({"type": "user_changed", "uid": user.uid})
    await feed.close()


async def test_a_change_never_brings_a_deleted_user_back(users: Users) -> None:
    user = await users.create("Ada")
    await users.forget(user.uid)
    with pytest.raises(UserNotFound):
        await users.update(user.uid, disabled=False)
    assert (await users.page()).users == ()


@pytest.mark.row("P31")
async def test_nothing_of_a_deleted_user_stays(
    users: Users, credentials: Credentials, store: SessionStore
) -> None:
    user = await users.create("Ada")
    token = await credentials.create_token(user.uid)
    cookie = await credentials.create_cookie(user.uid, 3600)
    assert await credentials.revoke_all(user.uid) == 2
    await users.forget(user.uid)
    assert await credentials.lookup(token) is None
    assert await credentials.lookup(cookie) is None
    replies = await store.client.everywhere("KEYS", f"{store.keys.prefix}*")
    assert [name.decode() for names in replies for name in names] == [store.keys.system]


async def test_tokens_are_listed_and_revoked_one_by_one(
    users: Users, credentials: Credentials, store: SessionStore
) -> None:
    user = await users.create("Ada")
    first = await credentials.create_token(user.uid, 3600)
    second = await credentials.create_token(user.uid, scopes=("admin",))
    listed = await credentials.of_user(user.uid)
    assert {one.scopes for one in listed} == {(), ("admin",)}
    feed, heard = await listening(store)
    assert await credentials.revoke(first)
    frame = await heard.get()
    assert isinstance(frame, LiveFrame) and frame.data["type"] == "revoked"
    assert [one.digest for one in await credentials.of_user(user.uid)] == [
        one.digest for one in listed if one.scopes
    ]
    assert await credentials.lookup(second) is not None
    await feed.close()


async def test_a_user_of_a_key_is_made_once_and_neither_twice_nor_again(
    store: SessionStore, users: Users
) -> None:
    uid = derived_user_id("admin", "key")
    assert await make(users, uid, "first") == ("Ada", [])
    await users.update(uid, name="Ada King")
    assert await make(users, uid, "second") == ("Ada King", ["first"])
    with pytest.raises(IdempotencyKeyReused):
        await make(users, uid, "third", content="b")
    assert [user.uid for user in (await users.page()).users] == [uid]
    await users.forget(uid)
    with pytest.raises(UserNotFound):
        await make(users, uid, "fourth")
    assert await store.client.call("ZCARD", store.keys.users) == 0
    await users.create("Ada", uid=uid)  # whose key is forgotten
    await store.client.call("DEL", store.keys.user_key(uid))
    with pytest.raises(IdempotencyKeyReused):
        await make(users, uid, "fifth")


async def test_a_repeat_ends_what_repeats_that_came_no_further_have_left(
    store: SessionStore, users: Users
) -> None:
    uid = derived_user_id("admin", "key")
    await make(users, uid, "first")
    await make(users, uid, "second")  # which could not end the first
    assert await make(users, uid, "third") == ("Ada", ["second", "first"])
    await store.client.call("ZREM", store.keys.user_tokens(uid), "first", "second")
    assert await make(users, uid, "fourth") == ("Ada", ["third"])


async def test_no_repeat_of_several_gets_a_token_after_that_of_the_user_has_ended(
    store: SessionStore, users: Users, credentials: Credentials
) -> None:
    uid = derived_user_id("admin", "key")
    raw = await credentials.prepare_token(uid, 1, None)
    await make(users, uid, digest_of(raw))
    await credentials.revoke_all(uid)
    for digest in ("second", "third"):
        with pytest.raises(TokenEnded):
            await make(users, uid, digest)
    other = derived_user_id("admin", "other")
    await make(users, other, "short", expires_at=1)
    with pytest.raises(TokenEnded):
        await make(users, other, "next")


async def test_a_token_of_a_user_who_was_not_made_is_in_no_list_and_ends_within_a_day(
    store: SessionStore, users: Users, credentials: Credentials
) -> None:
    uid = derived_user_id("admin", "key")
    lost = await credentials.prepare_token(uid, 1, None, scopes=("admin",))
    raw = await credentials.prepare_token(uid, 1, None)
    await make(users, uid, digest_of(raw))
    await credentials.keep_token(raw, None)
    assert [one.digest for one in await credentials.of_user(uid)] == [digest_of(raw)]

    async def life_ms(token: str) -> int:
        return int(await store.client.call("PTTL", store.keys.token(digest_of(token))))

    assert 0 < await life_ms(lost) <= USER_KEY_MS and await life_ms(raw) == -1
    await credentials.revoke(raw)
    await credentials.keep_token(raw, None)  # too late
    assert await credentials.lookup(raw) is None


async def make(
    users: Users, uid: str, digest: str, *, content: str = "a", expires_at: int | None = None
) -> tuple[str, list[str]]:
    """Their name now, and the tokens before this one."""
    user, before = await users.create_once(
        uid, "Ada", ("user",), content=content, digest=digest, expires_at=expires_at
    )
    return user.name, before
