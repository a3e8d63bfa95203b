"""What happens when a door's response is removed: it ends, and what nothing follows goes."""

import asyncio
from contextlib import suppress

from server.commands.delete_session import delete_session
from server.commands.services import Services
from server.protocol.errors import ApiError
from sessions.model.errors import ResponseNotFound, RunLive, SessionNotFound
from sessions.model.ids import session_of
from sessions.store.kept.responses import KeptResponse

END_SECONDS = 5.0  # for an answer that is stopped before
POLL_SECONDS = 0.05


async def remove_response(services: Services, uid: str, kept: KeptResponse) -> None:
    """Forget it, and the text of one that was made in a session of its own.

    That is what it was asked and what it said, unless another response follows it. In a
    conversation it stays, also in one that is in no list. Raises `ResponseNotFound`, and `ApiError`
    where its worker does not end it in time.
    """
    store, response_id = services.store, kept.response_id
    session = await store.sessions.get(uid, session_of(response_id))
    is_its_own = session.hidden and "conversation" not in kept.asked
    goes = (*kept.input_ids, kept.message_id) if is_its_own else ()
    deadline = asyncio.get_running_loop().time() + END_SECONDS
    await services.runs.end_for_another(uid, response_id, "client_cancelled")
    while True:
        try:
            num_left = await store.kept_responses.remove(uid, response_id, goes)
            break
        except RunLive:
            if asyncio.get_running_loop().time() > deadline:
                problem = "its worker has not ended it yet; try again"
                raise ApiError("store_unavailable", problem) from None
            await asyncio.sleep(POLL_SECONDS)
    if session.hidden and not num_left:
        with suppress(SessionNotFound, ResponseNotFound):
            await delete_session(services, uid, session.id)
