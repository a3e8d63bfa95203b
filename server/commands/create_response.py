"""`ResponseCreator`: what happens between a `response.create` and the run that answers it.

Admission, settings, prompt and the script that stores the beginning are here; `runs.py` has what
follows. Nothing of a refused frame is stored.
"""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import orjson
import structlog
from msgspec import UnsetType
from starlette.requests import HTTPConnection

from server.access.rates import budget_entry
from server.commands.admission import Admission
from server.commands.doors.brought import Brought
from server.commands.reply_target import ReplyTarget, ReplyTargets
from server.engines.client import ServedModel
from server.engines.models import Models
from server.generation.prompts import Prompt, PromptBuilders
from server.generation.sampling import check_settings, effective_settings, offered_tools
from server.live.hub import Hub
from server.live.subscription import Subscription
from server.protocol.client_frames import CreateResponse
from server.protocol.encoding import of_stored
from server.protocol.errors import ApiError
from server.protocol.objects import MessageObject, QueueObject, ResponseObject, SettingsObject
from server.protocol.server_frames import (
    CreatedEntry,
    MessageCreated,
    MessageUpdated,
    QueueUpdated,
    RateLimitsUpdated,
    SessionEntry,
)
from server.protocol.store_errors import translated
from server.protocol.titles import TITLE_CHARACTERS, clean_title
from server.runs.quotas.active_limit import ActiveLimit, room_entry
from server.runs.quotas.group_tokens import give_back, hold_tokens
from server.runs.run import Run
from server.runs.runs import Runs
from server.telemetry.tracing import AnswerTrace, AnswerTracing
from sessions.background import start
from sessions.model.errors import (
    IdempotencyKeyReused,
    MessageChanged,
    ResponseInProgress,
    SessionError,
)
from sessions.model.events import ObjectEvent
from sessions.model.ids import is_response_id, new_response_id
from sessions.model.queue import NextRound, TakenInput
from sessions.model.quotas import Budget
from sessions.model.records import UNSET, Message, Session, Unset
from sessions.model.replies import BegunResponse
from sessions.store.kept.responses import KeptResponse
from sessions.store.store import SessionStore

if TYPE_CHECKING:  # a server without tools imports nothing of them
    from server.commands.queue.prompt_ahead import PromptAhead
    from server.commands.tools.offering import ToolOffers

logger = structlog.get_logger("server")

MAX_TRIES = 4  # each means that something else began or ended in the session meanwhile


@dataclass(frozen=True, slots=True)
class _Wish:
    """What is asked, by whom, and who hears of it."""

    uid: str
    frame: CreateResponse
    asker: Subscription | None
    taken: TakenInput | None  # of the session's queue, where it has waited
    session: Session | None  # as it was read with that queue
    trace: AnswerTrace | None
    next_round: NextRound | None = None  # what is asked, if the server itself does
    brought: Brought | None = None  # by a door that is not one of chat.v1
    ahead: "PromptAhead | None" = None  # what may be its prompt

    @property
    def body_hash(self) -> str:
        if self.brought is not None:
            return self.brought.body_hash
        return _body_hash(self.frame) if self.taken is None else self.taken.items[0].body_hash


