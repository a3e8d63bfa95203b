"""`Takeover`: answers whose worker died or leaves go on here, with the text they would have had.

An answer whose lease ended, or whose owner is certainly gone, may be reaped: the store lets one
worker win, and refuses the old owner from then on. The winner reads the log and the token ids,
builds the same prompt, and lets the engine continue after those ids. An answer that cannot continue
ends with the text it has.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence

import structlog

from server.config.intervals import Intervals
from server.engines.client import ServedModel
from server.engines.models import Models
from server.live.hub import Hub
from server.live.response_log import read_base
from server.protocol.encoding import of_stored
from server.protocol.objects import ResponseObject
from server.protocol.server_frames import CreatedEntry
from server.runs.peers import Peers
from server.runs.run import Run
from server.runs.runs import Runs
from server.runs.state import End
from server.runs.stop import Stop
from server.telemetry.metrics import Metrics
from server.telemetry.tracing import AnswerTracing
from sessions.indexes.sweep import IndexSweep
from sessions.model.errors import ResponseNotFound, SessionError, SessionNotFound, StoreUnavailable
from sessions.model.events import ObjectEvent
from sessions.model.records import Message, RunRecord
from sessions.model.replies import Reaped
from sessions.store.store import SessionStore

logger = structlog.get_logger("server")

MAX_FENCE = 3  # an answer that outlived so many owners may be what kills them
GIVEN_UP = End("failed", "owner_lost", "unknown")
LOG_GONE = End("failed", "store_lost", "unknown")  # of one whose log somebody has removed


class Takeover:
    """One worker's eye on the answers of all others."""

    def __init__(
        self,
        *,
        store: SessionStore,
        hub: Hub,
        metrics: Metrics,
        runs: Runs,
        peers: Peers,
        replica: str,
        models: Models,
        refresh_models: Callable[[], Awaitable[None]] | None = None,
        intervals: Intervals,
        index_sweep: IndexSweep,
        tracing: AnswerTracing | None = None,
    ) -> None:
        self._store = store
        self._hub = hub
        self._metrics = metrics
        self._runs = runs
        self._peers = peers
        self._replica = replica
        self._models = models
        self._refresh_models = refresh_models
        self._intervals = intervals
        self._index_sweep = index_sweep
        self._tracing = tracing
        self._left: dict[str, float] = {}  # to others, since when: this worker cannot compute them

    async def adopt(self, replica: str) -> None:
        """Go on with all that a dead worker ran. The supervisor's waitpid is the proof of that."""
        try:
            response_ids = await self._store.runs.owned_by(replica)
            random.shuffle(response_ids)  # several workers hear of it, and share what there is
            for response_id in response_ids:
                await self.take_over(response_id, replica)
            await self._peers.forget(replica)
        except StoreUnavailable:
            logger.warning("a dead worker's runs wait for their leases to end", replica=replica)

    async def sweep_forever(self) -> None:
        """Take over answers whose lease ended, keep the indexes: our leases, nothing stale."""
        touched = 0.0
        while True:
            await asyncio.sleep(self._intervals.sweep * random.uniform(0.8, 1.2))
            try:
                if not self._runs.draining:
                    expired = await self._store.runs.expired()
                    self._left = {id: self._left[id] for id in expired if id in self._left}
                    for response_id in expired:
                        await self.take_over(response_id)
                if time.monotonic() - touched >= self._intervals.index:
                    touched = time.monotonic()
                    await self._store.runs.touch(self._runs.leases())
                    await self._index_sweep.step()
            except StoreUnavailable:
                # Leases ended meanwhile, and their owners could not help it: they go first.
                await asyncio.sleep(2 * self._intervals.renewal)
            except Exception:
                logger.exception("sweep failed")

    async def take_over(self, response_id: str, exited_owner: str | None = None) -> None:
        """Go on with an answer whose owner is gone, or end it; a no-op for any other.

        Raises `StoreUnavailable` alone, so that an answer with which something is wrong keeps no
        other one waiting. What was reaped by then is found again when its lease ends.
        """
        if self._runs.draining or self._runs.local(response_id) is not None:
            return
        try:
            if not await self._is_left_to_others(response_id):
                await self._take_over(response_id, exited_owner)
        except StoreUnavailable:
            raise
        except SessionError:
            pass  # alive, ended by somebody else, or deleted
        except Exception:
            logger.exception("run cannot be taken over", response_id=response_id)

    async def _is_left_to_others(self, response_id: str) -> bool:
        """Whether another worker may be able to compute it, since this one is not.

        They have the time of a lease; then it is ended here. One of a model whose files are not
        here yet waits for them.
        """
        if not self._peers.are_known() and not self._models.are_many:
            return False
        try:
            record = await self._store.runs.get(None, response_id)
        except StoreUnavailable:
            raise
        except Exception:
            # One that cannot be read is ended by the first who sees it, and one that is not there
            # leaves the index: only `reap` does that.
            return False
        if record.cancel_at is not None or await self._model_of(record) is not None:
            return False
        if self._models.is_pending(record.model):
            self._models.ask(record.model)
            return True
        if not self._peers.are_known():
            return False
        now = time.monotonic()
        return now - self._left.setdefault(response_id, now) < self._intervals.lease

    async def _model_of(self, record: RunRecord) -> ServedModel | None:
        """The model that computes what the one before has computed; None if it is not here."""
        if not self._models.is_known(record.model) and self._refresh_models is not None:
            await self._refresh_models()
        model = self._models.served.get(record.model)
        fingerprint = record.extra.get("model_fingerprint")
        is_same = model is not None and fingerprint in (None, model.fingerprint)
        return model if is_same else None

    async def _take_over(self, response_id: str, exited_owner: str | None) -> None:
        reaped = await self._store.runs.reap(
            response_id, new_owner=self._replica, exited_owner=exited_owner
        )
        self._metrics.count_reaped()
        self._hub.rooms.claim(response_id)
        goes_on = False
        try:
            goes_on = await self._resume(response_id, reaped)
        except (StoreUnavailable, SessionNotFound, ResponseNotFound):
            raise
        except Exception:
            if reaped.fence <= MAX_FENCE:
                raise
            logger.exception("run cannot be ended as it is", response_id=response_id)
            await self._give_up(response_id, reaped)
        finally:
            if not goes_on:
                self._hub.rooms.unclaim(response_id)

    async def _resume(self, response_id: str, reaped: Reaped) -> bool:
        """Go on with what was reaped, or end it with all that is stored of it: False."""
        run, record, is_whole = await self._load(response_id, reaped)
        if self._tracing is not None:
            run.trace = self._tracing.resume(run.session_id, response_id, run.fence, record.extra)
        run.model = await self._model_of(record)
        end = self._end_of(run, record, reaped) if is_whole else LOG_GONE
        logger.warning(
            "run taken over",
            response_id=response_id,
            session_id=run.session_id,
            old_owner=reaped.old_owner,
            fence=run.fence,
            num_tokens=len(run.token_ids),
            ends=end.reason if end else None,
        )
        if end is None:
            # What the answer has used is not in it yet.
            budget = await self._store.budgets.today(run.uid)
            run.tokens_left = None if budget is None else budget.own_left
            await self._runs.go_on(run)
            return True
        await self._runs.finish(run, end)
        return False

    async def _give_up(self, response_id: str, reaped: Reaped) -> None:
        """End an answer without its log and its tokens: something in them lets no owner end it.

        Otherwise it would be taken over for ever, and its session would take no other answer.
        """
        record = await self._store.runs.get(None, response_id)
        run = _bare_run(record, await self._message_of(record), reaped)
        run.model = await self._model_of(record)
        await self._runs.finish(run, self._end_of(run, record, reaped) or GIVEN_UP)

    async def _message_of(self, record: RunRecord) -> Message:
        """The answer's message, an empty one if that is what cannot be read."""
        try:
            return await self._store.messages.get(None, record.session_id, record.message_id)
        except (StoreUnavailable, SessionNotFound):
            raise
        except Exception:
            return Message(
                record.message_id,
                record.parent_id,
                "assistant",
                "",
                "in_progress",
                record.created_at,
                response_id=record.response_id,
                model=record.model,
            )

    async def _load(self, response_id: str, reaped: Reaped) -> tuple[Run, RunRecord, bool]:
        """The run as its old owner had stored it; False if entries of its log are gone.

        Then it has what its message has, and can only be ended.
        """
        store = self._store
        record = await store.runs.get(None, response_id)
        events = [event for _, event in await store.runs.events(response_id)]
        message = await store.messages.get(None, record.session_id, record.message_id)
        if len(events) != record.sequence_number:
            tokens = await store.runs.token_ids(response_id)
            return _bare_run(record, message, reaped, tokens), record, False
        base = await read_base(store, record, events)
        created = events[0]
        assert isinstance(created, ObjectEvent)
        run = Run(
            created.data["response"],
            message,
            uid=record.uid,
            fence=reaped.fence,
            created=created,
            base=base,
        )
        run.restore(events, await store.runs.token_ids(response_id), record)
        run.lease_until = reaped.lease_until
        if record.parent_id is not None:
            run.user_message = await store.messages.get(None, record.session_id, record.parent_id)
        return run, record, True

    def _end_of(self, run: Run, record: RunRecord, reaped: Reaped) -> End | None:
        """How the answer ends instead of going on, if it must."""
        if reaped.cancel:
            run.stop(Stop.stored(record.cancel_by, record.cancel_reason, reaped.seen))
            run.mark_stop_stored()
            return run.end("abort", None, "unknown")
        if run.model is None:
            return End("incomplete", "owner_lost", "unknown")
        if run.fence > MAX_FENCE:
            return GIVEN_UP
        return None


def _bare_run(
    record: RunRecord, message: Message, reaped: Reaped, token_ids: Sequence[int] = ()
) -> Run:
    """A run that can only be ended: it has what its message has, and nothing of its log."""
    created = _created(record)
    run = Run(
        created.data["response"],
        message,
        uid=record.uid,
        fence=reaped.fence,
        created=created,
        base=message.text,
    )
    run.restore([created] * record.sequence_number, token_ids, record)
    run.lease_until = reaped.lease_until
    return run


def _created(record: RunRecord) -> ObjectEvent:
    """Stands for entries of a log that is gone: what the run itself says of its beginning.

    It has no idempotency key, and may have no parent: what is not known is not sent.
    """
    parent = {} if record.parent_id is None else {"parent_id": record.parent_id}
    stored = {
        "id": record.response_id,
        "session_id": record.session_id,
        "message_id": record.message_id,
        **parent,
        "model": record.model,
        "settings": record.settings or {},
        "status": "queued",
        "created_at": record.created_at,
    }
    return ObjectEvent(
        of_stored(CreatedEntry, {"response": of_stored(ResponseObject, stored)}).wire()
    )
