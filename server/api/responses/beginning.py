"""`Beginning`: a request → a stored response, in a session of its own or in one that is there."""

import contextlib
import hashlib
import secrets
import time
from collections.abc import Sequence
from typing import Any

import orjson
from starlette.requests import HTTPConnection

from server.api.items.ids import session_of_conversation
from server.api.items.input_items import messages_of, waiting_calls
from server.api.openai.refusals import not_here
from server.api.responses.request import Asking, ResponsesRequest, named_as_given
from server.commands.doors.brought import Brought, nothing
from server.commands.services import Services
from server.protocol.client_frames import CallOutput, CreateResponse
from server.protocol.errors import ApiError, invalid_field
from sessions.model.errors import (
    IdempotencyKeyReused,
    ResponseInProgress,
    ResponseNotFound,
    SessionError,
    SessionNotFound,
    StoreUnavailable,
)
from sessions.model.ids import derived_session_id, is_idempotency_key, session_of
from sessions.model.records import UNSET, Message, Session, Unset
from sessions.store.kept.responses import KeptResponse

DOOR = "responses"
MAX_TAIL = 64  # messages at the end of a branch that are read for calls without outputs


class Place:
    """Where an answer belongs: after which message of which session."""

    def __init__(
        self,
        session: Session | None,
        leaf: str | None,
        *,
        is_head: bool = False,
        conversation: Any = None,
    ) -> None:
        self.session = session  # None: one of its own
        self.leaf = leaf
        self.is_head = is_head  # of that moment, whichever message that is
        self.conversation = conversation  # as the response says it: what is said there stays there