class ResponseCreator:
    """Begins the answers of one worker."""

    def __init__(
        self,
        *,
        store: SessionStore,
        hub: Hub,
        runs: Runs,
        prompts: PromptBuilders,
        replica: str,
        models: Models,
        admission: Admission,
        refresh_models: Callable[[], Awaitable[None]] | None = None,
        limit: ActiveLimit,
        tracing: AnswerTracing | None = None,
        tools: "ToolOffers | None" = None,
    ) -> None:
        self._store = store
        self._hub = hub
        self._runs = runs
        self._prompts = prompts
        self._replica = replica
        self._models = models
        self._admission = admission
        self._refresh_models = refresh_models
        self._limit = limit
        self._tools = tools
        self._tracing = tracing
        self._targets = ReplyTargets(store)

    async def create(
        self,
        uid: str,
        frame: CreateResponse,
        asker: Subscription | None = None,
        request: HTTPConnection | None = None,
        *,
        taken: TakenInput | None = None,
        session: Session | None = None,
        next_round: NextRound | None = None,
        brought: Brought | None = None,
        ahead: "PromptAhead | None" = None,
    ) -> tuple[str, bool]:
        """Begin an answer, or find the one that this key began before: its id, and True then.

        The viewers' frames go through the hub, the asker's with its `event_id`. Cancelling the
        caller does not cancel this: what the store has begun must also be produced. `request` is
        the one over HTTP by which the frame came, which may name the asker's span. `taken`: the
        question leaves the session's queue, which was read with `session`; nobody asks any more.
        `next_round`: likewise, and what tools gave back is in the place of a question.
        `brought`: the messages to store, in place of what the frame says as `input`.
        `ahead`: a prompt that was begun before, and is taken if it is the one that is needed.
        Raises `ApiError` and the store's errors; then nothing was stored, but for a
        `StoreUnavailable`.
        """
        if self._tracing is None:
            wish = _Wish(uid, frame, asker, taken, session, None, next_round, brought, ahead)
            return await self._runs.see_through(self._create(wish))
        trace = self._tracing.begin(frame.session_id, frame.traceparent, frame.tracestate, request)
        wish = _Wish(uid, frame, asker, taken, session, trace, next_round, brought, ahead)
        return await self._runs.see_through(self._create_traced(wish, trace))

    async def _create_traced(self, wish: _Wish, trace: AnswerTrace) -> tuple[str, bool]:
        try:
            response_id, replayed = await self._create(wish)
        except Exception as error:
            trace.refuse(_code(error))
            raise
        if replayed:
            trace.replay(response_id)
        return response_id, replayed

    async def _create(self, wish: _Wish) -> tuple[str, bool]:
        uid, trace, session = wish.uid, wish.trace, wish.session
        if session is None:
            session, replayed = await self._look_up(wish)
            if replayed is not None:  # before any other refusal: a repeat must find what it began
                return replayed, True
        following = wish.next_round
        name = self._name(session, wish.frame) if following is None else following.settings["model"]
        with self._models.using(name):
            budget = await self._admission.check(uid, name, is_promised=following is not None)
            if trace is not None:
                trace.passed("admission")
            with self._admission.beginning():
                begun = await self._begin(wish, session, budget)
        if budget is not None and not begun[1] and wish.asker is not None:
            wish.asker.outbox.put(RateLimitsUpdated(rate_limits=[budget_entry(budget)]))
        return begun

    async def _look_up(self, wish: _Wish) -> tuple[Session, str | None]:
        """The session, and what the same key began before. Raises `IdempotencyKeyReused`."""
        frame = wish.frame
        session, known = await asyncio.gather(
            self._store.sessions.get(wish.uid, frame.session_id),
            self._store.responses.known(wish.uid, frame.session_id, frame.idempotency_key),
        )
        if known is None:
            return session, None
        response_id, body_hash = known
        if body_hash != wish.body_hash or not is_response_id(response_id):  # or it waits in a queue
            raise IdempotencyKeyReused(response_id)
        return session, response_id

    async def _begin(
        self, wish: _Wish, session: Session, budget: Budget | None
    ) -> tuple[str, bool]:
        """Try until the store takes it; `on_busy: cancel` ends what is in the way.

        That is the answer that was active: those that wait in the session keep their places, and
        the new one comes after them.
        """
        uid, frame = wish.uid, wish.frame
        if wish.next_round is None:
            settings = await self._settings(session, frame, wish.brought)
        else:  # those of the answer that it follows
            settings = dict(wish.next_round.settings)
        waits = frame.on_busy == "queue"
        superseded: str | None = None
        for tries_left in reversed(range(MAX_TRIES)):
            try:
                target = await self._target(wish, session)
                return await self._begin_once(wish, session, settings, target, budget, waits=waits)
            except ResponseInProgress as busy:
                if frame.on_busy != "cancel" or not tries_left:
                    raise
                waits = superseded not in (None, busy.response_id)  # the next one has had its turn
                if waits:
                    continue
                superseded = busy.response_id
                await self._runs.supersede(uid, busy.response_id)
                session = await self._store.sessions.get(uid, session.id)
            except MessageChanged:
                if not tries_left:
                    raise
        raise AssertionError("the last try raises")

    async def _begin_once(
        self,
        wish: _Wish,
        session: Session,
        settings: dict[str, Any],
        target: ReplyTarget,
        budget: Budget | None,
        *,
        waits: bool,
    ) -> tuple[str, bool]:
        uid, frame, trace = wish.uid, wish.frame, wish.trace
        ahead = wish.ahead
        try:
            prompt = None if ahead is None else await ahead.take(target, settings)
            if prompt is None:
                ahead, prompt = None, await self._prompt(uid, session, settings, target)
        except ApiError as error:
            if wish.next_round is None or error.type == "overloaded_error":
                raise
            prompt = None  # it was promised: it begins, and ends by what is wrong
        if trace is not None:
            trace.passed("prompt")
        response_id = new_response_id(session.id)
        replaces = frame.on_busy == "cancel" and session.active_response_id is not None
        replaces = replaces or wish.next_round is not None  # the slot of the one before may go late
        allowance = await self._store.allowances.of(uid)
        group, room = allowance.group, None
        if self._limit.limit or allowance.limits_answers:
            room = await self._limit.take(uid, response_id, instead=replaces)
        num_held, run, is_asked = None, None, False
        is_current: asyncio.Task[bool] | None = None
        try:
            if group is not None and prompt is not None and wish.next_round is None:
                is_asked = True  # also if the reply is lost
                num_held = await self._hold(group, response_id, settings, prompt)
            if wish.brought is not None:
                await wish.brought.prepare()
            if ahead is not None:  # what was deleted meanwhile is looked for meanwhile
                is_current = start(ahead.is_current())
            run, begun = await self._store_beginning(
                wish, session, settings, target, response_id, waits=waits, group=group
            )
        finally:
            if run is None:
                if is_current is not None:
                    is_current.cancel()
                self._limit.free(uid, response_id)
                if group is not None and is_asked:
                    self._runs.spawn(give_back(self._store.budgets, group, response_id))
        if run is None:
            return begun.response_id, True
        if trace is not None:
            trace.passed("store", {"parley.store.call": "begin"})
            trace.asked(run.response_id, settings)
            run.trace = trace
        above = begun.parent_id if target.before else run.user_message.parent_id
        follows_leaf = above == target.leaf and not begun.queued_behind
        if is_current is not None and not await is_current:
            prompt = None
        if prompt is not None and follows_leaf and prompt.is_settled:
            run.set_prompt(prompt)  # otherwise the history moved on: built when its turn comes
        run.tokens_left = None if budget is None else budget.own_left
        run.group, run.tokens_held = group, num_held
        self._runs.add(run)
        self._announce(run, begun, target, wish)
        if room is not None and wish.asker is not None:
            wish.asker.outbox.put(RateLimitsUpdated(rate_limits=[room_entry(room)]))
        self._runs.start(run, begun)
        is_question = wish.next_round is None and frame.input is not None and not frame.outputs
        if begun.title_empty and is_question and not begun.hidden:
            self._runs.spawn(self._set_title(run, frame.text))
        return run.response_id, False

    async def _hold(
        self, group: str, response_id: str, settings: Mapping[str, Any], prompt: Prompt
    ) -> int:
        """What the user's group holds for the answer. Raises `QuotaExceeded`."""
        num_prompt = len(prompt.token_ids)
        room = self._models.engine(settings["model"]).model_config.max_model_len - num_prompt
        max_tokens = min(settings["max_output_tokens"], room)
        return await hold_tokens(self._store.budgets, group, response_id, num_prompt, max_tokens)

    # ---- what is answered, and how --------------------------------------------------------------

    async def _target(self, wish: _Wish, session: Session) -> ReplyTarget:
        if wish.brought is not None:
            return ReplyTarget.of_brought(wish.brought, session.head)
        if wish.next_round is None:
            return await self._targets.of(wish.uid, session, wish.frame)
        return await self._targets.of_round(wish.uid, session.id, wish.next_round.message_id)

    async def _prompt(
        self, uid: str, session: Session, settings: dict[str, Any], target: ReplyTarget
    ) -> Prompt | None:
        """None while the model is loaded: then it is made when that is there."""
        name = settings["model"]
        if not self._models.can_prompt(name):
            return None
        return await self._prompts.of(name).build(
            uid,
            session.id,
            target.leaf,
            target.text,
            settings,
            target.base,
            target.outputs,
            target.before,
        )

    def _name(self, session: Session, frame: CreateResponse) -> str:
        """Of the model that answers: as the frame or the session says, or as the session began."""
        given = frame.settings.given().get("model") or session.settings.get("model")
        return str(given or self._models.of_session(session.model))

    async def _settings(
        self, session: Session, frame: CreateResponse, brought: Brought | None
    ) -> dict[str, Any]:
        name = self._name(session, frame)
        if not self._models.is_known(name) and self._refresh_models is not None:
            await self._refresh_models()  # another worker may have loaded it just now
        model = self._chosen(name)
        settings = effective_settings(
            model, self._models.context(name), session.settings, frame.settings.given()
        )
        if brought is not None:
            settings |= brought.settings
        tools = offered_tools(settings)
        if any(tool["type"] == "mcp" for tool in tools):
            if self._tools is None:
                message = "this server runs no tools: its operator has configured none"
                raise ApiError("tool_not_found", message, param="settings.tools")
            settings["tools"] = await self._tools.expanded(tools)
        check_settings(self._models.engine(name), settings)
        return settings

    def _chosen(self, name: str) -> ServedModel:
        model = self._models.chosen(name)
        if model is None:
            raise ApiError(
                "model_not_found", "this server does not have that model", param="settings.model"
            )
        return model

    # ---- what is stored and shown of it ---------------------------------------------------------

    async def _store_beginning(
        self,
        wish: _Wish,
        session: Session,
        settings: dict[str, Any],
        target: ReplyTarget,
        response_id: str,
        *,
        waits: bool,
        group: str | None,
    ) -> tuple[Run | None, BegunResponse]:
        """The run that the store has begun, or None and what the same key began before."""
        uid, frame = wish.uid, wish.frame
        model = self._chosen(settings["model"])  # which may have been unloaded meanwhile
        now_ms = time.time_ns() // 1_000_000
        new_question = target.new_question(now_ms)
        question = new_question or target.question
        assert question is not None  # a target without a stored question asks a new one
        answer = target.answer(response_id, question.id, model.name, now_ms)
        response = ResponseObject(
            id=response_id,
            session_id=session.id,
            message_id=answer.id,
            parent_id=question.id,
            model=model.name,
            settings=cast("SettingsObject", settings),  # with what a newer version has set
            status="queued",
            created_at=now_ms,
            priority=frame.priority or msgspec.UNSET,
            exactness=self._models.engine(model.name).exactness.value,
            text_length=answer.text_length if target.base else msgspec.UNSET,
        )
        entry = CreatedEntry(response=response, idempotency_key=frame.idempotency_key)
        created = ObjectEvent(entry.wire())
        # Claimed first: what the script publishes may be here before its reply is.
        self._hub.rooms.claim(response_id)
        begun: BegunResponse | None = None
        try:
            begun = await self._store.responses.begin(
                uid,
                session.id,
                idempotency_key=frame.idempotency_key,
                body_hash=wish.body_hash,
                owner=self._replica,
                response_id=response_id,
                user_message=new_question,
                assistant_message=answer,
                parent_id=_parent_argument(wish, question, target),
                continues=target.version,
                on_busy="queue" if waits else "reject",
                created_event=created.data,
                model=model.name,
                settings=settings,
                seed=settings["seed"],
                fields=_run_fields(wish, session, group),
                taken=wish.taken,
                next_round=wish.next_round,
                before=target.before,
                kept=_kept(wish.brought, answer, now_ms),
            )
        finally:
            if begun is None or begun.replayed:
                self._hub.rooms.unclaim(response_id)
        if begun.replayed:
            return None, begun
        run = Run(
            created.data["response"],
            answer,
            uid=uid,
            fence=begun.fence,
            created=created,
            base=target.base,
        )
        run.model = model
        run.lease_until = begun.lease_until
        above = target.before[-1].id if target.before else begun.parent_id
        run.user_message = question.with_parent(above) if new_question else question
        run.is_hidden = begun.hidden
        run.place = begun.place
        run.is_brought = wish.brought is not None
        return run, begun

    def _announce(self, run: Run, begun: BegunResponse, target: ReplyTarget, wish: _Wish) -> None:
        """The messages that are new or written on, response.created, and the sidebars' dot."""
        kind = MessageUpdated if target.version else MessageCreated
        messages = [run.message] if target.question else [run.user_message, run.message]
        if target.before:
            messages = [
                target.before[0].with_parent(begun.parent_id),
                *target.before[1:],
                *messages,
            ]
        entries: list[SessionEntry] = [
            kind(
                session_id=run.session_id,
                offset=offset,
                message=of_stored(MessageObject, message.event_wire()),
            )
            for offset, message in enumerate(messages, begun.offset - len(messages) + 1)
        ]
        if wish.taken is not None:
            left = replace(wish.taken.rest, revision=wish.taken.queue.revision + 1)
            queue = QueueUpdated(
                session_id=run.session_id,
                offset=begun.offset - len(messages),
                queue=of_stored(QueueObject, left.wire(whole=False)),
            )
            entries = [queue, *entries]
        self._hub.publish_begun(run, entries, wish.asker, wish.frame.event_id)
        logger.info("response created", session_id=run.session_id, response_id=run.response_id)

    async def _set_title(self, run: Run, text: str) -> None:
        """After the first text: it takes several calls of the store, for a name in a list."""
        await run.has_spoken.wait()
        title = clean_title(text)[:TITLE_CHARACTERS]
        with contextlib.suppress(SessionError):
            session = await self._store.sessions.update(
                run.uid, run.session_id, title=title, by="policy"
            )
            await self._hub.publish_updated(session, by="policy")


