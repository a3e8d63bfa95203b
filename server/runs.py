"""`Runs`: begins answers and ends them.

This is the one place where a session meets the engine. A run belongs to the worker that accepted
its `response.create`; sockets are only viewers, so closing them ends nothing.
"""

import asyncio
import contextlib
import hashlib
import re
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
import orjson
import structlog

from engine import AsyncLLM
from engine.connection import CoreState
from engine.errors import EngineDeadError, EngineError, RetryableRequestError
from server.errors import ApiError
from server.hub import Hub, Subscription, Watcher
from server.metrics import Metrics
from server.producer import Producer
from server.prompts import Prompt, PromptBuilder
from server.protocol import CreateResponse
from server.run import End, Run, Stop
from server.sampling import ModelDefaults, effective_settings, sampling_params
from sessions.errors import (
    IdempotencyKeyReused,
    ResponseInProgress,
    ResponseNotFound,
    RunEnded,
    SessionError,
    StoreUnavailable,
)
from sessions.records import (
    BegunResponse,
    Finished,
    Message,
    ObjectEvent,
    Session,
    new_message_id,
    new_response_id,
)
from sessions.store import SessionStore

logger = structlog.get_logger("server")

T = TypeVar("T")

TITLE_CHARACTERS = 60
MAX_SUPERSEDE_TRIES = 3
ENGINE_GRACE_SECONDS = 2.0  # for a worker that has just started to join the core
REMOTE_POLL_SECONDS = 0.1  # while another worker ends the answer that ours replaces
DRAIN_GRACE_SECONDS = 2.0  # for the ends of what is cut off
# Control and bidirectional formatting characters would let a title disguise the rest of a page.
_UNSAFE_IN_TITLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]+")


def clean_title(text: str) -> str:
    """One line without control and bidi characters."""
    return " ".join(_UNSAFE_IN_TITLE.sub(" ", text).split())


