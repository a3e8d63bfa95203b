"""Sessions: made once, changed by revision, deleted whole, with a log that knows its end."""

from __future__ import annotations

import asyncio

import pytest

from sessions.connection.embedded import EmbeddedRedis
from sessions.directory.users import Users
from sessions.model.errors import (
    MessageNotFound,
    RevisionConflict,
    RunGone,
    SessionNotFound,
    UserGone,
)
from sessions.model.ids import new_message_id, new_response_id, new_session_id
from sessions.store.copies import Draft
from sessions.store.store import SessionStore
from tests.sessions.helpers.chat import Chat


async def test_a_new_session_starts_at_offset_1_and_revision_1(store: SessionStore) -> None:
    created = await store.sessions.create(
        "alice", idempotency_key="k1", title="T", model="m", settings={"top_p": 0.5}
    )
    session = created.session
    assert not created.replayed
    assert (session.offset, session.revision, session.message_count) == (1, 1, 0)
    assert (session.title, session.model, session.settings) == ("T", "m", {"top_p": 0.5})
    assert session.head is None and session.active_response_id is None


async def test_a_repeated_create_returns_the_first_session(store: SessionStore) -> None:
    first = await store.sessions.create("alice", idempotency_key="k1", title="one")
    again = await store.sessions.create("alice", idempotency_key="k1", title="two")
    assert again.replayed
    assert again.session == first.session


async def test_the_same_key_of_another_user_makes_another_session(store: SessionStore) -> None:
    first = await store.sessions.create("alice", idempotency_key="k1")
    second = await store.sessions.create("bob", idempotency_key="k1")
    assert first.session.id != second.session.id and not second.replayed


@pytest.mark.row("P31")
@pytest.mark.parametrize("change", ["disable", "forget"])
async def test_a_session_stored_after_its_user_was_deleted_does_not_stay(
    store: SessionStore, change: str
) -> None:
    users = Users(store.client, store.keys)
    uid = (await users.create("Ada")).uid
    kept = await store.sessions.create(uid, idempotency_key="before")
    if change == "disable":
        await users.update(uid, disabled=True)
    else:
        await users.forget(uid)
    draft = Draft("", "", {}, (), None)
    with pytest.raises(UserGone):
        await store.sessions.create(uid, idempotency_key="after")
    with pytest.raises(UserGone):
        await store.copies.import_draft(uid, draft)
    assert (await store.sessions.create(uid, idempotency_key="before")).session == kept.session
    listed = (await store.lists.page(uid)).sessions
    assert [session.id for session in listed] == [kept.session.id]


async def test_a_foreign_session_is_answered_like_an_unknown_one(chat: Chat) -> None:
    store = chat.store
    for session_id in (chat.session_id, new_session_id(), "ses_{x}", "ses_" + "a" * 21 + "\n"):
        with pytest.raises(SessionNotFound):
            await store.sessions.get("bob", session_id)
        with pytest.raises(SessionNotFound):
            await store.messages.path("bob", session_id)
        with pytest.raises(SessionNotFound):
            await store.sessions.update("bob", session_id, title="mine")
        with pytest.raises(SessionNotFound):
            await store.sessions.delete("bob", session_id)
        with pytest.raises(SessionNotFound):
            await store.responses.cancel_early("bob", session_id, "k")
    assert (await store.sessions.get("alice", chat.session_id)).title == ""


async def test_an_empty_user_id_does_not_skip_the_owner_check(chat: Chat) -> None:
    with pytest.raises(ValueError):
        await chat.store.sessions.get("", chat.session_id)


async def test_an_update_changes_what_is_given_and_logs_it(chat: Chat) -> None:
    store = chat.store
    session = await store.sessions.update(
        "alice", chat.session_id, title="new", pinned=True, settings={"seed": 1}
    )
    assert (session.title, session.pinned, session.settings) == ("new", True, {"seed": 1})
    assert (session.revision, session.offset) == (2, 2)
    events = await store.sessions.events(chat.session_id, after=1)
    assert events is not None
    assert [event.data for event in events] == [
        {
            "type": "session.updated",
            "revision": 2,
            "by": "user",
            "changed": {"title": "new", "settings": {"seed": 1}, "pinned": True},
        }
    ]


async def test_an_update_under_an_old_revision_is_refused(chat: Chat) -> None:
    await chat.store.sessions.update("alice", chat.session_id, title="a", if_revision=1)
    with pytest.raises(RevisionConflict) as caught:
        await chat.store.sessions.update("alice", chat.session_id, title="b", if_revision=1)
    assert caught.value.revision == 2
    assert (await chat.store.sessions.get("alice", chat.session_id)).title == "a"


async def test_the_head_moves_only_to_a_message_of_the_session(chat: Chat) -> None:
    begun = await chat.begin()
    user_id = (await chat.store.messages.path("alice", chat.session_id)).messages[0].id
    session = await chat.store.sessions.update("alice", chat.session_id, head=user_id)
    assert session.head == user_id
    for unknown in (new_message_id(), "msg_{}"):
        with pytest.raises(MessageNotFound):
            await chat.store.sessions.update("alice", chat.session_id, head=unknown)
    assert begun.title_empty


