"""What happens when a session is changed: its viewers and the user's sidebars see it as it is."""

from server.commands.services import Services
from server.live.subscription import Watcher
from server.protocol.client_frames import UpdateSession
from server.protocol.errors import invalid_field
from server.protocol.titles import given_line
from sessions.model.ids import check_message_id, check_session_id
from sessions.model.records import Session


async def update_session(
    services: Services, uid: str, frame: UpdateSession, *, besides: Watcher | None = None
) -> Session:
    """Change what the frame gives; returns the session as it is then.

    `besides` hears of it only as a viewer. Raises what `Sessions.update` and
    `Messages.newest_below` do.
    """
    check_session_id(frame.session_id)
    check_message_id(frame.head)
    check_message_id(frame.branch)
    head = frame.head
    if frame.branch is not None:
        if head is not None:
            raise invalid_field("branch", "send either head or branch")
        messages = services.store.messages
        head = await messages.newest_below(uid, frame.session_id, frame.branch)
    session = await services.store.sessions.update(
        uid,
        frame.session_id,
        title=None if frame.title is None else given_line("title", frame.title),
        settings=None if frame.settings is None else frame.settings.given(),
        pinned=frame.pinned,
        head=head,
        if_revision=frame.if_revision,
    )
    await services.hub.publish_updated(session, besides=besides)
    return session
