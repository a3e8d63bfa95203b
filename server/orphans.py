"""Answers whose worker died: found, taken over, and ended with the text they have."""

import asyncio
import random
import time

import structlog

from server.hub import Hub
from server.intervals import Intervals
from server.metrics import Metrics
from server.run import End, Run, Stop
from server.runs import Runs
from sessions.errors import SessionError, StoreUnavailable
from sessions.records import ObjectEvent
from sessions.store import SessionStore

logger = structlog.get_logger("server")


class Orphans:
    """Ends what nobody produces any more. Any worker may; the store lets one win."""

    def __init__(
        self,
        *,
        store: SessionStore,
        hub: Hub,
        metrics: Metrics,
        runs: Runs,
        replica: str,
        intervals: Intervals,
    ) -> None:
        self._store = store
        self._hub = hub
        self._metrics = metrics
        self._runs = runs
        self._replica = replica
        self._intervals = intervals

    async def adopt(self, replica: str) -> None:
        """End what a dead worker left running; its death is proved by the supervisor's waitpid."""
        try:
            for response_id in await self._store.runs_owned_by(replica):
                await self.end(response_id, replica)
        except StoreUnavailable:
            logger.warning("a dead worker's runs wait for their leases to end", replica=replica)

    async def sweep_forever(self) -> None:
        """End answers whose lease ran out, and keep the leases of our own in the index."""
        touched = 0.0
        while True:
            await asyncio.sleep(self._intervals.sweep * random.uniform(0.8, 1.2))
            try:
                for response_id in await self._store.expired_runs():
                    if self._runs.local(response_id) is None:
                        await self.end(response_id)
                if time.monotonic() - touched >= self._intervals.index:
                    touched = time.monotonic()
                    await self._store.touch_run_index(self._runs.leases())
            except StoreUnavailable:
                continue

    async def end(self, response_id: str, exited_owner: str | None = None) -> None:
        """End an answer whose owner is dead or whose lease ran out; a no-op for any other."""
        try:
            reaped = await self._store.reap(
                response_id, new_owner=self._replica, exited_owner=exited_owner
            )
            record = await self._store.run(None, response_id)
            log = await self._store.events(response_id)
            stored = await self._store.message(None, record.session_id, record.message_id)
        except StoreUnavailable:
            raise
        except SessionError:
            return  # alive, ended by somebody else, or deleted
        events = [event for _, event in log]
        created = events[0]
        assert isinstance(created, ObjectEvent)
        run = Run(
            created.data["response"], stored, uid=record.uid, fence=reaped.fence, created=created
        )
        run.restore(events, record)
        end = End("incomplete", "owner_lost", "unknown")
        if reaped.cancel:
            run.stop(Stop(record.cancel_by, record.cancel_reason, reaped.seen))
            end = run.end("abort", None, "unknown")
        self._metrics.count_reaped()
        self._hub.claimed.add(response_id)
        try:
            await self._runs.finish(run, end)
        finally:
            self._hub.claimed.discard(response_id)
