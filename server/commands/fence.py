"""Whether an answer exists and may be read, and its fence: the first question of every door."""

from server.commands.services import Services


async def fence_of(services: Services, uid: str | None, response_id: str) -> int:
    """The fence of an answer of that user, or of anybody's if `uid` is None.

    An answer of this worker is known without the store. Raises `ResponseNotFound`.
    """
    run = services.runs.local(response_id)
    if run is not None and uid in (None, run.uid):
        return run.fence
    return (await services.store.runs.get(uid, response_id)).fence
