"""What happens when a session goes: its answers end, its viewers hear of it, and it is no more."""

from server.commands.services import Services
from server.live.subscription import Watcher
from server.protocol.server_frames import SessionDeleted
from sessions.model.errors import ResponseNotFound, RevisionConflict, RunError
from sessions.model.ids import check_session_id


async def delete_session(
    services: Services,
    uid: str,
    session_id: str,
    *,
    if_revision: int | None = None,
    besides: Watcher | None = None,
) -> SessionDeleted:
    """Delete a session for its viewers, its sidebars and the workers that answer in it.

    Returns the frame that tells of it; `besides` gets it only as a viewer. Raises
    `RevisionConflict` for a session that has changed; it stays, also if it changes at this moment:
    then its answers end all the same.
    """
    check_session_id(session_id)
    session = await services.store.sessions.get(uid, session_id)
    if if_revision not in (None, session.revision):
        raise RevisionConflict(session.revision)
    live = await services.store.responses.live(session_id)
    owners = set()
    for response_id in live.ids:
        if services.runs.local(response_id) is None:
            try:
                owners.add((await services.store.runs.get(None, response_id)).owner)
            except (ResponseNotFound, RunError):
                continue
    await services.store.check_removals(session_id)  # or answers would end for nothing
    # Owners first: one that found its run gone without knowing why would call the data lost.
    for owner in owners:
        await services.store.publish_control(owner, {"type": "deleted", "session_id": session_id})
    services.runs.stop_deleted(session_id)
    deleted = await services.store.sessions.delete(uid, session_id, if_revision=if_revision)
    frame = SessionDeleted(session_id=session_id, offset=deleted.offset, by="user")
    services.hub.publish_session(frame)
    await services.hub.tell_user(uid, session_id, frame, besides=besides)
    return frame
