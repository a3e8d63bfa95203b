"""Rights of open connections: what ends them, by a message or without one, and what does not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import orjson
import pytest

from server.access import identities as module
from server.access.identities import OLD_LOGIN_CODE, USED_LOGIN_CODE, Identities, User
from server.protocol.errors import ApiError
from sessions.connection.feed import LiveFeed
from sessions.directory.credentials import Credentials, digest_of
from sessions.directory.users import Users
from sessions.model.errors import StoreUnavailable
from sessions.store.store import SessionStore
from tests.helpers.patience import PATIENCE
from tests.helpers.running_time import running_time

TOKEN = "local-token-of-the-tests"


class Socket:
    """A connection that waits to be ended."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def end(self, error: ApiError) -> None:
        if not self.ended.done():
            self.ended.set_result(error.code)

    async def code(self) -> str:
        async with asyncio.timeout(PATIENCE):
            return await self.ended


@pytest.fixture
async def identities(credentials: Credentials, users: Users) -> AsyncIterator[Identities]:
    """Watching, with nobody to tell it of changes."""
    identities = Identities(credentials, users, token=TOKEN, admin_token="admin" * 5)
    watching = asyncio.create_task(identities.watch_forever())
    yield identities
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


@pytest.fixture
async def informed(identities: Identities, store: SessionStore) -> AsyncIterator[Identities]:
    """The same, which hears of changes as a worker does."""
    async with LiveFeed(store.client, store.keys) as feed:
        await feed.subscribe(store.keys.system_channel, identities.on_announcement)
        yield identities


@pytest.fixture
async def user(credentials: Credentials, users: Users, identities: Identities) -> User:
    stored = await users.create("Ada", ("user", "admin"))
    token = await credentials.create_token(stored.uid, scopes=("admin",))
    return await identities.of_token(token)


def digest(user: User) -> str:
    assert user.credential is not None
    return user.credential.digest


async def make(change: str, user: User, users: Users, credentials: Credentials) -> None:
    """A change of what `user` may do; "expire" comes by itself."""
    match change:
        case "revoke":
            await credentials.revoke_digest(digest(user))
        case "disable":
            await users.update(user.uid, disabled=True)
        case "demote":
            await users.update(user.uid, roles=("user",))
        case "forget":
            await users.forget(user.uid)


