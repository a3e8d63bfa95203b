"""Sessions and messages: made once, listed newest first, read along a path, deleted whole."""

from __future__ import annotations

import asyncio
from dataclasses import replace

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
from tests.sessions.helpers.chat import Chat, assistant_message


async def test_a_new_session_starts_at_offset_1_and_revision_1(store: SessionStore) -> None:
    created = await store.create_session(
        "alice", idempotency_key="k1", title="T", model="m", settings={"top_p": 0.5}
    )
    session = created.session
    assert not created.replayed
    assert (session.offset, session.revision, session.message_count) == (1, 1, 0)
    assert (session.title, session.model, session.settings) == ("T", "m", {"top_p": 0.5})
    assert session.head is None and session.active_response_id is None


async def test_a_repeated_create_returns_the_first_session(store: SessionStore) -> None:
    first = await store.create_session("alice", idempotency_key="k1", title="one")
    again = await store.create_session("alice", idempotency_key="k1", title="two")
    assert again.replayed
    assert again.session == first.session


async def test_the_same_key_of_another_user_makes_another_session(store: SessionStore) -> None:
    first = await store.create_session("alice", idempotency_key="k1")
    second = await store.create_session("bob", idempotency_key="k1")
    assert first.session.id != second.session.id and not second.replayed


@pytest.mark.row("P31")
@pytest.mark.parametrize("change", ["disable", "forget"])
async def test_a_session_stored_after_its_user_was_deleted_does_not_stay(
    store: SessionStore, change: str
) -> None:
    users = Users(store.client, store.keys)
    uid = (await users.create("Ada")).uid
    kept = await store.create_session(uid, idempotency_key="before")
    if change == "disable":
        await users.update(uid, disabled=True)
    else:
        await users.forget(uid)
    draft = Draft("", "", {}, (), None)
    with pytest.raises(UserGone):
        await store.create_session(uid, idempotency_key="behind")
    with pytest.raises(UserGone):
        await store.import_session(uid, draft)
    assert (await store.create_session(uid, idempotency_key="before")).session == kept.session
    listed = (await store.sessions(uid)).sessions
    assert [session.id for session in listed] == [kept.session.id]


async def test_a_foreign_session_is_answered_like_an_unknown_one(chat: Chat) -> None:
    store = chat.store
    for session_id in (chat.session_id, new_session_id(), "ses_{x}", "ses_" + "a" * 21 + "\n"):
        with pytest.raises(SessionNotFound):
            await store.session("bob", session_id)
        with pytest.raises(SessionNotFound):
            await store.path("bob", session_id)
        with pytest.raises(SessionNotFound):
            await store.update_session("bob", session_id, title="mine")
        with pytest.raises(SessionNotFound):
            await store.delete_session("bob", session_id)
        with pytest.raises(SessionNotFound):
            await store.cancel_early("bob", session_id, "k")
    assert (await store.session("alice", chat.session_id)).title == ""


async def test_an_empty_user_id_does_not_skip_the_owner_check(chat: Chat) -> None:
    with pytest.raises(ValueError):
        await chat.store.session("", chat.session_id)


async def test_an_update_changes_what_is_given_and_logs_it(chat: Chat) -> None:
    store = chat.store
    session = await store.update_session(
        "alice", chat.session_id, title="new", pinned=True, settings={"seed": 1}
    )
    assert (session.title, session.pinned, session.settings) == ("new", True, {"seed": 1})
    assert (session.revision, session.offset) == (2, 2)
    events = await store.session_events(chat.session_id, after=1)
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
    await chat.store.update_session("alice", chat.session_id, title="a", if_revision=1)
    with pytest.raises(RevisionConflict) as caught:
        await chat.store.update_session("alice", chat.session_id, title="b", if_revision=1)
    assert caught.value.revision == 2
    assert (await chat.store.session("alice", chat.session_id)).title == "a"


async def test_the_head_moves_only_to_a_message_of_the_session(chat: Chat) -> None:
    begun = await chat.begin()
    user_id = (await chat.store.path("alice", chat.session_id)).messages[0].id
    session = await chat.store.update_session("alice", chat.session_id, head=user_id)
    assert session.head == user_id
    for unknown in (new_message_id(), "msg_{}"):
        with pytest.raises(MessageNotFound):
            await chat.store.update_session("alice", chat.session_id, head=unknown)
    assert begun.title_empty


