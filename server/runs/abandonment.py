"""`Abandonment`: stops the answers that should not go on when nobody has watched for a while."""

import asyncio
from time import monotonic

from server.live.hub import Hub
from server.runs.run import Run
from server.runs.runs import Runs
from server.runs.stop import Stop
from sessions.model.errors import SessionError
from sessions.store.store import SessionStore

SWEEP_SECONDS = 0.5


class Abandonment:
    """Looks after the answers of one worker whose `on_no_viewers` says `stop_after_s`."""

    def __init__(self, store: SessionStore, hub: Hub, runs: Runs) -> None:
        self._store = store
        self._hub = hub
        self._runs = runs
        self._alone_since: dict[str, float] = {}  # by response id

    async def sweep_forever(self) -> None:
        while True:
            await self.sweep()
            await asyncio.sleep(SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Look at each of them once."""
        patience = {
            run: seconds for run in self._runs.all() if (seconds := _patience(run)) is not None
        }
        alone = {run for run in patience if not await self._is_watched(run.session_id)}
        now = monotonic()
        self._alone_since = {
            run.response_id: self._alone_since.get(run.response_id, now) for run in alone
        }
        for run in alone:
            if now - self._alone_since[run.response_id] >= patience[run]:
                self._runs.stop(run, Stop("policy", "no_viewers"))

    async def _is_watched(self, session_id: str) -> bool:
        if self._hub.viewers.total(session_id):
            return True
        try:
            return await self._store.viewers.count(session_id) > 0
        except SessionError:
            return True  # unknown: nothing is stopped on a guess


def _patience(run: Run) -> int | None:
    """Seconds that the answer goes on without viewers; None for ever."""
    wish = run.response["settings"].get("on_no_viewers")
    return wish["stop_after_s"] if isinstance(wish, dict) and run.stopping is None else None
