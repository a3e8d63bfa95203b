"""What happens when a session is asked for: it is made once, and the user's sidebars show it."""

from server.commands.services import Services
from server.live.subscription import Watcher
from server.protocol.client_frames import CreateSession
from server.protocol.titles import given_line
from sessions.model.replies import CreatedSession


async def create_session(
    services: Services, uid: str, frame: CreateSession, *, besides: Watcher | None = None
) -> CreatedSession:
    """Make a session, or find the one that this key made before.

    All connections of the user but `besides` hear of a new one. Raises what `Sessions.create` does.
    """
    created = await services.store.sessions.create(
        uid,
        idempotency_key=frame.idempotency_key,
        title=given_line("title", frame.title),
        model=services.models.default.name,
        settings=frame.settings.given(),
    )
    if not created.replayed:
        await services.hub.publish_created(created.session, besides)
    return created