async def test_the_path_leads_from_the_root_to_the_head(chat: Chat) -> None:
    await chat.begin("one")
    await chat.finish((await live(chat)), 2)
    await chat.begin("two")
    page = await chat.store.path("alice", chat.session_id)
    assert [message.role for message in page.messages] == ["user", "assistant"] * 2
    assert [message.text for message in page.messages] == ["one", "", "two", ""]
    for parent, child in zip(page.messages, page.messages[1:], strict=False):
        assert child.parent_id == parent.id
    assert not page.has_more


async def live(chat: Chat) -> str:
    active = (await chat.store.live_responses(chat.session_id)).active
    assert active is not None
    return active


async def test_a_path_is_read_backwards_in_pages(chat: Chat) -> None:
    for number in range(3):
        await chat.begin(str(number))
        await chat.finish(await live(chat), 2)
    newest = await chat.store.path("alice", chat.session_id, limit=4)
    assert newest.has_more and [message.text for message in newest.messages] == ["1", "", "2", ""]
    older = await chat.store.path("alice", chat.session_id, before=newest.messages[0].id, limit=4)
    assert not older.has_more and [message.text for message in older.messages] == ["0", ""]
    with pytest.raises(MessageNotFound):
        await chat.store.path("alice", chat.session_id, before=new_message_id())


async def test_an_edit_is_a_sibling_and_both_branches_can_be_read(chat: Chat) -> None:
    await chat.begin("first")
    await chat.finish(await live(chat), 2)
    old_head = (await chat.store.session("alice", chat.session_id)).head
    await chat.begin("edited", parent_id=None)
    new = await chat.store.path("alice", chat.session_id)
    old = await chat.store.path("alice", chat.session_id, leaf=old_head)
    assert [new.messages[0].text, old.messages[0].text] == ["edited", "first"]
    assert new.messages[0].sibling_ids == (old.messages[0].id, new.messages[0].id)
    assert new.messages[0].wire()["sibling_ids"] == [old.messages[0].id, new.messages[0].id]


async def test_a_long_message_is_stored_compressed_and_left_out_of_its_event(chat: Chat) -> None:
    text = "naïve 🙂 " * 400
    await chat.begin(text)
    page = await chat.store.path("alice", chat.session_id)
    assert page.messages[0].text == text
    assert page.messages[0].text_length == len(text) + 400
    body = await chat.store.client.call(
        "HGET", chat.store.keys.session(chat.session_id, "msg"), page.messages[0].id
    )
    assert body.startswith(b"z") and len(body) < 500
    events = await chat.store.session_events(chat.session_id, after=1)
    assert events is not None
    assert events[0].data["message"]["content_omitted"] is True
    assert "content" not in events[0].data["message"]


async def test_one_message_can_be_read(chat: Chat) -> None:
    await chat.begin("hi")
    message = (await chat.store.path("alice", chat.session_id)).messages[0]
    read = await chat.store.message("alice", chat.session_id, message.id)
    assert read == replace(message, sibling_ids=())
    for unknown in (new_message_id(), "msg_x", "uid"):
        with pytest.raises(MessageNotFound):
            await chat.store.message("alice", chat.session_id, unknown)
    with pytest.raises(SessionNotFound):
        await chat.store.message("bob", chat.session_id, message.id)


async def test_the_log_tells_when_it_no_longer_reaches_back(chat: Chat) -> None:
    store = chat.store
    session = await store.update_session("alice", chat.session_id, title="two")
    assert await store.session_events(chat.session_id, after=2) == []
    assert await store.session_events(chat.session_id, after=3) is None  # beyond the log
    assert await store.session_events(chat.session_id, after=0, epoch="other") is None
    assert await store.session_events(chat.session_id, after=0, epoch=session.epoch) is not None
    await store.client.call("DEL", store.keys.session(chat.session_id, "log"))
    assert await store.session_events(chat.session_id, after=1) is None
    assert await store.session_events(chat.session_id, after=2) == []
    assert await store.session_events(new_session_id(), after=0) is None


