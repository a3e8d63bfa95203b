"""Credentials: only digests are stored, what stands in a URL works once, what ended is unknown."""

from __future__ import annotations

import asyncio

import pytest

from sessions.credentials import Credentials, digest_of
from sessions.store import SessionStore


@pytest.fixture
def credentials(store: SessionStore) -> Credentials:
    return Credentials(store.client, store.keys)


async def test_a_cookie_stands_for_its_user(credentials: Credentials) -> None:
    raw = await credentials.create_cookie("alice", 3600, scopes=("chat", "admin"))
    found = await credentials.lookup(raw)
    assert found is not None
    assert (found.uid, found.scopes, found.kind) == ("alice", ("chat", "admin"), "cookie")
    assert found.expires_at is not None and found.digest == digest_of(raw)
    assert len(raw) >= 43


async def test_p6_a_cookie_that_nobody_uses_goes_after_twelve_hours(
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
        assert await credentials.redeem_login_code(raw) is None


async def test_a_login_code_works_once(credentials: Credentials, store: SessionStore) -> None:
    code = await credentials.create_login_code("local", 120)
    left = await store.client.call("PTTL", store.keys.login_code(digest_of(code)))
    assert 110_000 < left <= 120_000
    uses = await asyncio.gather(*(credentials.redeem_login_code(code) for _ in range(10)))
    assert sorted(map(str, uses)) == ["None"] * 9 + ["local"]


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


async def test_p6_p7_no_secret_is_stored(credentials: Credentials, store: SessionStore) -> None:
    cookie = await credentials.create_cookie("alice", 60)
    code = await credentials.create_login_code("alice")
    credential = await credentials.lookup(cookie)
    assert credential is not None
    ticket = await credentials.create_ticket(credential)
    names = await store.client.call("KEYS", f"{store.keys.prefix}*")
    dumps = await store.client.calls(*(("DUMP", name) for name in names))
    for secret in (cookie, code, ticket):
        assert all(secret.encode() not in name for name in names)
        assert all(secret.encode() not in dump for dump in dumps)
