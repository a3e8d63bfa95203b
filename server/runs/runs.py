"""`Runs`: the answers that this worker produces, from their beginning to their end.

This is the one place where a session meets the engine. A run belongs to the worker that accepted
its `response.create`; sockets are only viewers, so closing them ends nothing.
"""

import asyncio
import contextlib
import hmac
from collections import defaultdict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import structlog

from server.config.intervals import Intervals
from server.config.models import ModelStatus
from server.engines.client import CoreState, EngineClient, EngineError
from server.engines.models import Models
from server.generation.prompts import PromptBuilders
from server.live.hub import Hub
from server.live.retries import until_done
from server.protocol.errors import ApiError
from server.protocol.objects import Reason
from server.protocol.server_frames import QueueReason, ResponseQueued
from server.runs.finisher import Finisher
from server.runs.log_writer import LogWriter
from server.runs.producer import Producer
from server.runs.quotas.active_limit import ActiveLimit
from server.runs.run import Run
from server.runs.state import End, RunState
from server.runs.stop import Stop, StoredStop, cancel_command
from server.runs.tools.runner import ToolRunner
from server.runs.waiting import QueueEstimate
from server.telemetry.metrics import Metrics
from sessions.background import Background
from sessions.model.errors import ResponseNotFound, RunEnded, SessionError, StoreUnavailable
from sessions.model.replies import BegunResponse, Finished, Turn
from sessions.store.appends.appender import Appender
from sessions.store.store import SessionStore

logger = structlog.get_logger("server")

T = TypeVar("T")

REMOTE_POLL_SECONDS = 0.1  # while another worker ends the answer that ours replaces
PAUSE_REASONS: dict[CoreState, QueueReason] = {
    CoreState.DEAD: "engine_restart",
    CoreState.STALLED: "engine",
}
STEERED_END_SECONDS = 0.05  # in most cases the end is stored by then, and says what the stop does
DRAIN_GRACE_SECONDS = 2.0  # for the ends of what is cut off


