"""Credentials: only digests are stored, what stands in a URL works once, what ended is unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from sessions.directory.credentials import Credential, Credentials, digest_of
from sessions.store.store import SessionStore


@pytest.fixture
def credentials(store: SessionStore) -> Credentials:
    return Credentials(store.client, store.keys)


async def test_a_cookie_stands_for_its_user(credentials: Credentials) -> None:
    raw = await credentials.create_cookie("alice", 3600, scopes=("chat", "admin"))
    found = await credentials.lookup(raw)
    assert found is not None
    assert (found.uid, found.scopes, found.kind) == ("alice", ("chat", "admin"), "cookie")
    assert found.expires_at == found.created_at + 3_600_000 and found.digest == digest_of(raw)
    assert len(raw) >= 43


@pytest.mark.row("P6")
async def test_a_cookie_that_nobody_uses_goes_after_twelve_hours(
    credentials: Credentials, store: SessionStore
) -> None:
    raw = await credentials.create_cookie("alice", 7 * 86400)
    key = store.keys.token(digest_of(raw))
    await store.client.call("PEXPIRE", key, 1000)  # as if it were idle for long
    await credentials.touch([digest_of(raw)])
    assert 12 * 3_600_000 - 10_000 < await store.client.call("PTTL", key) <= 12 * 3_600_000


async def test_a_use_does_not_bring_a_revoked_cookie_back(
    credentials: Credentials, store: SessionStore
) -> None:
    raw = await credentials.create_cookie("alice", 3600)
    assert await credentials.revoke(raw)
    await credentials.touch([digest_of(raw)])
    assert await credentials.lookup(raw) is None
    assert not await store.client.call("EXISTS", store.keys.token(digest_of(raw)))


async def test_what_has_expired_is_told_apart_from_what_is_unknown(
    credentials: Credentials, store: SessionStore
) -> None:
    raw = await credentials.create_token("alice", 0.001)
    expired = await credentials.lookup(raw)
    assert expired is not None
    await store.client.call("HSET", store.keys.token(digest_of(raw)), "expires_at", 1)
    expired = await credentials.lookup(raw)
    assert expired is not None and expired.has_expired
    assert await credentials.of_user("alice") == []
    assert await store.client.call("PTTL", store.keys.token(digest_of(raw))) > 86_400_000


async def test_a_token_works_until_it_is_revoked(
    credentials: Credentials, store: SessionStore
) -> None:
    raw = await credentials.create_token("alice")
    assert await store.client.call("PTTL", store.keys.token(digest_of(raw))) == -1
    assert await credentials.lookup(raw) is not None
    assert await credentials.revoke(raw)
    assert not await credentials.revoke(raw)
    assert await credentials.lookup(raw) is None


async def test_what_was_never_a_secret_of_ours_is_unknown(credentials: Credentials) -> None:
    for raw in ("", "x", "ü" * 512, "x" * 100_000, "\ud800", "{a}", "a\0b"):
        assert await credentials.lookup(raw) is None
        assert await credentials.redeem_ticket(raw) is None
        assert await credentials.login_code(raw) is None
        assert await credentials.redeem_login_code(raw, 60) is None


async def minter(
    credentials: Credentials, uid: str = "alice", lifetime_seconds: float | None = None
) -> Credential:
    """A token that makes login codes."""
    found = await credentials.lookup(await credentials.create_token(uid, lifetime_seconds))
    assert found is not None
    return found


async def redeemed(credentials: Credentials, code: str, most_seconds: float = 60) -> str:
    """The cookie that this code brings."""
    made = await credentials.redeem_login_code(code, most_seconds)
    assert made is not None
    return made[0]


async def test_a_login_code_works_once(credentials: Credentials, store: SessionStore) -> None:
    code = await credentials.create_login_code("alice", await minter(credentials), 120)
    left = await store.client.call("PTTL", store.keys.login_code(digest_of(code)))
    assert 110_000 < left <= 120_000
    for _ in range(2):  # looking at it does not use it up
        found = await credentials.login_code(code)
        assert found is not None and found.uid == "alice" and found.is_own
    uses = await asyncio.gather(*(credentials.redeem_login_code(code, 60) for _ in range(10)))
    ((cookie, lifetime),) = (one for one in uses if one is not None)
    assert lifetime == 60
    known = await credentials.of_user("alice")
    assert [one.digest for one in known if one.kind == "cookie"] == [digest_of(cookie)]
    assert await credentials.login_code(code) is None


async def test_a_cookie_of_a_users_own_code_names_the_token_and_ends_with_it(
    credentials: Credentials,
) -> None:
    token = await minter(credentials, "alice", 100)
    code = await credentials.create_login_code("alice", token)
    cookie = await credentials.lookup(await redeemed(credentials, code, 3600))
    assert cookie is not None and token.expires_at is not None
    assert cookie.minted_by == token.digest
    assert cookie.expires_at is not None and abs(cookie.expires_at - token.expires_at) < 100
    await credentials.revoke_digest(token.digest)
    assert await credentials.of_user("alice") == []


async def test_a_code_works_no_longer_than_the_credential_that_made_it(
    credentials: Credentials, store: SessionStore
) -> None:
    code = await credentials.create_login_code("alice", await minter(credentials, "alice", 50))
    assert await store.client.call("PTTL", store.keys.login_code(digest_of(code))) <= 50_000


async def test_a_guests_cookie_does_not_end_with_the_hosts_token(credentials: Credentials) -> None:
    host = await minter(credentials, "admin", 100)
    code = await credentials.create_login_code("alice", host)
    cookie = await credentials.lookup(await redeemed(credentials, code, 3600))
    assert cookie is not None and cookie.minted_by == ""
    assert cookie.expires_at is not None and host.expires_at is not None
    assert cookie.expires_at > host.expires_at + 3_000_000


async def test_revoking_cookies_leaves_tokens_and_the_cookies_of_others(
    credentials: Credentials,
) -> None:
    token = await credentials.create_token("alice")
    cookies = [await credentials.create_cookie("alice", 100) for _ in range(2)]
    other = await credentials.create_cookie("bob", 100)
    assert await credentials.revoke_cookies("alice") == 2
    for cookie in cookies:
        assert await credentials.lookup(cookie) is None
    assert await credentials.lookup(token) and await credentials.lookup(other)
    assert await credentials.revoke_cookies("alice") == 0


async def test_revoking_everything_takes_the_codes_that_wait_too(
    credentials: Credentials, store: SessionStore
) -> None:
    own, host = await minter(credentials), await minter(credentials, "admin")
    codes = [await credentials.create_login_code("alice", one) for one in (own, host)]
    other = await credentials.create_login_code("bob", host)
    assert await credentials.revoke_all("alice") == 1  # codes are not counted
    for code in codes:
        assert await credentials.login_code(code) is None
        assert await credentials.redeem_login_code(code, 60) is None
    assert await credentials.of_user("alice") == []
    assert not await store.client.call("EXISTS", store.keys.user_login_codes("alice"))
    assert await credentials.redeem_login_code(other, 60) is not None


@pytest.mark.parametrize("step", range(8))
async def test_a_code_that_is_redeemed_while_everything_is_revoked_leaves_no_cookie(
    credentials: Credentials, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The revocation comes before each of the exchange's calls to Redis, and after the last."""
    code = await credentials.create_login_code("alice", await minter(credentials, "admin"))
    num_calls = 0

    def revoking_first(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def wrapped(*arguments: Any) -> Any:
            nonlocal num_calls
            num_calls += 1
            if num_calls == step + 1:
                await credentials.revoke_all("alice")
            return await call(*arguments)

        return wrapped

    with monkeypatch.context() as patched:
        for name in ("call", "calls"):
            patched.setattr(
                credentials._client, name, revoking_first(getattr(credentials._client, name))
            )
        made = await credentials.redeem_login_code(code, 60)
    if num_calls <= step:
        await credentials.revoke_all("alice")
    assert made is None or await credentials.lookup(made[0]) is None
    assert await credentials.of_user("alice") == []


async def test_a_login_code_of_an_older_version_says_so(
    credentials: Credentials, store: SessionStore
) -> None:
    await store.client.call(
        "SET", store.keys.login_code(digest_of("old")), b'{"uid": "alice"}', "PX", 60_000
    )
    found = await credentials.login_code("old")
    assert found is not None and found.minted_by is None


async def test_a_cookie_of_an_older_version_is_told_apart_from_ours(
    credentials: Credentials, store: SessionStore
) -> None:
    new = await credentials.create_cookie("alice", 3600)
    old = await credentials.create_cookie("alice", 3600)
    await store.client.call("HDEL", store.keys.token(digest_of(old)), "minted_by")
    found = [await credentials.lookup(raw) for raw in (new, old)]
    assert [one.minted_by for one in found if one is not None] == ["", None]


async def test_a_ticket_holds_no_field_that_older_workers_do_not_know(
    credentials: Credentials, store: SessionStore
) -> None:
    ticket = await credentials.create_ticket(await minter(credentials))
    stored = await store.client.call("GET", store.keys.ticket(digest_of(ticket)))
    known = {"uid", "scopes", "kind", "expires_at", "digest", "created_at"}
    assert set(orjson.loads(stored)) == known


@pytest.mark.row("B2")
async def test_a_ticket_stands_for_its_credential_once(
    credentials: Credentials, store: SessionStore
) -> None:
    credential = await credentials.lookup(await credentials.create_cookie("alice", 60))
    assert credential is not None
    ticket = await credentials.create_ticket(credential)
    left = await store.client.call("PTTL", store.keys.ticket(digest_of(ticket)))
    assert 25_000 < left <= 30_000
    assert await credentials.redeem_ticket(ticket) == credential
    assert await credentials.redeem_ticket(ticket) is None


@pytest.mark.row("P6", "P7")
async def test_no_secret_is_stored(credentials: Credentials, store: SessionStore) -> None:
    cookie = await credentials.create_cookie("alice", 60)
    credential = await credentials.lookup(cookie)
    assert credential is not None
    code = await credentials.create_login_code("alice", credential)
    ticket = await credentials.create_ticket(credential)
    names = await store.client.call("KEYS", f"{store.keys.prefix}*")
    dumps = await store.client.calls(*(("DUMP", name) for name in names))
    for secret in (cookie, code, ticket):
        assert all(secret.encode() not in name for name in names)
        assert all(secret.encode() not in dump for dump in dumps)