async def test_a_delete_leaves_a_tombstone_and_idempotency_keys_alone(chat: Chat) -> None:
    begun = await chat.begin(idempotency_key="k1")
    queued = await chat.begin(idempotency_key="k2", on_busy="queue")
    await chat.append(begun.response_id, 2, "text")
    deleted = await chat.store.delete_session("alice", chat.session_id)
    assert sorted(deleted.response_ids) == sorted([begun.response_id, queued.response_id])
    assert await chat.keys() == ["i:k1", "i:k2", "x"]
    assert (await chat.store.sessions("alice")).sessions == ()
    assert await chat.store.runs_owned_by("w1") == []


async def test_of_a_change_and_a_delete_of_what_was_seen_before_one_wins(
    store: SessionStore,
) -> None:
    async def change(session_id: str) -> None:
        await store.update_session("alice", session_id, title="kept", if_revision=1)

    async def delete(session_id: str) -> None:
        await store.delete_session("alice", session_id, if_revision=1)

    for number in range(20):
        session_id = (await Chat.create(store)).session_id
        first, second = (change, delete) if number % 2 else (delete, change)
        results = await asyncio.gather(
            first(session_id), second(session_id), return_exceptions=True
        )
        if number % 2:  # the change came first
            assert any(isinstance(result, RevisionConflict) for result in results)
            assert (await store.session("alice", session_id)).title == "kept"
        else:
            assert any(isinstance(result, SessionNotFound) for result in results)


async def test_late_writes_to_a_deleted_session_create_nothing(chat: Chat) -> None:
    begun = await chat.begin(idempotency_key="k1")
    await chat.store.delete_session("alice", chat.session_id)
    with pytest.raises(RunGone):
        await chat.append(begun.response_id, 2, "late")
    with pytest.raises(RunGone):
        await chat.finish(begun.response_id, 2)
    with pytest.raises(SessionNotFound):
        await chat.begin()
    with pytest.raises(SessionNotFound):
        await chat.store.update_session("alice", chat.session_id, title="late")
    assert await chat.keys() == ["i:k1", "x"]


async def test_a_deleted_session_is_not_made_again_by_its_key(store: SessionStore) -> None:
    created = await store.create_session("alice", idempotency_key="k1")
    await store.delete_session("alice", created.session.id)
    with pytest.raises(SessionNotFound):
        await store.create_session("alice", idempotency_key="k1")
    assert (await store.sessions("alice")).sessions == ()


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
    await chat.store.delete_session("alice", chat.session_id)
    assert await without_expiry(chat) == set()


async def without_expiry(chat: Chat) -> set[str]:
    base = chat.store.keys.session_base(chat.session_id)
    names = await chat.keys()
    left = await chat.store.client.calls(*(("PTTL", base + name) for name in names))
    return {name for name, life in zip(names, left, strict=True) if life == -1}


async def test_token_ids_kept_with_a_message_are_found_again(chat: Chat) -> None:
    begun = await chat.begin()
    message = assistant_message(begun.response_id, "cut in a wo")
    await chat.finish(begun.response_id, 2, message=message, token_ids_to_keep=[7, 2**31])
    kept = await chat.store.kept_token_ids(chat.session_id, [message.id, new_message_id()])
    assert kept == {message.id: [7, 2**31]}


async def test_an_id_of_another_session_is_not_a_response_id(chat: Chat) -> None:
    with pytest.raises(ValueError):
        await chat.begin(response_id=new_response_id(new_session_id()))


async def test_an_epoch_that_began_on_another_redis_is_renewed_once(
    own_redis: EmbeddedRedis, own_store: SessionStore
) -> None:
    chat = await Chat.create(own_store)

    async def epoch() -> str:
        await own_store.verify_epoch(chat.session_id)
        return (await own_store.session(None, chat.session_id)).epoch

    before = await epoch()
    assert await epoch() == before
    own_redis.stop()
    own_redis.start()
    after = await epoch()
    assert after != before
    assert await epoch() == after
