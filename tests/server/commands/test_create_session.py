"""A session is made once for a key, and the user's other connections hear of a new one."""

from types import SimpleNamespace
from typing import Any

from server.commands.create_session import create_session
from server.engines.client import ServedModel
from server.engines.models import Models
from server.live.hub import Hub
from server.protocol.client_frames import CreateSession
from sessions.store.store import SessionStore
from tests.server.helpers.engines import IdleEngine
from tests.server.helpers.watching import Viewer, kinds


async def test_the_other_connections_hear_of_a_new_session_once(
    store: SessionStore, hub: Hub
) -> None:
    models = Models.of_one(ServedModel("m", ""), IdleEngine())
    services: Any = SimpleNamespace(store=store, hub=hub, models=models)
    asker, other = Viewer(), Viewer()
    for viewer in (asker, other):
        await hub.add_watcher(viewer)
    frame = CreateSession(idempotency_key="k", title="  a \n title ")
    first = await create_session(services, "alice", frame, besides=asker)
    again = await create_session(services, "alice", frame, besides=asker)
    assert again.session == first.session and [first.replayed, again.replayed] == [False, True]
    assert (first.session.title, first.session.model) == ("a title", "m")
    assert kinds(await other.sent()) == ["session.created"] and await asker.sent() == []
