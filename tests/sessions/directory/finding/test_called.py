"""What ids are called now."""

from sessions.directory.finding.called import Called
from sessions.directory.users import Users
from sessions.store.store import SessionStore
from tests.sessions.helpers.chat import Chat


async def test_users_are_told_by_their_names_of_now_and_sessions_by_their_users(
    store: SessionStore,
) -> None:
    users, called = Users(store.client, store.keys), Called(store.client, store.keys)
    ada, grace = await users.create("Ada"), await users.create("Grace")
    chat = await Chat.create(store, uid=ada.uid)
    await users.update(ada.uid, name="\u202eAda King")
    await users.forget(grace.uid)
    assert await called.users([ada.uid, grace.uid, ada.uid]) == {ada.uid: "\u202eAda King"}
    assert await called.owners([chat.session_id, "ses_gone"]) == {chat.session_id: ada.uid}
    assert await called.groups(["grp_gone", "}{"]) == {}
