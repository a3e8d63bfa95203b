"""A change of a session is shown to its viewers and to the user's other connections."""

from types import SimpleNamespace
from typing import Any

import pytest

from server.commands.update_session import update_session
from server.live.hub import Hub
from server.protocol.client_frames import UpdateSession
from sessions.model.errors import MessageNotFound, RevisionConflict
from sessions.model.ids import new_message_id
from tests.server.helpers.watching import Viewer, join, kinds
from tests.sessions.helpers.chat import Chat


@pytest.fixture
def services(hub: Hub, chat: Chat) -> Any:
    return SimpleNamespace(store=chat.store, hub=hub)


async def test_a_change_is_shown_to_viewers_and_to_other_connections(
    services: Any, hub: Hub, chat: Chat
) -> None:
    asker, other, watching = Viewer(), Viewer(), Viewer()
    for viewer in (asker, other):
        await hub.add_watcher(viewer)
    await join(hub, chat, watching)
    frame = UpdateSession(session_id=chat.session_id, title=" new ", pinned=True)
    session = await update_session(services, "alice", frame, besides=asker)
    assert (session.title, session.pinned, session.revision) == ("new", True, 2)
    assert kinds(await other.sent()) == ["session.updated"] and await asker.sent() == []
    assert "session.updated" in kinds(await watching.sent())


async def test_a_change_of_a_session_that_is_in_no_list_is_shown_to_no_sidebar(
    services: Any, hub: Hub, chat: Chat
) -> None:
    other = Viewer()
    await hub.add_watcher(other)
    hidden = await chat.store.sessions.create("alice", idempotency_key="hidden", hidden=True)
    shown = UpdateSession(session_id=chat.session_id, title="shown")
    for frame in (UpdateSession(session_id=hidden.session.id, title="new"), shown):
        await update_session(services, "alice", frame)
    assert [frame["session_id"] for frame in await other.sent()] == [chat.session_id]


async def test_a_change_that_is_refused_is_shown_to_nobody(
    services: Any, hub: Hub, chat: Chat
) -> None:
    other = Viewer()
    await hub.add_watcher(other)
    with pytest.raises(RevisionConflict):
        late = UpdateSession(session_id=chat.session_id, title="new", if_revision=7)
        await update_session(services, "alice", late)
    for head in ("msg_?", new_message_id()):
        with pytest.raises(MessageNotFound):
            lost = UpdateSession(session_id=chat.session_id, head=head)
            await update_session(services, "alice", lost)
    assert await other.sent() == []
