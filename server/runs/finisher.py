"""`Finisher`: makes one answer terminal, once, in the store and for its viewers.

The end that is stored and the end that is sent are the same. A Redis that is unavailable delays
nothing but `durable`, unless another worker could take over the answer meanwhile: then its viewers
wait for the store.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace

import structlog
from msgspec.structs import replace as replace_fields

from server.config.intervals import STORE_RETRY_SECONDS
from server.live.hub import Hub
from server.live.response_log import is_done
from server.protocol.encoding import of_stored
from server.protocol.objects import MessageObject
from server.protocol.server_frames import DoneEntry, MessageUpdated
from server.runs.log_writer import LogWriter, lose
from server.runs.run import Run
from server.runs.state import STATUS_TO_MESSAGE_STATUS, End, pauses_queue
from server.runs.stop import Stop, cancel_command
from server.runs.tools.runner import next_round_of
from server.runs.waiting import QueueEstimate
from server.telemetry.metrics import Metrics
from sessions.model.errors import (
    CancelPending,
    ResponseNotFound,
    RunEnded,
    RunGone,
    RunLost,
    SequenceGap,
    StoreUnavailable,
)
from sessions.model.events import ObjectEvent
from sessions.model.records import Message
from sessions.model.replies import Finished
from sessions.store.store import SessionStore

logger = structlog.get_logger("server")

# When others are sent an end that is stored nowhere: the waits, one after the other.
LAST_END_AFTER_SECONDS = (0.0, 1.0, 2.0)
EXACT = "exact"  # which a message need not say
# Moments of the timeline that this worker reports: a stop may come before the log says so.
OWN_MOMENTS = frozenset(("started_at", "first_token_at", "aborted_at"))


@dataclass(frozen=True, slots=True)
class _Ending:
    """An end with what is stored and sent of it."""

    end: End
    message: Message
    done: DoneEntry


class Finisher:
    """Ends one run, which its engine has left. `run.done` is set when `response.done` was sent."""

    def __init__(
        self,
        run: Run,
        *,
        store: SessionStore,
        hub: Hub,
        metrics: Metrics,
        queue: QueueEstimate,
        writer: LogWriter,
    ) -> None:
        self._run = run
        self._store = store
        self._hub = hub
        self._metrics = metrics
        self._queue = queue
        self._writer = writer

    async def finish(self, end: End) -> Finished | None:
        """Make the answer terminal, once; tell the viewers at once even while the store is away.

        None if somebody else ends it: then it was lost, or is handed over.
        """
        self._run.has_spoken.set()
        trace, stop = self._run.trace, self._run.stopping
        if trace is not None and stop is not None:
            trace.stopped(stop.at, stop.by, stop.reason, end.engine)
        try:
            return await self._finish(end)
        finally:
            self._run.settled.set()
            self._run.tell_stored()
            if self._run.trace is not None:
                self._run.trace.leave(self._run.state.value)

    async def _finish(self, end: End) -> Finished | None:
        run = self._run
        if run.is_given_up:
            await self._writer.hand_over()
            run.hand_over()
            return None
        run.begin_end()  # what is stored and what is sent must be the same end
        run.timeline.done = time.monotonic()
        since = run.timeline.scheduled or run.timeline.created
        self._queue.finished(run.response_id, run.timeline.done - since)
        run.timeline.note("done_at")
        ending = self._ending(end)  # once: what is sent is what is stored, to each moment
        while (
            True
        ):  # not `until_done`: the first failure tells the viewers, a refusal changes the end
            try:
                finished = await self._store_end(ending)
                break
            except StoreUnavailable:
                is_silent = run.is_elsewhere or run.must_be_silent()
                if not run.done.is_set() and not is_silent:  # its end may be another's to tell
                    self._publish_done(ending, durable=False)
                await asyncio.sleep(STORE_RETRY_SECONDS)
            except CancelPending as pending:
                run.take_pending_stop(Stop.stored(pending.by, pending.reason, pending.seen))
                run.timeline.note("cancel_at")
                ending = self._ending(run.end("abort", None, end.engine))
            except SequenceGap as gap:
                if not self._writer.settle_at(gap.sequence_number) and not self._writer.rewind(gap):
                    await self._finish_lost(gap)
                    return None
            except (RunLost, RunEnded, RunGone) as error:
                await self._finish_lost(error)
                return None
        if run.trace is not None:
            call = {"parley.store.call": "finish"}
            run.trace.part("store", run.timeline.done, time.monotonic(), call)
        self._settle(ending, durable=True)
        self._hub.publish_session(
            MessageUpdated(
                session_id=run.session_id,
                offset=finished.offset,
                message=of_stored(MessageObject, ending.message.event_wire()),
            )
        )
        return finished

    async def _store_end(self, ending: _Ending) -> Finished:
        run, end = self._run, ending.end
        message, done = ending.message, ending.done.wire()
        # Events that the viewers have and the log has not go along; `done` itself is not in them.
        pending = [e for e in run.events[run.num_stored :] if not is_done(e)]
        stop = run.stopping
        # A client that stopped it at another worker got no more text, and may find no log any more.
        whole = ObjectEvent({**done, "text": message.text}) if stop is not None else None
        next_round, usage = next_round_of(run, end, message), done["response"]["usage"]
        return await self._store.runs.finish(
            run.response_id,
            fence=run.fence,
            first=run.num_stored + 1,
            status=end.status,
            reason=end.reason,
            engine=end.engine,
            message=message,
            text_length=message.text_length,
            input_tokens=usage["input_tokens"],
            output_tokens=usage["output_tokens"],
            events=[*pending, ObjectEvent(done)],
            token_ids=run.token_ids[run.num_tokens_stored :],
            fields={name: at for name, at in run.timeline.at.items() if name in OWN_MOMENTS},
            seen=None if stop is None else stop.seen,
            published_end=whole,
            pauses_queue=pauses_queue(end) and next_round is None,
            next_round=next_round,
            group=run.group,
            place=run.place,
            turn_of=run.uid if stop is not None and stop.reason == "steered" else None,
        )

    def _publish_done(self, ending: _Ending, *, durable: bool) -> None:
        run, end = self._run, ending.end
        self._hub.show(run, [run.add_object(replace_fields(ending.done, durable=durable))])
        run.note_published(end)
        if run.stopping is not None:
            self._metrics.observe_stop(time.monotonic() - run.stopping.at, run.num_discarded)
        logger.info(
            "response done", status=end.status, reason=end.reason, engine=end.engine, **run.ids
        )

    def _settle(self, ending: _Ending, *, durable: bool) -> None:
        """The end is certain: send it, once more to those who got one before it was.

        What they got may be another end. A stop that others had stored by then, and had
        promised to its asker, counts.
        """
        run, end = self._run, ending.end
        run.settle()
        if run.trace is not None:
            first_token = run.timeline.first_token
            run.trace.end(end.status, end.reason, run.usage(), first_token)
        self._metrics.count_response(end.status, end.reason)
        if not run.done.is_set():
            if end.status == "cancelled":  # what the store says of the stop may come after this
                run.mark_stop_stored()
            self._speak_again()
            self._publish_done(ending, durable=durable)
            return
        if run.status != end.status:
            logger.warning("end was sent and is another", status=end.status, **run.ids)
        run.replace_end(replace_fields(ending.done, durable=durable), end)
        self._speak_again()
        self._hub.tell_end_again(run.response_id, run.log)

    def _speak_again(self) -> None:
        """Nobody can take the answer over any more."""
        self._run.renewed_at = time.monotonic()
        self._hub.show_held(self._run)

    async def _finish_lost(self, error: Exception) -> None:
        """The run is somebody else's, or its session is gone: end it for the viewers here."""
        run = self._run
        is_gone = isinstance(error, RunGone | SequenceGap)
        if is_gone and not run.is_deleted and await self._was_deleted():
            run.delete()  # what the store says may come before the word of who deletes it
        lose(run, error)
        deleted = run.is_deleted
        if is_gone:
            if deleted:
                end = End("cancelled", "session_deleted", "released", "user")
            else:
                end = End("failed", "store_lost", "released")
            self._settle(self._ending(end), durable=deleted)
            self._hub.spawn(self._tell_others_of_the_end())
            if deleted:
                self._hub.spawn(self._charge())
            else:
                self._hub.spawn(self._hub.data_loss.look_at(run.session_id))
        elif isinstance(error, RunLost | RunEnded):
            run.disown()
            self._hub.disown(run.response_id)  # what is shown here may be more than was stored
            if run.stopping is not None and not run.stop_is_stored:
                self._hub.spawn(self._pass_on(run.stopping))
        run.done.set()

    async def _was_deleted(self) -> bool:
        with contextlib.suppress(StoreUnavailable):
            return await self._store.sessions.was_deleted(self._run.session_id)
        return False

    async def _charge(self) -> None:
        """What it has used counts, although its session is gone."""
        run, budgets = self._run, self._store.budgets
        usage = run.usage()
        num_tokens = usage["input_tokens"] + usage["output_tokens"]
        with contextlib.suppress(StoreUnavailable):
            now_ms = await self._store.now_ms()
            await budgets.charge(run.uid, run.response_id, num_tokens, now_ms, group=run.group)

    async def _tell_others_of_the_end(self) -> None:
        """Viewers at other workers hear through Redis, and there is no log any more.

        So the end brings the text, for viewers that miss some. It is sent more than once: Redis
        itself may have failed, and then other workers reconnect to it at other moments.
        """
        run = self._run
        for seconds in LAST_END_AFTER_SECONDS:
            await asyncio.sleep(seconds)
            with contextlib.suppress(StoreUnavailable):
                await self._store.runs.publish(
                    run.response_id,
                    fence=run.fence,
                    first=run.sequence_number,
                    events=[run.log.end_with_text],
                )

    async def _pass_on(self, stop: Stop) -> None:
        """A stop that could not be stored here is the next owner's to carry out."""
        if stop.by == "policy":
            return
        response_id = self._run.response_id
        with contextlib.suppress(StoreUnavailable, RunEnded, ResponseNotFound):
            asked = await self._store.runs.request_cancel(
                None, response_id, by=stop.by, reason=stop.reason, seen=stop.seen
            )
            await self._store.publish_control(asked.owner, cancel_command(response_id))

    def _ending(self, end: End) -> _Ending:
        run = self._run
        text = run.final_text()
        message = replace(
            run.message,
            text=text,
            reasoning=run.final_reasoning(),
            tool_calls=run.final_calls(),
            tool_outputs=run.final_outputs(),
            order=run.final_order(),
            status=STATUS_TO_MESSAGE_STATUS[end.status],
            usage=run.message_usage(),
            timings=run.timeline.wire(run.num_output_tokens),
            status_details=end.details(),
            settings=run.message_settings(),
            restarts=run.num_restarts or None,
            exactness=_inexactness(run),
        )
        return _Ending(end, message, run.done_entry(end, message.text_length))


def _inexactness(run: Run) -> str | None:
    """How its engine lets it go on after a death; None if exactly, as our own does."""
    exactness: str = run.response.get("exactness", EXACT)
    return None if exactness == EXACT else exactness