class Beginning:
    """What the routes share: finding the place, and the messages to add there."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._store = services.store

    async def place(self, uid: str, asking: Asking) -> Place:
        """Raises `ApiError` and the store's errors."""
        if asking.previous_response_id is not None:
            return await self._after(uid, asking.previous_response_id)
        given = asking.conversation_id
        if given is None:
            return Place(None, None)
        session_id = session_of_conversation(given)
        try:
            if session_id is None:
                raise SessionNotFound
            session = await self._store.sessions.get(uid, session_id)
        except SessionNotFound:
            problem = "there is no such conversation"
            raise ApiError("session_not_found", problem, param="conversation") from None
        return Place(session, session.head, is_head=True, conversation={"id": given})

    async def _after(self, uid: str, response_id: str) -> Place:
        try:
            leaf, conversation = await self._end_of(uid, response_id)
            session = await self._store.sessions.get(uid, session_of(response_id))
        except (ResponseNotFound, SessionNotFound):
            problem = "there is no such response, or no longer"
            raise ApiError("response_not_found", problem, param="previous_response_id") from None
        return Place(session, leaf, conversation=conversation)

    async def _end_of(self, uid: str, response_id: str) -> tuple[str, Any]:
        """The message of a response, and the conversation that it is in."""
        try:
            kept = await self._store.kept_responses.get(uid, response_id)
        except ResponseNotFound:  # one of chat.v1's is known for a while
            return (await self._store.runs.get(uid, response_id)).message_id, None
        return kept.message_id, kept.asked.get("conversation")

    async def tail(self, uid: str, place: Place, most: int = MAX_TAIL) -> Sequence[Message]:
        """The newest messages before the answer, oldest first."""
        if place.session is None or place.leaf is None:
            return ()
        page = await self._store.messages.path(uid, place.session.id, leaf=place.leaf, limit=most)
        return page.messages

    async def messages(self, uid: str, asking: Asking, place: Place) -> list[Message]:
        """The input, as messages; the last one is what is to be answered. Raises `ApiError`."""
        tail = await self.tail(uid, place)
        if not place.is_head and tail and tail[-1].status == "in_progress":
            raise ResponseInProgress(tail[-1].response_id or "")
        now_ms = time.time_ns() // 1_000_000
        found = messages_of(
            asking.input, at_ms=now_ms, parent_id=place.leaf, waiting=waiting_calls(tail)
        )
        if not found or found[-1].role not in ("user", "tool"):
            last = len(asking.input or ()) - 1
            problem = "the last item is a user's message, or what a call gave back"
            raise not_here(f"input[{last}]", problem)
        return found

    async def begin(
        self, uid: str, request: ResponsesRequest, body: dict[str, Any], http: HTTPConnection
    ) -> tuple[KeptResponse, bool]:
        """A response that is stored, and whether it was begun before, by the same key.

        Raises `ApiError` and the store's errors; then nothing is stored.
        """
        key = _key(http.headers.get("idempotency-key"))
        body_hash = _hash(body)
        settings = request.stored_settings()
        place = await self.place(uid, request)
        session = place.session or self._own_session(uid, key)
        if "idempotency-key" in http.headers:
            # Before any other refusal: a repeat must find what it began.
            begun = await self._begun(uid, session.id, key, body_hash)
            if begun is not None:
                return begun, True
        messages = await self.messages(uid, request, place)
        asked = {**request.echo(), "model": self._model(request, session)}
        if place.conversation is not None:
            asked["conversation"] = place.conversation
        brought = Brought(
            door=DOOR,
            messages=messages,
            leaf=_leaf(place, messages[-1]),
            asked=asked,
            body_hash=body_hash,
            settings=request.other_settings,
            prepare=nothing if place.session is not None else lambda: self._make(uid, key),
        )
        frame = CreateResponse(
            session_id=session.id,
            idempotency_key=key,
            input=_input(messages[-1]),
            settings=settings,
            on_busy="queue",
        )
        with named_as_given():
            response_id, replayed = await self._create(uid, frame, brought, place, session, http)
        return await self._kept(uid, response_id, brought), replayed

    async def _create(
        self,
        uid: str,
        frame: CreateResponse,
        brought: Brought,
        place: Place,
        session: Session,
        http: HTTPConnection,
    ) -> tuple[str, bool]:
        creator = self._services.creator
        if place.session is not None:
            return await creator.create(uid, frame, None, http, brought=brought)
        try:
            return await creator.create(uid, frame, None, http, session=session, brought=brought)
        except (ApiError, SessionError) as error:
            if not isinstance(error, StoreUnavailable):  # else it may have begun
                await self._drop_empty(uid, session.id)
            raise

    async def _drop_empty(self, uid: str, session_id: str) -> None:
        """The session of a response that was refused after that was made."""
        with contextlib.suppress(SessionError):
            if not (await self._store.sessions.get(uid, session_id)).message_count:
                await self._store.sessions.delete(uid, session_id)

    async def _begun(
        self, uid: str, session_id: str, key: str, body_hash: str
    ) -> KeptResponse | None:
        """What the same key began before. Raises `IdempotencyKeyReused`."""
        try:
            known = await self._store.responses.known(uid, session_id, key)
        except SessionNotFound:
            return None
        if known is None:
            return None
        response_id, used_for = known
        if used_for != body_hash:
            raise IdempotencyKeyReused(response_id)
        return await self._store.kept_responses.get(uid, response_id)

    async def _kept(self, uid: str, response_id: str, brought: Brought) -> KeptResponse:
        run = self._services.runs.local(response_id)
        if run is None or run.uid != uid:
            return await self._store.kept_responses.get(uid, response_id)
        ids = tuple(message.id for message in brought.messages)
        return KeptResponse(response_id, run.message.id, ids, run.message.created_at, brought.asked)

    def _model(self, request: ResponsesRequest, session: Session) -> str:
        models = self._services.models
        given = request.model or session.settings.get("model")
        return str(given or models.of_session(session.model))

    # ---- a session of its own -------------------------------------------------------------------

    def _own_session(self, uid: str, key: str) -> Session:
        """As it will be, if the answer begins."""
        return Session(
            id=derived_session_id(uid, key),
            uid=uid,
            title="",
            model=self._services.models.default.name,
            settings={},
            revision=1,
            created_at=0,
            updated_at=0,
            epoch="",
            offset=0,
            head=None,
            message_count=0,
            input_tokens=0,
            output_tokens=0,
            active_response_id=None,
            hidden=True,
        )

    async def _make(self, uid: str, key: str) -> None:
        await self._store.sessions.create(
            uid,
            idempotency_key=key,
            model=self._services.models.default.name,
            life_seconds=self._services.limits.stored_response_seconds,
            hidden=True,
        )


def _leaf(place: Place, question: Message) -> str | Unset | None:
    """What tools gave back belongs to the message that has called them, wherever the head is."""
    return UNSET if place.is_head and question.outputs is None else place.leaf


def _input(question: Message) -> Any:
    if question.outputs is None:
        return question.text
    return [CallOutput(call_id=each["call_id"], output=each["output"]) for each in question.outputs]


def _key(given: str | None) -> str:
    """The client's own, in a room of its own, or one that nobody uses again. Raises `ApiError`."""
    if given is None:
        return secrets.token_urlsafe(16)
    if not is_idempotency_key(given):
        raise invalid_field("Idempotency-Key", "1 to 128 characters of [A-Za-z0-9_-]")
    return f"{DOOR}-{hashlib.sha256(given.encode()).hexdigest()}"


def _hash(body: dict[str, Any]) -> str:
    """Names what is asked for."""
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]
