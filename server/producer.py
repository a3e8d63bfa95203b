"""`Producer`: carries one answer from the engine to its viewers and into the store, to one end.

Two tasks: one takes outputs from the engine and numbers events, which reach this worker's viewers
at once; the other is the `LogWriter`. The engine waits for neither sockets nor Redis. Redis being
away delays nothing but `durable`, unless another worker could take the answer over meanwhile: then
viewers are shown nothing from shortly before the lease ends until it is renewed.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

import structlog

from engine import AsyncLLM, EngineDeadError, RequestOutput, RequestProgress, SamplingParams
from engine.errors import EngineError, ValidationError
from server.frames import queued_frame
from server.hub import Hub
from server.intervals import Intervals
from server.log_writer import STORE_RETRY_SECONDS, LogWriter
from server.logprobs import token_logprobs
from server.metrics import Metrics
from server.queue_estimate import QueueEstimate
from server.run import (
    STATUS_TO_MESSAGE_STATUS,
    End,
    Run,
    Stop,
    StoredStop,
    cancel_command,
)
from sessions.errors import (
    CancelPending,
    ResponseNotFound,
    RunEnded,
    RunGone,
    RunLost,
    SequenceGap,
    StoreUnavailable,
)
from sessions.records import Event, Finished, Message, ObjectEvent
from sessions.store import SessionStore

logger = structlog.get_logger("server")

FLUSH_SECONDS = 0.025  # between two text events of one answer; the first goes at once
QUEUE_FRAME_SECONDS = 0.5  # `response.queued` is sent at most twice a second
# Moments of the timeline that are this worker's to tell: a stop may come before the log says so.
OWN_MOMENTS = frozenset(("started_at", "first_token_at", "aborted_at"))
ENGINE_WAIT_SECONDS = 60.0  # of an answer whose turn comes while there is no engine core


@dataclass(frozen=True, slots=True)
class _Ending:
    """An end with what is stored and told of it."""

    end: End
    message: Message
    done: dict[str, Any]  # `response.done`


class Producer:
    """Runs one answer. `run.done` is set when `response.done` was published."""

    def __init__(
        self,
        run: Run,
        *,
        store: SessionStore,
        engine: AsyncLLM,
        hub: Hub,
        metrics: Metrics,
        intervals: Intervals,
        has_peers: Callable[[], bool] = lambda: False,
        queue: QueueEstimate | None = None,
        cache_salt: str = "",
        max_seconds: float = 0.0,
    ) -> None:
        self._run = run
        self._cache_salt = cache_salt  # one for each user
        self._max_seconds = max_seconds  # for writing the answer, over all its owners; 0: no limit
        self._store = store
        self._engine = engine
        self._hub = hub
        self._metrics = metrics
        self._intervals = intervals
        self._has_peers = has_peers
        self._queue = queue or QueueEstimate()
        self._writer = LogWriter(
            run,
            store=store,
            intervals=intervals,
            on_stop=self.stop_as_stored,
            on_renewal=self._show_held,
            on_loss=self._lose,
            on_rewind=self._tell_rewound,
        )
        run.must_be_silent = self._must_be_silent
        self._last_queue_frame = 0.0
        self._last_text_at: float | None = None

    def writing(self) -> AbstractAsyncContextManager[None]:
        """Keep the lease and store what comes during a block; `finish` comes behind it."""
        return self._writer.running()

    async def hold(self) -> None:
        """Wait for the answer's turn, until it is promoted or stopped."""
        while not self._run.promoted.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._intervals.promotion):
                    await self._run.promoted.wait()
            await self._look_for_promotion()

    async def _look_for_promotion(self) -> None:
        """The message that promotes may be lost: the store knows whose turn it is."""
        run = self._run
        with contextlib.suppress(StoreUnavailable):
            live = await self._store.live_responses(run.session_id)
            if live.active == run.response_id or run.lost:
                run.promoted.set()

    # ---- from the engine ------------------------------------------------------------------------

    async def generate(self, token_ids: list[int], params: SamplingParams) -> End:
        """Take the engine's outputs until its last one; never raises for what the engine does.

        An answer that has token ids already goes on behind them.
        """
        run = self._run
        if run.stopping is not None:  # stopped before the engine heard of it
            return run.end("abort", None, "released")
        await self.wait_for_engine()
        if run.stopping is not None:
            return run.end("abort", None, "released")
        run.num_prompt_tokens = len(token_ids)
        if run.token_ids and not self._take_up(token_ids, params):
            return End("incomplete", "owner_lost", "released")
        finish_reason, stop_reason, confirmed = "error", None, True
        try:
            outputs = self._engine.generate(
                {"prompt_token_ids": token_ids, "cache_salt": self._cache_salt},
                params,
                run.response_id,
                resume_token_ids=list(run.token_ids),
                priority=run.response.get("priority", 0),
                is_admitted=True,  # the answer was promised: a queue that is full by now takes it
                on_progress=self._on_progress,
            )
            async for output in outputs:
                self._take(output)
                if output.finished:
                    answer = output.outputs[0]
                    finish_reason = answer.finish_reason or "error"
                    stop_reason = answer.stop_reason
                    confirmed = output.metrics is None or output.metrics.core_confirmed
                    if output.error is not None:
                        logger.warning("engine error", code=output.error.code, **self._ids())
                elif not run.stop_asked.is_set():
                    await self._flush_window()
        except (EngineError, ValidationError) as error:
            # Not in a core, or in one that is dead and holds no blocks: released in any case.
            logger.warning(
                "generation failed",
                error=type(error).__name__,
                dead=isinstance(error, EngineDeadError),
                **self._ids(),
            )
        if run.stopping is not None and confirmed:
            run.timeline.note("aborted_at")
        return run.end(finish_reason, stop_reason, "released" if confirmed else "unknown")

    def _take_up(self, token_ids: list[int], params: SamplingParams) -> bool:
        """Show what another worker's tokens say beyond its text; False if they say another text."""
        run = self._run
        decided = run.base + self._engine.resumed_text(token_ids, params, run.token_ids)
        known = run.text()
        if not decided.startswith(known):
            logger.error("stored tokens do not spell the stored text", **self._ids())
            return False
        self._add_text(decided[len(known) :], [])
        return True

    async def wait_for_engine(self) -> None:
        """An answer that was promised waits for a core that restarts, until somebody stops it."""
        if self._engine.is_ready:
            return
        waits = [
            asyncio.ensure_future(self._engine.wait_ready(ENGINE_WAIT_SECONDS)),
            asyncio.ensure_future(self._run.stop_asked.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _take(self, output: RequestOutput) -> None:
        """Number the new text of one output and show it to the viewers."""
        run = self._run
        answer = output.outputs[0] if output.outputs else None
        self._note_cached(output.num_cached_tokens)
        if answer is None or not answer.token_ids:
            if answer is not None and answer.text:
                self._add_text(answer.text, [])
            return
        self._start()
        now = time.monotonic()
        if run.timeline.first_token is None:
            run.timeline.first_token = now
            run.timeline.note("first_token_at")
            self._metrics.observe_first_token(now - run.timeline.created)
        run.timeline.last_token = now
        logprobs = token_logprobs(answer.logprobs, answer.token_ids)
        self._add_text(answer.text, answer.token_ids, logprobs)
        self._check_deadline(now)

    def _check_deadline(self, now: float) -> None:
        """An answer that takes too long keeps what it has, and may be continued."""
        run = self._run
        begun = run.timeline.scheduled
        if not self._max_seconds or begun is None or now - begun < self._max_seconds:
            return
        if run.stop(Stop("policy", "deadline")):
            self._hub.spawn(self._engine.abort(run.response_id))

    def _add_text(
        self, text: str, token_ids: list[int], logprobs: Sequence[dict[str, Any]] = ()
    ) -> None:
        event = self._run.add_text(text, token_ids, logprobs)
        if event is not None:
            now = time.monotonic()
            if self._last_text_at is not None:
                self._metrics.observe_inter_event(now - self._last_text_at)
            self._last_text_at = now
            self._publish([event])

    def _note_cached(self, num_tokens: int | None) -> None:
        """What another core finds in its cache later is no part of the prompt's price."""
        if num_tokens is not None and not self._run.is_started:
            self._run.num_cached_tokens = num_tokens

    def _on_progress(self, progress: RequestProgress) -> None:
        run = self._run
        self._note_cached(progress.num_cached_tokens)
        if progress.scheduled:
            self._start()
        elif progress.queue_position is not None and run.stopping is None:
            self._queue.moved(run.response_id, progress.queue_position)
            self.show_queued("engine", progress.queue_position, progress.num_tokens_ahead)

    def show_queued(self, reason: str, position: int, ahead_tokens: int | None = None) -> None:
        """Tell the viewers what the answer waits for; not numbered, at most twice a second."""
        now = time.monotonic()
        if now - self._last_queue_frame >= QUEUE_FRAME_SECONDS:
            self._last_queue_frame = now
            response_id = self._run.response_id
            eta_ms = self._queue.wait_ms(reason, position)
            frame = queued_frame(
                response_id, reason, position, ahead_tokens=ahead_tokens, eta_ms=eta_ms
            )
            self._hub.put_unnumbered(response_id, frame)

    def _start(self) -> None:
        """`response.in_progress`, once."""
        run = self._run
        if run.is_started or run.stopping is not None:
            return
        run.timeline.scheduled = time.monotonic()
        run.timeline.note("started_at")
        self._queue.started(run.response_id)
        event = run.add_object(
            {
                "type": "response.in_progress",
                "response_id": run.response_id,
                "omitted_messages": run.prompt.omitted_messages if run.prompt else 0,
                "prompt_tokens": run.num_prompt_tokens,
                "cached_tokens": run.num_cached_tokens,
                "queue_ms": round((run.timeline.scheduled - run.timeline.created) * 1000),
            }
        )
        self._publish([event])

    def _publish(self, events: list[Event]) -> None:
        run = self._run
        first = run.sequence_number - len(events) + 1
        if run.is_held:
            return
        if self._must_be_silent():
            run.is_held = True
            logger.warning("viewers wait for the store", **self._ids())
            return
        self._hub.publish_events(run.response_id, run.fence, first, events)

    def _must_be_silent(self) -> bool:
        """Whether somebody might have taken the answer over, or may before we hear of it."""
        silent_for = time.monotonic() - self._run.renewed_at
        return silent_for > self._intervals.silence and self._has_peers()

    def _show_held(self) -> None:
        """The answer is still this worker's: its viewers get what they had to wait for."""
        run = self._run
        if run.is_held:
            run.is_held = False
            self._hub.show_again(run.response_id, run.log)

    def _speak_again(self) -> None:
        """Nobody can take the answer over any more."""
        self._run.renewed_at = time.monotonic()
        self._show_held()

    async def _flush_window(self) -> None:
        """Let the next outputs merge for a moment; a stop ends the wait."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._run.stop_asked.wait()
        except TimeoutError:
            pass

    async def stop_as_stored(self, told: StoredStop | None = None) -> None:
        """A stop reached the store through another worker: the owner hears of it here.

        Who tells of it may have `told` everything; otherwise the store is asked.
        """
        run = self._run
        if told is None:
            try:
                record = await self._store.run(None, run.response_id)
            except (StoreUnavailable, ResponseNotFound):
                return  # the next append says so again
            stop = Stop(record.cancel_by, record.cancel_reason, record.seen_sequence_number)
            told = StoredStop(stop, record.cancel_at)
        if run.stop(told.stop):
            run.timeline.note("cancel_at", told.at_ms)
            run.mark_stop_stored()
            await self._engine.abort(run.response_id)

    def _lose(self, error: Exception) -> None:
        """The store refuses this worker's writes: it must not show another character."""
        run = self._run
        if not run.is_deleted:
            logger.warning("run lost", error=type(error).__name__, **self._ids())
        run.lost = True
        run.stop(Stop("policy", "store_lost"))
        self._hub.spawn(self._engine.abort(run.response_id))

    def _tell_rewound(self) -> None:
        logger.warning("redis lost its last writes, which are written again", **self._ids())
        self._hub.spawn(self._hub.losses.renew(self._run.session_id))

    # ---- the end --------------------------------------------------------------------------------

    async def finish(self, end: End) -> Finished | None:
        """Make the answer terminal, once; tell the viewers at once even while the store is away.

        None if somebody else ends it: then it was lost, or is handed over.
        """
        try:
            return await self._finish(end)
        finally:
            self._run.settled.set()

    async def _finish(self, end: End) -> Finished | None:
        run = self._run
        if run.is_leaving:
            await self._writer.hand_over()
            return None
        run.is_ending = True  # what is stored and what is told must be the same end
        run.timeline.done = time.monotonic()
        since = run.timeline.scheduled or run.timeline.created
        self._queue.finished(run.response_id, run.timeline.done - since)
        run.timeline.note("done_at")
        ending = self._ending(end)  # once: what is told is what is stored, to each moment
        while True:
            try:
                finished = await self._store_end(ending)
                break
            except StoreUnavailable:
                if not run.done.is_set() and not self._must_be_silent():
                    self._publish_done(ending, durable=False)
                await asyncio.sleep(STORE_RETRY_SECONDS)
            except CancelPending as pending:
                run.stopping = Stop(pending.by, pending.reason, pending.seen)
                run.timeline.note("cancel_at")
                ending = self._ending(run.end("abort", None, end.engine))
            except SequenceGap as gap:
                if not self._writer.settle_at(gap.sequence_number) and not self._writer.rewind(gap):
                    self._finish_lost(gap)
                    return None
            except (RunLost, RunEnded, RunGone) as error:
                self._finish_lost(error)
                return None
        self._settle(ending, durable=True)
        frame = {"type": "message.updated", "message": ending.message.event_wire()}
        self._hub.publish_session(run.session_id, finished.offset, frame)
        return finished

    async def _store_end(self, ending: _Ending) -> Finished:
        run, end = self._run, ending.end
        message, done = ending.message, ObjectEvent(ending.done)
        # Events that the viewers have and the log has not go along; `done` itself is not in them.
        pending = [e for e in run.events[run.num_stored :] if not _is_done(e)]
        return await self._store.finish_response(
            run.response_id,
            fence=run.fence,
            first=run.num_stored + 1,
            status=end.status,
            reason=end.reason,
            engine=end.engine,
            message=message,
            text_length=message.text_length,
            input_tokens=run.num_prompt_tokens,
            output_tokens=len(run.token_ids),
            events=[*pending, done],
            token_ids=run.token_ids[run.num_tokens_stored :],
            fields={name: at for name, at in run.timeline.at.items() if name in OWN_MOMENTS},
        )

    def _publish_done(self, ending: _Ending, *, durable: bool) -> None:
        run, end = self._run, ending.end
        self._publish([run.add_object({**ending.done, "durable": durable})])
        run.status = end.status
        run.done.set()
        if run.stopping is not None:
            self._metrics.observe_stop(time.monotonic() - run.stopping.at, run.num_discarded)
        logger.info(
            "response done", status=end.status, reason=end.reason, engine=end.engine, **self._ids()
        )

    def _settle(self, ending: _Ending, *, durable: bool) -> None:
        """The end is certain: tell it, once more to those who were told before it was.

        What they were told may be another end. A stop that others had stored by then, and had
        promised to its asker, counts.
        """
        run, end = self._run, ending.end
        self._metrics.count_response(end.status, end.reason)
        if not run.done.is_set():
            self._speak_again()
            self._publish_done(ending, durable=durable)
            return
        if run.status != end.status:
            logger.warning("end was told and is another", status=end.status, **self._ids())
        run.status = end.status
        run.replace_end({**ending.done, "durable": durable})
        self._speak_again()
        self._hub.tell_end_again(run.response_id, run.log)

    def _finish_lost(self, error: Exception) -> None:
        """The run is somebody else's, or its session is gone: end it for the viewers here."""
        run = self._run
        self._lose(error)
        deleted = run.is_deleted
        if isinstance(error, RunGone | SequenceGap):
            if deleted:
                end = End("cancelled", "session_deleted", "released", "user")
            else:
                end = End("failed", "store_lost", "released")
            self._settle(self._ending(end), durable=deleted)
            if deleted:
                self._hub.spawn(self._tell_others_of_the_end())
            else:
                self._hub.spawn(self._hub.losses.look_at(run.session_id))
        elif isinstance(error, RunLost | RunEnded):
            run.is_disowned = True
            self._hub.disown(run.response_id)  # what is shown here may be more than was stored
            if run.stopping is not None and not run.stop_is_stored:
                self._hub.spawn(self._pass_on(run.stopping))
        run.done.set()

    async def _tell_others_of_the_end(self) -> None:
        """Viewers at other workers hear through Redis, and there is no log any more."""
        run = self._run
        with contextlib.suppress(StoreUnavailable):
            await self._store.publish_events(
                run.response_id,
                fence=run.fence,
                first=run.num_stored + 1,
                events=run.events[run.num_stored :],
            )

    async def _pass_on(self, stop: Stop) -> None:
        """A stop that could not be stored here is the next owner's to carry out."""
        if stop.by == "policy":
            return
        response_id = self._run.response_id
        with contextlib.suppress(StoreUnavailable, RunEnded, ResponseNotFound):
            asked = await self._store.request_cancel(
                None, response_id, by=stop.by, reason=stop.reason, seen=stop.seen
            )
            await self._store.publish_control(asked.owner, cancel_command(response_id))

    def _ending(self, end: End) -> _Ending:
        run = self._run
        message = replace(
            run.message,
            text=run.final_text(),
            text_length=-1,
            status=STATUS_TO_MESSAGE_STATUS[end.status],
            usage=run.usage(),
            timings=run.timeline.wire(len(run.token_ids)),
            status_details={"reason": end.reason},
        )
        return _Ending(end, message, run.done_data(end, message.text_length, durable=True))

    def _ids(self) -> dict[str, str]:
        return {"session_id": self._run.session_id, "response_id": self._run.response_id}


def _is_done(event: Event) -> bool:
    return isinstance(event, ObjectEvent) and event.data["type"] == "response.done"