class Runs:
    """The answers of one worker."""

    def __init__(
        self,
        *,
        appender: Appender,
        store: SessionStore,
        models: Models,
        hub: Hub,
        metrics: Metrics,
        intervals: Intervals,
        limit: ActiveLimit,
        prompts: PromptBuilders,
        has_peers: Callable[[], bool],
        cache_secret: str,
        answer_seconds: float,
        tools: ToolRunner | None = None,
    ) -> None:
        self._cache_secret = cache_secret.encode()
        self._answer_seconds = answer_seconds
        self._appender = appender
        self._store = store
        self._models = models
        self._hub = hub
        self._metrics = metrics
        self._intervals = intervals
        self._has_peers = has_peers
        self._limit = limit
        self._tools = tools
        self._prompts = prompts
        self._queues: defaultdict[str, QueueEstimate] = defaultdict(QueueEstimate)  # by model
        self._runs: dict[str, Run] = {}
        self._producers: dict[str, Producer] = {}  # of the same answers
        self._engines: dict[str, EngineClient] = {}  # likewise
        self._background = Background(ApiError, EngineError)
        self.draining = False
        # A session has something that waits; what has its turn there, if that was read just now.
        self.on_queue: Callable[[str, Turn | None], None] = lambda session_id, turn: None

    @property
    def num_active(self) -> int:
        return len(self._runs)

    def local(self, response_id: str) -> Run | None:
        """The run if this worker produces it."""
        return self._runs.get(response_id)

    def all(self) -> list[Run]:
        """The answers that this worker produces now."""
        return list(self._runs.values())

    def slots(self) -> list[tuple[str, str]]:
        """User and id of each, which counts among their answers at a time."""
        return [(run.uid, run.response_id) for run in self._runs.values()]

    def leases(self) -> dict[str, int]:
        """Response id → `lease_until` of every own run whose lease is still renewed.

        One that ends, or whose session goes, may have left the index already, and must not be
        entered again.
        """
        kept = [run for run in self._runs.values() if run.is_here]
        return {run.response_id: run.lease_until for run in kept}

    def local_of_session(self, session_id: str) -> list[Run]:
        return [run for run in self._runs.values() if run.session_id == session_id]

    def add(self, run: Run) -> None:
        """From now on the answer is this worker's, and its viewers here are fed from memory."""
        self._runs[run.response_id] = run
        self._engines[run.response_id] = self._models.engine(_model_of(run))
        self._producers[run.response_id] = self._producer(run)
        self._hub.rooms.add_run(run.response_id, run)

    def start(self, run: Run, begun: BegunResponse) -> None:
        """Produce an answer that was added and announced."""
        run.timeline.set_clock(begun.now_ms)
        run.timeline.note("created_at", begun.now_ms)
        if begun.cancel:  # a stop was waiting for this answer's key
            run.stop(Stop())
            run.mark_stop_stored()
        self.spawn(self._run(run, begun.queued_behind))

    async def go_on(self, run: Run) -> None:
        """Produce the rest of an answer that another worker had begun."""
        self.add(run)
        self._hub.publish_events(run.response_id, run.fence, 1, run.events)
        self._hub.tell_viewers(_paused(run, "takeover"))
        self.spawn(self._go_on(run))

    async def _go_on(self, run: Run) -> None:
        position = 0
        if not run.is_started:
            live = await until_done(partial(self._store.responses.live, run.session_id))
            if live is not None and run.response_id in live.queued:
                position = live.queued.index(run.response_id) + 1
        await self._run(run, position)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that nobody waits for but `wait_idle`; `close` cancels it."""
        self._background.spawn(work)

    async def see_through(self, work: Coroutine[Any, Any, T]) -> T:
        """Likewise, but wait for it. It goes on if the caller is cancelled."""
        return await self._background.see_through(work)

    # ---- run ------------------------------------------------------------------------------------

    async def _run(self, run: Run, queued_behind: int) -> None:
        try:
            finished = await self._producers[run.response_id].produce(queued_behind)
        except Exception:
            # The next owner of its lease ends it, if need be without what cannot be stored.
            logger.exception("run cannot be ended", response_id=run.response_id)
            finished = None
            run.disown()
            self._hub.disown(run.response_id)
            run.done.set()
        finally:
            self._forget(run)
        await self._promote_next(run, finished)

    async def finish(self, run: Run, end: End) -> None:
        """End a run that was taken over: it produces nothing more, only its end is missing."""
        if self._tools is not None:
            self._tools.abandon(run)
        writer = LogWriter(
            run,
            appender=self._appender,
            store=self._store,
            intervals=self._intervals,
            hub=self._hub,
        )
        finisher = Finisher(
            run,
            store=self._store,
            hub=self._hub,
            metrics=self._metrics,
            queue=self._queues[_model_of(run)],
            writer=writer,
        )
        finished = await finisher.finish(end)
        self._tell_ended(run)
        await self._promote_next(run, finished)

    def _producer(self, run: Run) -> Producer:
        return Producer(
            run,
            appender=self._appender,
            store=self._store,
            engine=self._engine_of(run),
            prompts=self._prompts.of(_model_of(run)),
            hub=self._hub,
            metrics=self._metrics,
            intervals=self._intervals,
            has_peers=self._has_peers,
            queue=self._queues[_model_of(run)],
            cache_salt=self.salt_of(run.uid),
            max_seconds=self._answer_seconds,
            models=self._models,
            tools=self._tools,
        )

    def salt_of(self, uid: str) -> str:
        """Users share no prefix: how soon a first token comes must not say what others asked.

        The engine also shares its time by it, as one salt is one user.
        """
        return hmac.digest(self._cache_secret, uid.encode(), "sha256").hex()

    def _forget(self, run: Run) -> None:
        self._runs.pop(run.response_id, None)
        self._producers.pop(run.response_id, None)
        self._engines.pop(run.response_id, None)
        self._hub.rooms.release(run.response_id)
        if run.is_given_up:
            return
        self._tell_ended(run)

    def _tell_ended(self, run: Run) -> None:
        self._limit.free(run.uid, run.response_id)
        if not run.is_hidden:
            self._hub.show_activity(run.uid, run.session_id, active=False, status=run.status)

    async def _promote_next(self, run: Run, finished: Finished | None) -> None:
        """The session's next answer may start, wherever its owner is; or what waits may begin.

        An answer that made room for another one leaves the queue to that one's end, or to a sweep.
        """
        makes_room = run.stopping is not None and run.stopping.reason == "superseded"
        session_id = run.session_id
        if finished is None:
            return
        if finished.next_response_id is None:
            if finished.has_queue and not makes_room:
                self.on_queue(session_id, finished.turn)
            return
        response_id = finished.next_response_id
        if response_id in self._runs:
            self.promote(response_id)
            return
        with contextlib.suppress(StoreUnavailable, ResponseNotFound):
            record = await self._store.runs.get(None, response_id)
            command = {"type": "promote", "response_id": response_id}
            await self._store.publish_control(record.owner, command)

    # ---- stop -----------------------------------------------------------------------------------

    def stop(self, run: Run, stop: Stop) -> None:
        """Stop an own answer: the gate closes before this returns; a second stop changes nothing.

        `run.stop_is_stored` becomes True once the wish is in the store.
        """
        if run.stop(stop):
            self.spawn(self._engine_of(run).abort(run.response_id))
        elif not run.is_elsewhere:  # else it is the next owner's to carry out
            return
        self.spawn(self._store_stop(run, stop))

    async def _store_stop(self, run: Run, stop: Stop) -> None:
        if stop.reason == "steered" and not run.is_elsewhere:  # its words are stored: they say it
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STEERED_END_SECONDS):
                    await run.settled.wait()
                return
        try:
            asked = await self._store.runs.request_cancel(
                None, run.response_id, by=stop.by, reason=stop.reason, seen=stop.seen
            )
            run.timeline.note("cancel_at", asked.cancel_at)
            if run.is_elsewhere:
                await self._store.publish_control(asked.owner, cancel_command(run.response_id))
        except RunEnded as ended:
            if ended.status != "cancelled":
                return
        except SessionError:
            return  # the end itself will be stored, or the run is lost anyway
        run.mark_stop_stored()

    async def supersede(self, uid: str, response_id: str) -> None:
        """End the active answer to make room for the next one, and wait until it has ended."""
        await self.end_for_another(uid, response_id, "superseded")
        if (run := self._runs.get(response_id)) is not None:
            await run.done.wait()
            return
        with contextlib.suppress(ResponseNotFound):
            while True:
                if not (await self._store.runs.get(uid, response_id)).is_live:
                    return
                await asyncio.sleep(REMOTE_POLL_SECONDS)

    async def end_for_another(self, uid: str, response_id: str, reason: Reason) -> None:
        """Have an answer end, here or at its owner; no-op if it has."""
        if (run := self._runs.get(response_id)) is not None:
            self.stop(run, Stop("user", reason))
            return
        with contextlib.suppress(RunEnded, ResponseNotFound):
            asked = await self._store.runs.request_cancel(uid, response_id, reason=reason)
            await self._store.publish_control(asked.owner, cancel_command(response_id))

    async def stop_as_stored(self, response_id: str, stored: StoredStop | None) -> None:
        """Another worker stored a stop of an own answer, and may have sent which."""
        if (producer := self._producers.get(response_id)) is not None:
            await producer.stop_as_stored(stored)

    def hear_consent(self, response_id: str) -> None:
        """Something was said of a call of an own answer: the store knows what."""
        if (run := self._runs.get(response_id)) is not None:
            for said in run.consent_waits:
                said.set()

    def promote(self, response_id: str) -> None:
        """An own answer's turn has come."""
        if (run := self._runs.get(response_id)) is not None:
            run.promoted.set()

    def stop_deleted(self, session_id: str) -> None:
        """The session is gone: its answers end, and there is nothing to store."""
        for run in self.local_of_session(session_id):
            if run.delete():
                self.spawn(self._engine_of(run).abort(run.response_id))

    # ---- the engine core ------------------------------------------------------------------------

    def _engine_of(self, run: Run) -> EngineClient:
        return self._engines.get(run.response_id) or self._models.engine(_model_of(run))

    def tell_core_state(self, state: CoreState, model: str) -> None:
        """Tell the viewers of what that model's core has why it pauses."""
        reason = PAUSE_REASONS.get(state)
        if reason is None:
            return
        engine = self._models.engine(model)
        for run in self._runs.values():
            is_there = run.prompt is not None and run.state is RunState.RUNNING
            if is_there and self._engine_of(run) is engine:
                self._hub.tell_viewers(_paused(run, reason))

    def tell_loading(self, status: ModelStatus) -> None:
        """Tell the viewers of what waits for that model how far it is."""
        engine = self._models.engine(status.name)
        for response_id, producer in self._producers.items():
            if self._engines.get(response_id) is engine:
                producer.waiting.show_loading()

    # ---- the worker ends ------------------------------------------------------------------------

    async def wait_idle(self, seconds: float) -> None:
        """Return when nothing runs any more, or after so long."""
        await self._background.wait(seconds)

    async def leave(self, successor: Callable[[str], str | None], *, or_nobody: bool) -> None:
        """Hand over the running answers, or end them as `incomplete` if no worker can continue
        them.

        `successor` finds a worker by the fingerprint of its model. With `or_nobody` they are left
        to the next worker.
        """
        left: dict[str, str] = {}  # which answer, to whom
        for run in list(self._runs.values()):
            stop = Stop("policy", "server_shutdown")
            heir = successor(self._models.base(_model_of(run)).fingerprint)
            if run.leave(stop) if heir is not None or or_nobody else run.stop(stop):
                if heir is not None:
                    left[run.response_id] = heir
                self.spawn(self._engine_of(run).abort(run.response_id))
        await self.wait_idle(DRAIN_GRACE_SECONDS)
        for response_id, heir in left.items():
            command = {"type": "take_over", "response_id": response_id}
            with contextlib.suppress(StoreUnavailable):  # its sweeper finds them as well
                await self._store.publish_control(heir, command)

    async def close(self) -> None:
        await self._background.close()


def _model_of(run: Run) -> str:
    return str(run.response.get("model", ""))


def _paused(run: Run, reason: QueueReason) -> ResponseQueued:
    return ResponseQueued(response_id=run.response_id, reason=reason, position=0)