class Runs:
    """The answers of one worker."""

    def __init__(
        self,
        *,
        store: SessionStore,
        engine: AsyncLLM,
        hub: Hub,
        metrics: Metrics,
        replica: str,
        model: str,
        defaults: ModelDefaults,
        max_active_per_user: int,
    ) -> None:
        self._store = store
        self._engine = engine
        self._hub = hub
        self._metrics = metrics
        self._replica = replica
        self._model = model
        self._defaults = defaults
        self._max_active_per_user = max_active_per_user
        self._prompts = PromptBuilder(store, engine)
        self._runs: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.draining = False

    @property
    def num_active(self) -> int:
        return len(self._runs)

    def local(self, response_id: str) -> Run | None:
        """The run if this worker produces it."""
        return self._runs.get(response_id)

    def leases(self) -> dict[str, int]:
        """Response id → `lease_until` of every own run."""
        return {run.response_id: run.lease_until for run in self._runs.values()}

    def local_of_session(self, session_id: str) -> list[Run]:
        return [run for run in self._runs.values() if run.session_id == session_id]

    # ---- begin ----------------------------------------------------------------------------------

    async def create(
        self, uid: str, frame: CreateResponse, asker: Subscription
    ) -> tuple[str, bool]:
        """Begin an answer, or find the one that this key began before: its id, and True then.

        The viewers' frames go through the hub, the asker's with its `event_id`. Cancelling the
        caller does not cancel this: what the store has begun must also be produced. Raises
        `ApiError` and the store's errors; then nothing was stored.
        """
        return await asyncio.shield(self._start(self._create(uid, frame, asker)))

    async def _create(
        self, uid: str, frame: CreateResponse, asker: Subscription
    ) -> tuple[str, bool]:
        session, known = await asyncio.gather(
            self._store.session(uid, frame.session_id),
            self._store.known_response(uid, frame.session_id, frame.idempotency_key),
        )
        if known is not None:  # before any other refusal: a repeat must find what it began
            response_id, body_hash = known
            if body_hash != _body_hash(frame):
                raise IdempotencyKeyReused(response_id)
            return response_id, True
        await self._check_admission(uid)
        settings = self._settings(session, frame)
        parent_id = frame.parent_id if frame.parent_id is not None else session.head
        prompt = await self._build_prompt(uid, session.id, parent_id, frame.text, settings)
        run, begun = await self._begin(uid, session, frame, settings)
        if run is None:
            return begun.response_id, True
        if begun.parent_id != parent_id or begun.queued_behind:
            run.prompt = None  # the history moved on: built again when its turn comes
        else:
            self._set_prompt(run, prompt)
        self._runs[run.response_id] = run
        self._hub.local_runs[run.response_id] = run
        self._announce(run, begun, frame, asker)
        self._start(self._run(run, begun, frame, settings))
        if begun.title_empty:
            self._start(self._set_title(uid, session.id, frame.text))
        return run.response_id, False

    async def _check_admission(self, uid: str) -> None:
        if self.draining:
            raise ApiError("draining", "this worker is restarting; connect again")
        if self._max_active_per_user:
            active = sum(run.uid == uid for run in self._runs.values())
            if active >= self._max_active_per_user:
                limit = self._max_active_per_user
                raise ApiError(
                    "rate_limited", f"{limit} answers are running already", retry_after_ms=1000
                )
        try:
            if self._engine.core_state is CoreState.CONNECTING:
                # Another worker may have said that all is ready while we were still joining.
                with contextlib.suppress(TimeoutError):
                    await self._engine.wait_ready(ENGINE_GRACE_SECONDS)
            self._engine.check_admission()
        except (RetryableRequestError, EngineDeadError) as error:
            raise ApiError("engine_unavailable", "the engine is away; try again shortly") from error
        except EngineError as error:
            raise ApiError("queue_full", "too many answers are waiting for the engine") from error

    def _settings(self, session: Session, frame: CreateResponse) -> dict[str, Any]:
        own = {
            name: value
            for name in frame.settings.__struct_fields__
            if (value := getattr(frame.settings, name)) is not None
        }
        max_model_len = self._engine.model_config.max_model_len
        settings = effective_settings(
            self._defaults, self._model, max_model_len, session.settings, own
        )
        if settings["model"] != self._model:
            raise ApiError(
                "model_not_found", "this server does not have that model", param="settings.model"
            )
        return settings

    async def _build_prompt(
        self, uid: str, session_id: str, leaf: str | None, text: str, settings: dict[str, Any]
    ) -> Prompt:
        return await self._prompts.build(
            uid,
            session_id,
            leaf,
            text,
            system=settings.get("system") or "",
            max_output_tokens=settings["max_output_tokens"],
        )

    async def _begin(
        self, uid: str, session: Session, frame: CreateResponse, settings: dict[str, Any]
    ) -> tuple[Run | None, BegunResponse]:
        """Store the beginning; with `on_busy: cancel`, after the active answer has ended."""
        for _ in range(MAX_SUPERSEDE_TRIES):
            try:
                return await self._begin_once(uid, session, frame, settings)
            except ResponseInProgress as busy:
                if frame.on_busy != "cancel":
                    raise
                await self._supersede(uid, busy.response_id)
        return await self._begin_once(uid, session, frame, settings)

    async def _begin_once(
        self, uid: str, session: Session, frame: CreateResponse, settings: dict[str, Any]
    ) -> tuple[Run | None, BegunResponse]:
        now_ms = time.time_ns() // 1_000_000
        response_id = new_response_id(session.id)
        guess = frame.parent_id if frame.parent_id is not None else session.head
        user = Message(new_message_id(), guess, "user", frame.text, "completed", now_ms)
        assistant = Message(
            new_message_id(),
            user.id,
            "assistant",
            "",
            "in_progress",
            now_ms,
            response_id=response_id,
            model=self._model,
        )
        response = {
            "id": response_id,
            "session_id": session.id,
            "message_id": assistant.id,
            "parent_id": user.id,
            "model": self._model,
            "settings": settings,
            "status": "queued",
            "created_at": now_ms,
        }
        created = ObjectEvent(
            {
                "type": "response.created",
                "response": response,
                "idempotency_key": frame.idempotency_key,
            }
        )
        given = {} if frame.parent_id is None else {"parent_id": frame.parent_id}
        # Claimed first: what the script publishes may be here before its reply is.
        self._hub.claimed.add(response_id)
        begun: BegunResponse | None = None
        try:
            begun = await self._store.begin_response(
                uid,
                session.id,
                idempotency_key=frame.idempotency_key,
                body_hash=_body_hash(frame),
                owner=self._replica,
                response_id=response_id,
                user_message=user,
                assistant_message=assistant,
                on_busy="queue" if frame.on_busy == "queue" else "reject",
                created_event=created.data,
                model=self._model,
                settings=settings,
                seed=settings["seed"],
                **given,  # type: ignore[arg-type]
            )
        finally:
            if begun is None or begun.replayed:
                self._hub.claimed.discard(response_id)
        if begun.replayed:
            return None, begun
        run = Run(response, assistant, uid=uid, fence=begun.fence, created=created)
        run.lease_until = begun.lease_until
        run.user_message = user.with_parent(begun.parent_id)
        return run, begun

    def _set_prompt(self, run: Run, prompt: Prompt) -> None:
        run.prompt = prompt
        run.prompt_from = prompt.first_message_id

    def _announce(
        self, run: Run, begun: BegunResponse, frame: CreateResponse, asker: Subscription
    ) -> None:
        """message.created twice, response.created, and the dot in the sidebars."""
        for place, message in enumerate((run.user_message, run.message)):
            event = {"type": "message.created", "message": message.event_wire()}
            self._hub.publish_session(run.session_id, begun.offset - 1 + place, event)
        asker.put_created(run.response_id, run.fence, run.events[0], frame.event_id)
        self._hub.publish_events(run.response_id, run.fence, 1, run.events[:1])
        self._show_activity(run, active=True)
        logger.info("response created", session_id=run.session_id, response_id=run.response_id)

    def _show_activity(self, run: Run, *, active: bool, status: str | None = None) -> None:
        frame = {"type": "session.activity", "session_id": run.session_id, "active": active}
        if status is not None:
            frame["status"] = status
        self._hub.spawn(self._hub.tell_user(run.uid, run.session_id, frame))

    async def _set_title(self, uid: str, session_id: str, text: str) -> None:
        title = clean_title(text)[:TITLE_CHARACTERS]
        with contextlib.suppress(SessionError):
            session = await self._store.update_session(uid, session_id, title=title, by="policy")
            await self.publish_updated(session, by="policy")

    async def publish_updated(
        self, session: Session, by: str = "user", besides: Watcher | None = None
    ) -> dict[str, Any]:
        """`session.updated` to the viewers and the sidebars; returns the frame."""
        frame = {
            "type": "session.updated",
            "session_id": session.id,
            "session": session.wire(),
            "by": by,
            "offset": session.offset,
        }
        self._hub.publish_session(session.id, session.offset, frame)
        await self._hub.tell_user(session.uid, session.id, frame, besides=besides)
        return frame

    # ---- run ------------------------------------------------------------------------------------

    async def _run(
        self, run: Run, begun: BegunResponse, frame: CreateResponse, settings: dict[str, Any]
    ) -> None:
        producer = self._producer(run)
        finished: Finished | None = None
        try:
            if begun.cancel:  # a stop was waiting for this answer's key
                run.stop(Stop())
                run.mark_stop_stored()
            if begun.queued_behind:
                producer.show_queued("session", begun.queued_behind)
                await producer.hold()
            if run.prompt is None and run.stopping is None:
                parent = run.user_message.parent_id
                self._set_prompt(
                    run,
                    await self._build_prompt(run.uid, run.session_id, parent, frame.text, settings),
                )
            token_ids = run.prompt.token_ids if run.prompt else []
            room = self._engine.model_config.max_model_len - len(token_ids)
            max_tokens = min(settings["max_output_tokens"], room)
            params = sampling_params(settings, max_tokens, self._engine.get_tokenizer().chat_stop)
            finished = await producer.produce(token_ids, params)
        except Exception:
            logger.exception("run failed", response_id=run.response_id)
            finished = await producer.finish(End("failed", "engine_error", "unknown"))
        finally:
            self._forget(run)
        await self._promote_next(finished)

    async def finish(self, run: Run, end: End) -> None:
        """End a run that was taken over: it produces nothing more, only its end is missing."""
        finished = await self._producer(run).finish(end)
        self._show_activity(run, active=False, status=run.status)
        await self._promote_next(finished)

    def _producer(self, run: Run) -> Producer:
        return Producer(
            run, store=self._store, engine=self._engine, hub=self._hub, metrics=self._metrics
        )

    def _forget(self, run: Run) -> None:
        self._runs.pop(run.response_id, None)
        self._hub.local_runs.pop(run.response_id, None)
        self._hub.claimed.discard(run.response_id)
        self._show_activity(run, active=False, status=run.status)

    async def _promote_next(self, finished: Finished | None) -> None:
        """The session's next answer may start, wherever its owner is."""
        if finished is None or finished.next_response_id is None:
            return
        response_id = finished.next_response_id
        if response_id in self._runs:
            self.promote(response_id)
            return
        with contextlib.suppress(StoreUnavailable, ResponseNotFound):
            record = await self._store.run(None, response_id)
            command = {"type": "promote", "response_id": response_id}
            await self._store.publish_control(record.owner, command)

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that `drain` waits for and `close` cancels."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- stop -----------------------------------------------------------------------------------

    def stop(self, run: Run, stop: Stop) -> None:
        """Stop an own answer: the gate closes before this returns; a second stop changes nothing.

        `run.stop_is_stored` becomes True once the wish is in the store.
        """
        if run.stop(stop):
            self._hub.spawn(self._engine.abort(run.response_id))
            self._start(self._store_stop(run, stop))

    async def _store_stop(self, run: Run, stop: Stop) -> None:
        try:
            await self._store.request_cancel(
                None, run.response_id, by=stop.by, reason=stop.reason, seen=stop.seen
            )
        except RunEnded as ended:
            if ended.status != "cancelled":
                return
        except SessionError:
            return  # the end itself will be stored, or the run is lost anyway
        run.mark_stop_stored()

    async def _supersede(self, uid: str, response_id: str) -> None:
        """End the active answer to make room for the next one."""
        if (run := self._runs.get(response_id)) is not None:
            self.stop(run, Stop("user", "superseded"))
            await run.done.wait()
            return
        with contextlib.suppress(RunEnded, ResponseNotFound):
            asked = await self._store.request_cancel(uid, response_id, reason="superseded")
            await self._store.publish_control(
                asked.owner, {"type": "cancel", "response_id": response_id}
            )
            while True:
                if not (await self._store.run(uid, response_id)).is_live:
                    return
                await asyncio.sleep(REMOTE_POLL_SECONDS)

    async def stop_as_stored(self, response_id: str) -> None:
        """Another worker stored a stop of an own answer."""
        if (run := self._runs.get(response_id)) is not None:
            await self._producer(run).stop_as_stored()

    def promote(self, response_id: str) -> None:
        """An own answer's turn has come."""
        if (run := self._runs.get(response_id)) is not None:
            run.promoted.set()

    def stop_deleted(self, session_id: str) -> None:
        """The session is gone: its answers end, and there is nothing to store."""
        for run in self.local_of_session(session_id):
            run.is_deleted = True
            if run.stop(Stop("user", "session_deleted")):
                self._hub.spawn(self._engine.abort(run.response_id))

    # ---- the worker ends ------------------------------------------------------------------------

    async def drain(self, seconds: float) -> None:
        """Accept nothing new, let answers finish for a while, then end the rest as `incomplete`."""
        self.draining = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for run in list(self._runs.values()):
            if run.stop(Stop("policy", "server_shutdown")):
                self._hub.spawn(self._engine.abort(run.response_id))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=DRAIN_GRACE_SECONDS)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _body_hash(frame: CreateResponse) -> str:
    """Names what was asked for, so that a key used for something else is noticed."""
    settings = msgspec.to_builtins(frame.settings)
    body = orjson.dumps(
        [frame.text, frame.parent_id, settings, frame.on_busy], option=orjson.OPT_SORT_KEYS
    )
    return hashlib.sha256(body).hexdigest()[:32]
