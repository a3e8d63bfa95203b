"""`Beginnings`: what happens between a `response.create` and the run that answers it.

Admission, settings, prompt and the script that stores the beginning come here; what begun answers
do then is `runs.py`. Nothing is stored of a frame that is refused.
"""

import asyncio
import contextlib
import hashlib
import re
import time
from typing import Any

import msgspec
import orjson
import structlog

from engine import AsyncLLM
from engine.connection import CoreState
from engine.errors import EngineDeadError, EngineError, RetryableRequestError
from server.errors import ApiError
from server.hub import Hub, Subscription
from server.protocol import CreateResponse
from server.run import Run
from server.runs import Runs
from server.sampling import ModelDefaults, effective_settings
from sessions.errors import IdempotencyKeyReused, ResponseInProgress, SessionError
from sessions.records import (
    BegunResponse,
    Message,
    ObjectEvent,
    Session,
    new_message_id,
    new_response_id,
)
from sessions.store import SessionStore

logger = structlog.get_logger("server")

TITLE_CHARACTERS = 60
MAX_SUPERSEDE_TRIES = 3
ENGINE_GRACE_SECONDS = 2.0  # for a worker that has just started to join the core
# Control and bidirectional formatting characters would let a title disguise the rest of a page.
_UNSAFE_IN_TITLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]+")


def clean_title(text: str) -> str:
    """One line without control and bidi characters."""
    return " ".join(_UNSAFE_IN_TITLE.sub(" ", text).split())


class Beginnings:
    """Begins the answers of one worker."""

    def __init__(
        self,
        *,
        store: SessionStore,
        engine: AsyncLLM,
        hub: Hub,
        runs: Runs,
        replica: str,
        model: str,
        defaults: ModelDefaults,
        max_active_per_user: int,
    ) -> None:
        self._store = store
        self._engine = engine
        self._hub = hub
        self._runs = runs
        self._replica = replica
        self._model = model
        self._defaults = defaults
        self._max_active_per_user = max_active_per_user

    async def create(
        self, uid: str, frame: CreateResponse, asker: Subscription
    ) -> tuple[str, bool]:
        """Begin an answer, or find the one that this key began before: its id, and True then.

        The viewers' frames go through the hub, the asker's with its `event_id`. Cancelling the
        caller does not cancel this: what the store has begun must also be produced. Raises
        `ApiError` and the store's errors; then nothing was stored.
        """
        return await asyncio.shield(self._runs.spawn(self._create(uid, frame, asker)))

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
        prompt = await self._runs.build_prompt(uid, session.id, parent_id, frame.text, settings)
        run, begun = await self._begin(uid, session, frame, settings)
        if run is None:
            return begun.response_id, True
        if begun.parent_id != parent_id or begun.queued_behind:
            run.prompt = None  # the history moved on: built again when its turn comes
        else:
            run.set_prompt(prompt)
        self._runs.add(run)
        self._announce(run, begun, frame, asker)
        self._runs.start(run, begun)
        if begun.title_empty:
            self._runs.spawn(self._set_title(uid, session.id, frame.text))
        return run.response_id, False

    async def _check_admission(self, uid: str) -> None:
        if self._runs.draining:
            raise ApiError("draining", "this worker is restarting; connect again")
        if self._max_active_per_user:
            if self._runs.num_active_of(uid) >= self._max_active_per_user:
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
                await self._runs.supersede(uid, busy.response_id)
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

    def _announce(
        self, run: Run, begun: BegunResponse, frame: CreateResponse, asker: Subscription
    ) -> None:
        """message.created twice, response.created, and the dot in the sidebars."""
        for place, message in enumerate((run.user_message, run.message)):
            event = {"type": "message.created", "message": message.event_wire()}
            self._hub.publish_session(run.session_id, begun.offset - 1 + place, event)
        asker.put_created(run.response_id, run.fence, run.events[0], frame.event_id)
        self._hub.publish_events(run.response_id, run.fence, 1, run.events[:1])
        self._hub.show_activity(run.uid, run.session_id, active=True)
        logger.info("response created", session_id=run.session_id, response_id=run.response_id)

    async def _set_title(self, uid: str, session_id: str, text: str) -> None:
        title = clean_title(text)[:TITLE_CHARACTERS]
        with contextlib.suppress(SessionError):
            session = await self._store.update_session(uid, session_id, title=title, by="policy")
            await self._hub.publish_updated(session, by="policy")


def _body_hash(frame: CreateResponse) -> str:
    """Names what was asked for, so that a key used for something else is noticed."""
    settings = msgspec.to_builtins(frame.settings)
    body = orjson.dumps(
        [frame.text, frame.parent_id, settings, frame.on_busy], option=orjson.OPT_SORT_KEYS
    )
    return hashlib.sha256(body).hexdigest()[:32]