def _code(error: Exception) -> str:
    """What the asker is sent: a code of the protocol, where there is one."""
    refusal = translated(error) if isinstance(error, SessionError) else error
    return refusal.code if isinstance(refusal, ApiError) else type(error).__name__


def _run_fields(wish: _Wish, session: Session, group: str | None) -> dict[str, str | int]:
    """What the run says of where it came from; absent of what comes by chat.v1."""
    fields: dict[str, str | int] = {}
    if wish.trace is not None:
        fields |= wish.trace.headers
    if wish.brought is not None:
        fields["door"] = wish.brought.door
    if session.hidden:
        fields["hidden"] = 1
    if group is not None:
        fields["group"] = group
    return fields


def _kept(brought: Brought | None, answer: Message, now_ms: int) -> bytes | None:
    if brought is None:
        return None
    ids = tuple(message.id for message in brought.messages)
    kept = KeptResponse(answer.response_id or "", answer.id, ids, now_ms, brought.asked)
    return kept.encode()


def _parent_argument(wish: _Wish, question: Message, target: ReplyTarget) -> str | Unset | None:
    """Where `Responses.begin` puts what it stores: given, or after the head of that moment.

    What tools gave back belongs to the message that has called them, wherever the head is.
    """
    frame = wish.frame
    if wish.brought is not None:
        return wish.brought.leaf
    if frame.input is None:
        return question.id
    if target.outputs:
        return target.leaf
    return UNSET if isinstance(frame.parent_id, UnsetType) else frame.parent_id


def _body_hash(frame: CreateResponse) -> str:
    """Names what was asked for, so that a key used for something else is noticed."""
    asked: list[Any] = [frame.text, frame.regenerate_of, frame.continue_of]
    asked += [frame.on_busy, frame.priority]
    asked += [] if isinstance(frame.parent_id, UnsetType) else [frame.parent_id]
    asked += [[each.call_id, each.output] for each in frame.outputs]
    body = orjson.dumps([frame.settings.given(), *asked], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(body).hexdigest()[:32]
