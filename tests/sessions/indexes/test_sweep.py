"""`IndexSweep`: in small steps it finds every entry whose session has gone, and no other."""

from __future__ import annotations

import pytest

from sessions.directory.users import Users
from sessions.indexes.indexes import local_ms
from sessions.indexes.sweep import STEP_ENTRIES, IndexSweep
from sessions.model.errors import StoreUnavailable
from sessions.model.ids import new_session_id
from sessions.model.keys import INDEX_GRACE_MS, SHARDS, shard_of
from sessions.store.store import SessionStore
from tests.sessions.helpers.chat import Chat

HOUR_MS = 3_600_000
ROUND = len(SHARDS) + 4  # steps that see every index of a few sessions


async def enter(store: SessionStore, uid: str, session_id: str, updated_at: int) -> None:
    """Write what a session leaves in the indexes."""
    await store.client.calls(
        ("ZADD", store.keys.user_sessions(uid), updated_at, session_id),
        ("ZADD", store.keys.all_sessions(session_id), updated_at, session_id),
    )


async def entered(store: SessionStore, uid: str, session_id: str) -> list[bool]:
    """Whether the session is among its user's, and among all."""
    scores = await store.client.calls(
        ("ZSCORE", store.keys.user_sessions(uid), session_id),
        ("ZSCORE", store.keys.all_sessions(session_id), session_id),
    )
    return [score is not None for score in scores]


async def run(sweep: IndexSweep, steps: int = ROUND) -> int:
    return sum([await sweep.step() for _ in range(steps)])


async def test_entries_without_a_session_go_and_the_others_stay(store: SessionStore) -> None:
    user = await Users(store.client, store.keys).create("Ada")
    live = await Chat.create(store, uid=user.uid)
    gone, young = new_session_id(), new_session_id()
    old = local_ms() - HOUR_MS
    await enter(store, user.uid, live.session_id, old)
    await enter(store, user.uid, gone, old)
    await enter(store, user.uid, young, local_ms() - INDEX_GRACE_MS // 2)
    assert await run(IndexSweep(store.client, store.keys)) == 2
    assert await entered(store, user.uid, gone) == [False, False]
    assert await entered(store, user.uid, live.session_id) == [True, True]
    assert await entered(store, user.uid, young) == [True, True]  # its data may be on the way


async def test_users_whom_no_index_holds_are_looked_at_too(store: SessionStore) -> None:
    gone = new_session_id()
    await enter(store, "local", gone, local_ms() - HOUR_MS)
    await run(IndexSweep(store.client, store.keys, uids=["local"]))
    assert await entered(store, "local", gone) == [False, False]


async def test_hidden_sessions_that_have_gone_are_looked_for_too(store: SessionStore) -> None:
    user = await Users(store.client, store.keys).create("Ada")
    for uid in (user.uid, "local"):
        index = store.keys.user_hidden_sessions(uid)
        live = await Chat.create(store, uid=uid, hidden=True)
        old = local_ms() - HOUR_MS
        await store.client.call("ZADD", index, old, live.session_id, old, new_session_id())
        await run(IndexSweep(store.client, store.keys, uids=["local"]))
        assert await store.client.call("ZRANGE", index, 0, -1) == [live.session_id.encode()]


async def test_where_sessions_expire_only_those_old_enough_are_looked_at(
    store: SessionStore,
) -> None:
    early, late = new_session_id(), new_session_id()
    await enter(store, "local", early, local_ms() - 3 * HOUR_MS)
    await enter(store, "local", late, local_ms() - HOUR_MS)
    await run(IndexSweep(store.client, store.keys, idle_seconds=7200, uids=["local"]))
    assert await entered(store, "local", early) == [False, False]
    assert await entered(store, "local", late) == [True, True]


async def test_a_step_looks_at_a_hundred_entries_and_the_next_one_goes_on_after_them(
    store: SessionStore,
) -> None:
    shard = SHARDS[0]
    ids = [sid for sid in (new_session_id() for _ in range(20_000)) if shard_of(sid) == shard]
    ids = ids[: 2 * STEP_ENTRIES + 10]
    assert len(ids) > 2 * STEP_ENTRIES
    key, old = store.keys.sessions_shard(shard), local_ms() - HOUR_MS
    await store.client.calls(*(("ZADD", key, old, sid) for sid in ids))
    sweep = IndexSweep(store.client, store.keys)
    dropped = [n for n in [await sweep.step() for _ in range(ROUND)] if n]
    assert dropped == [STEP_ENTRIES, STEP_ENTRIES, len(ids) - 2 * STEP_ENTRIES]


async def test_an_entry_that_was_written_again_meanwhile_stays(store: SessionStore) -> None:
    session_id, old = new_session_id(), local_ms() - HOUR_MS
    key = store.keys.all_sessions(session_id)
    await store.client.call("ZADD", key, old + 1, session_id)
    await store.client.script("drop_entries", [key], entries=(session_id, old))
    assert await store.client.call("ZCARD", key) == 1
    await store.client.script("drop_entries", [key], entries=(session_id, old + 1))
    assert await store.client.call("ZCARD", key) == 0


async def test_a_step_that_fails_is_done_again(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = new_session_id()
    await enter(store, "local", gone, local_ms() - HOUR_MS)
    sweep = IndexSweep(store.client, store.keys, uids=["local"])

    async def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(store.client, "script", fail)
        with pytest.raises(StoreUnavailable):
            await run(sweep)
    await run(sweep)
    assert await entered(store, "local", gone) == [False, False]