async def test_the_log_tells_when_it_no_longer_reaches_back(chat: Chat) -> None:
    store = chat.store
    session = await store.sessions.update("alice", chat.session_id, title="two")
    assert await store.sessions.events(chat.session_id, after=2) == []
    assert await store.sessions.events(chat.session_id, after=3) is None  # beyond the log
    assert await store.sessions.events(chat.session_id, after=0, epoch="other") is None
    assert await store.sessions.events(chat.session_id, after=0, epoch=session.epoch) is not None
    await store.client.call("DEL", store.keys.session(chat.session_id, "log"))
    assert await store.sessions.events(chat.session_id, after=1) is None
    assert await store.sessions.events(chat.session_id, after=2) == []
    assert await store.sessions.events(new_session_id(), after=0) is None


async def test_a_delete_leaves_a_tombstone_and_idempotency_keys_alone(chat: Chat) -> None:
    begun = await chat.begin(idempotency_key="k1")
    queued = await chat.begin(idempotency_key="k2", on_busy="queue")
    await chat.append(begun.response_id, 2, "text")
    deleted = await chat.store.sessions.delete("alice", chat.session_id)
    assert sorted(deleted.response_ids) == sorted([begun.response_id, queued.response_id])
    assert await chat.keys() == ["i:k1", "i:k2", "x"]
    assert (await chat.store.lists.page("alice")).sessions == ()
    assert await chat.store.runs.owned_by("w1") == []


async def test_of_a_change_and_a_delete_of_what_was_seen_before_one_wins(
    store: SessionStore,
) -> None:
    async def change(session_id: str) -> None:
        await store.sessions.update("alice", session_id, title="kept", if_revision=1)

    async def delete(session_id: str) -> None:
        await store.sessions.delete("alice", session_id, if_revision=1)

    for number in range(20):
        session_id = (await Chat.create(store)).session_id
        first, second = (change, delete) if number % 2 else (delete, change)
        results = await asyncio.gather(
            first(session_id), second(session_id), return_exceptions=True
        )
        if number % 2:  # the change came first
            assert any(isinstance(result, RevisionConflict) for result in results)
            assert (await store.sessions.get("alice", session_id)).title == "kept"
        else:
            assert any(isinstance(result, SessionNotFound) for result in results)


async def test_late_writes_to_a_deleted_session_create_nothing(chat: Chat) -> None:
    begun = await chat.begin(idempotency_key="k1")
    await chat.store.sessions.delete("alice", chat.session_id)
    with pytest.raises(RunGone):
        await chat.append(begun.response_id, 2, "late")
    with pytest.raises(RunGone):
        await chat.finish(begun.response_id, 2)
    with pytest.raises(SessionNotFound):
        await chat.begin()
    with pytest.raises(SessionNotFound):
        await chat.store.sessions.update("alice", chat.session_id, title="late")
    assert await chat.keys() == ["i:k1", "x"]


async def test_a_run_that_was_entered_late_leaves_the_index_with_its_end(chat: Chat) -> None:
    """Its owner enters it after it has begun; who deletes the session may be faster."""
    begun = await chat.begin()
    await chat.store.sessions.delete("alice", chat.session_id)
    await chat.store.runs.touch({begun.response_id: 1})
    assert await chat.store.runs.expired() == [begun.response_id]
    with pytest.raises(RunGone):
        await chat.finish(begun.response_id, 2)
    assert await chat.store.runs.expired() == []


async def test_a_deleted_session_is_not_made_again_by_its_key(store: SessionStore) -> None:
    created = await store.sessions.create("alice", idempotency_key="k1")
    await store.sessions.delete("alice", created.session.id)
    with pytest.raises(SessionNotFound):
        await store.sessions.create("alice", idempotency_key="k1")
    assert (await store.lists.page("alice")).sessions == ()


async def test_every_key_that_should_expire_does(chat: Chat) -> None:
    begun = await chat.begin(idempotency_key="k1")
    await chat.append(begun.response_id, 2, "text")
    run_keys = [f"{kind}:{begun.response_id}" for kind in ("e", "r", "tok")]
    permanent = {"m", "msg", "runs", "tree"}
    assert await without_expiry(chat) == permanent | set(run_keys)
    await chat.finish(begun.response_id, 3)
    assert await without_expiry(chat) == permanent
    for name in run_keys:
        left = await chat.store.client.call(
            "PTTL", chat.store.keys.session_base(chat.session_id) + name
        )
        assert 590_000 < left <= 600_000
    await chat.store.sessions.delete("alice", chat.session_id)
    assert await without_expiry(chat) == set()


async def without_expiry(chat: Chat) -> set[str]:
    base = chat.store.keys.session_base(chat.session_id)
    names = await chat.keys()
    left = await chat.store.client.calls(*(("PTTL", base + name) for name in names))
    return {name for name, life in zip(names, left, strict=True) if life == -1}


async def test_an_id_of_another_session_is_not_a_response_id(chat: Chat) -> None:
    with pytest.raises(ValueError):
        await chat.begin(response_id=new_response_id(new_session_id()))


async def test_an_epoch_that_began_on_another_redis_is_renewed_once(
    own_redis: EmbeddedRedis, own_store: SessionStore
) -> None:
    chat = await Chat.create(own_store)

    async def epoch() -> str:
        await own_store.sessions.verify_epoch(chat.session_id)
        return (await own_store.sessions.get(None, chat.session_id)).epoch

    before = await epoch()
    assert await epoch() == before
    own_redis.stop()
    own_redis.start()
    after = await epoch()
    assert after != before
    assert await epoch() == after