@pytest.mark.row("C12")
@pytest.mark.parametrize("change", ["revoke", "disable", "demote", "forget"])
async def test_a_change_of_rights_ends_open_connections_at_once(
    informed: Identities,
    user: User,
    users: Users,
    credentials: Credentials,
    change: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RECHECK_SECONDS", 60.0)
    sockets = Socket(), Socket()
    with informed.holding(user, sockets[0].end), informed.holding(user, sockets[1].end):
        await make(change, user, users, credentials)
        code = "forbidden" if change == "disable" else "token_invalid"
        assert [await socket.code() for socket in sockets] == [code] * 2
        assert not await informed.still_holds(user)


@pytest.mark.row("C12")
@pytest.mark.parametrize("change", ["revoke", "disable", "demote", "forget", "expire"])
async def test_a_change_of_rights_ends_a_request_whose_body_is_still_to_come(
    informed: Identities,
    users: Users,
    credentials: Credentials,
    change: str,
) -> None:
    stored = await users.create("Ada", ("user", "admin"))
    lifetime = 0.2 if change == "expire" else None
    user = await informed.of_token(
        await credentials.create_token(stored.uid, lifetime, scopes=("admin",))
    )
    await informed.confirm(user)
    socket = Socket()
    with informed.holding(user, socket.end):  # tells when the change has come here
        await make(change, user, users, credentials)
        await socket.code()
    with pytest.raises(ApiError) as refused:
        await informed.confirm(user)
    codes = {"disable": "forbidden", "expire": "token_expired"}
    assert refused.value.code == codes.get(change, "token_invalid")


async def test_whose_rights_hold_is_confirmed_without_a_question(
    identities: Identities, user: User, credentials: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise StoreUnavailable

    monkeypatch.setattr(credentials, "lookup_digests", away)
    await identities.confirm(user)
    await identities.confirm(await identities.of_token(TOKEN))
    monkeypatch.setattr(module, "CACHE_SECONDS", 0.0)
    with pytest.raises(StoreUnavailable):
        await identities.confirm(user)


@pytest.mark.row("P8")
@pytest.mark.parametrize("change", ["revoke", "disable"])
async def test_an_unannounced_change_of_rights_is_found_within_five_seconds(
    identities: Identities, user: User, store: SessionStore, change: str
) -> None:
    began = running_time()
    socket = Socket()
    with identities.holding(user, socket.end):
        if change == "revoke":
            await store.client.call("DEL", store.keys.token(digest(user)))
        else:
            await store.client.call("HSET", store.keys.user_record(user.uid), "disabled", "1")
        assert await socket.code() == ("forbidden" if change == "disable" else "token_invalid")
    assert running_time() - began < 5


async def test_a_new_name_ends_nothing(
    informed: Identities, user: User, users: Users, credentials: Credentials
) -> None:
    socket = Socket()
    with informed.holding(user, socket.end):
        await users.update(user.uid, name="Ada Lovelace")
        assert await informed.still_holds(user)
        await credentials.revoke_digest(digest(user))
        await socket.code()


async def test_a_credential_ends_at_its_time_even_without_redis(
    identities: Identities,
    users: Users,
    credentials: Credentials,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = await users.create("Ada")
    user = await identities.of_token(await credentials.create_token(stored.uid, 0.5))

    async def away(*_: object) -> None:
        raise StoreUnavailable

    monkeypatch.setattr(credentials, "lookup_digests", away)
    socket = Socket()
    with identities.holding(user, socket.end):
        assert await identities.still_holds(user)
        assert await socket.code() == "token_expired"


async def test_while_redis_is_away_open_connections_stay_and_new_ones_are_not_let_in(
    identities: Identities, user: User, credentials: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await credentials.create_token(user.uid)
    monkeypatch.setattr(module, "RECORD_SECONDS", 0.0)

    async def away(*_: object) -> None:
        raise StoreUnavailable

    monkeypatch.setattr(credentials, "lookup_digests", away)
    assert await identities.still_holds(user)
    with pytest.raises(StoreUnavailable):
        await identities.of_token(other)
    assert (await identities.of_token(TOKEN)).uid == "local"


async def test_a_cookie_in_use_is_not_idle(
    identities: Identities, users: Users, credentials: Credentials, store: SessionStore
) -> None:
    stored = await users.create("Ada")
    raw = await credentials.create_cookie(stored.uid, 7 * 86400)
    (cookie,) = await credentials.of_user(stored.uid)
    await store.client.call("PEXPIRE", store.keys.token(cookie.digest), 60_000)
    await identities.of_cookie(raw)
    assert await store.client.call("PTTL", store.keys.token(cookie.digest)) > 11 * 3_600_000


async def test_what_is_asked_often_is_read_once(
    identities: Identities, users: Users, credentials: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = await users.create("Ada")
    token = await credentials.create_token(stored.uid)
    asked = 0
    lookup = credentials.lookup_digests

    async def count(digests: list[str]) -> object:
        nonlocal asked
        asked += 1
        return await lookup(digests)

    monkeypatch.setattr(credentials, "lookup_digests", count)
    for _ in range(20):
        await identities.of_token(token)
    assert asked == 1


async def test_another_role_ends_a_tokens_connection_and_not_that_of_a_cookie(
    informed: Identities,
    user: User,
    users: Users,
    credentials: Credentials,
) -> None:
    cookie = await informed.of_cookie(await credentials.create_cookie(user.uid, 60))
    by_token, by_cookie = Socket(), Socket()
    with informed.holding(user, by_token.end), informed.holding(cookie, by_cookie.end):
        await make("demote", user, users, credentials)
        assert await by_token.code() == "token_invalid"
        assert await informed.still_holds(cookie)
        await users.update(user.uid, roles=())
        assert await by_cookie.code() == "token_invalid"


# ---- what a login code brings --------------------------------------------------------------------


async def logged_in(identities: Identities, credentials: Credentials, minter: User) -> str:
    """The cookie of a user who has opened a login link of their own."""
    assert minter.credential is not None
    code = await credentials.create_login_code(minter.uid, minter.credential)
    cookie, _ = await identities.redeem_login_code(code, 3600)
    return cookie


async def test_revoking_a_token_ends_the_cookie_and_the_socket_that_came_of_it(
    informed: Identities,
    user: User,
    credentials: Credentials,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RECHECK_SECONDS", 60.0)
    cookie = await logged_in(informed, credentials, user)
    socket = Socket()
    with informed.holding(await informed.of_cookie(cookie), socket.end):
        await credentials.revoke_digest(digest(user))  # the token's, and only that
        assert await socket.code() == "token_invalid"
    with pytest.raises(ApiError, match="token_invalid"):
        await informed.of_cookie(cookie)


async def test_a_code_of_a_token_that_was_revoked_opens_nothing(
    identities: Identities, user: User, credentials: Credentials
) -> None:
    assert user.credential is not None
    code = await credentials.create_login_code(user.uid, user.credential)
    assert (await identities.of_login_code(code)).uid == user.uid
    await credentials.revoke_digest(digest(user))
    for refused in (identities.of_login_code(code), identities.redeem_login_code(code, 60)):
        with pytest.raises(ApiError) as raised:
            await refused
        assert (raised.value.code, raised.value.message) == ("token_invalid", USED_LOGIN_CODE)


async def test_a_code_ends_with_the_token_and_so_does_its_cookie(
    identities: Identities, users: Users, credentials: Credentials
) -> None:
    stored = await users.create("Ada")
    user = await identities.of_token(await credentials.create_token(stored.uid, 100))
    cookie = await identities.of_cookie(await logged_in(identities, credentials, user))
    assert user.credential is not None and user.credential.expires_at is not None
    assert cookie.credential is not None and cookie.credential.expires_at is not None
    assert cookie.credential.expires_at <= user.credential.expires_at + 1


@pytest.mark.parametrize("change", ["revoke", "disable", "forget"])
async def test_an_invitation_ends_with_the_rights_of_its_host(
    identities: Identities, user: User, users: Users, credentials: Credentials, change: str
) -> None:
    guest = await users.create("Guest")
    assert user.credential is not None
    codes = [await credentials.create_login_code(guest.uid, user.credential) for _ in range(2)]
    cookie, _ = await identities.redeem_login_code(codes[0], 60)
    await make(change, user, users, credentials)
    with pytest.raises(ApiError, match="token_invalid"):
        await identities.redeem_login_code(codes[1], 60)
    assert (await identities.of_cookie(cookie)).uid == guest.uid  # who is in, stays


async def test_another_token_of_the_operator_ends_the_cookies_of_the_one_before(
    identities: Identities, users: Users, credentials: Credentials
) -> None:
    cookie = await logged_in(identities, credentials, await identities.of_token(TOKEN))
    assert (await identities.of_cookie(cookie)).uid == "local"
    restarted = Identities(credentials, users, token="another" * 5, admin_token="admin" * 5)
    with pytest.raises(ApiError, match="token_invalid"):
        await restarted.of_cookie(cookie)


async def test_a_login_code_of_an_older_version_is_refused_with_a_sentence(
    identities: Identities, user: User, store: SessionStore
) -> None:
    key = store.keys.login_code(digest_of("old"))
    await store.client.call("SET", key, orjson.dumps({"uid": user.uid}))
    with pytest.raises(ApiError) as raised:
        await identities.redeem_login_code("old", 60)
    assert (raised.value.code, raised.value.message) == ("token_invalid", OLD_LOGIN_CODE)


@pytest.mark.row("P31")
async def test_a_login_code_of_a_deleted_or_disabled_user_opens_nothing(
    identities: Identities, user: User, credentials: Credentials, users: Users
) -> None:
    gone, out = await users.create("Ada"), await users.create("Eve")
    assert user.credential is not None
    codes = [await credentials.create_login_code(one.uid, user.credential) for one in (gone, out)]
    await users.forget(gone.uid)
    await users.update(out.uid, disabled=True)
    for one, code in zip((gone, out), codes, strict=True):
        with pytest.raises(ApiError, match="token_invalid"):
            await identities.redeem_login_code(code, 60)
        assert await credentials.of_user(one.uid) == []


@pytest.mark.row("P31")
async def test_a_user_who_is_deleted_during_the_login_gets_no_cookie(
    identities: Identities,
    user: User,
    credentials: Credentials,
    users: Users,
    store: SessionStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guest = await users.create("Ada")
    assert user.credential is not None
    code = await credentials.create_login_code(guest.uid, user.credential)
    redeem = credentials.redeem_login_code

    async def forget_and_redeem(code: str, most_seconds: float) -> tuple[str, float] | None:
        await users.forget(guest.uid)
        return await redeem(code, most_seconds)

    monkeypatch.setattr(credentials, "redeem_login_code", forget_and_redeem)
    with pytest.raises(ApiError, match="token_invalid"):
        await identities.redeem_login_code(code, 60)
    for key in (store.keys.user_tokens(guest.uid), store.keys.user_record(guest.uid)):
        assert await store.client.call("EXISTS", key) == 0


async def test_of_more_credentials_than_are_checked_in_a_turn_none_is_missed(
    identities: Identities,
    credentials: Credentials,
    users: Users,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CHECKED_PER_TURN", 2)
    stored = await users.create("Ada")
    sockets = []
    with contextlib.ExitStack() as open_ones:
        for _ in range(5):
            user = await identities.of_token(await credentials.create_token(stored.uid))
            sockets.append(Socket())
            open_ones.enter_context(identities.holding(user, sockets[-1].end))
            await credentials.revoke_digest(digest(user))
        identities.on_resync()
        for socket in sockets:
            assert await socket.code() == "token_invalid"
