"""`Steering`: words for an answer that is being streamed, and the answer that goes on with them.

They are the words of the session's own steer: kept in its queue before they are acknowledged, so
that no death of a process loses them. The answer that follows is asked as the one before was.
"""

import asyncio
import secrets
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, NoReturn

from msgspec import UNSET, Struct

from server.api.responses.beginning import DOOR
from server.api.responses.socket.events import (
    AcceptedSteer,
    Event,
    FailedSteer,
    SteerAccepted,
    SteerError,
    SteerFailed,
    encode,
)
from server.api.responses.socket.frames import Create, Steer
from server.api.responses.socket.writer import Writer
from server.commands.services import Services
from server.protocol.client_frames import RemoveFromQueue, SteerResponse, check_input, to_struct
from server.protocol.errors import ApiError, invalid_field
from server.protocol.store_errors import translate_store_errors
from sessions.model.errors import SessionError
from sessions.model.ids import session_of
from sessions.model.queue import QUEUED, REMOVED
from sessions.store.kept.responses import KeptResponse

LOOK_SECONDS = (0.01, 0.02, 0.05, 0.1)  # between looks for what follows; the last one repeats
# A refusal's code → what the client reads.
CODES = {"response_not_found": "response_not_found", "queue_full": "too_many_pending_steers"}


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    text: str = ""


class Said(Struct, frozen=True, forbid_unknown_fields=True):
    """A message of a steer's input."""

    role: str
    content: str | list[Part]
    type: str = "message"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Words that are kept, and have not begun."""

    id: str
    idempotency_key: str
    frame: Steer


class Steering:
    """Of one lane, while it streams the answer to one request and what follows that."""

    def __init__(self, services: Services, uid: str, create: Create, writer: Writer) -> None:
        self._services = services
        self._uid = uid
        self._create = create
        self._writer = writer
        self._waiting: list[Waiting] = []
        self._is_over = False  # the answer has ended, and what follows is looked for
        self._turn = asyncio.Lock()  # held while words are being kept

    async def steer(self, frame: Steer) -> None:
        """Keep the words, and say so; or say why not."""
        async with self._turn:
            if self._is_over:
                problem = "the response has ended, and takes no more words"
                await self._fail(frame, "response_already_completed", problem)
                return
            try:
                with translate_store_errors():
                    waiting = await self._keep(frame)
            except ApiError as error:
                code = CODES.get(error.code, "invalid_input")
                await self._fail(frame, code, error.message)
                return
            self._waiting.append(waiting)
        steer = AcceptedSteer(id=waiting.id, previous_response_id=frame.previous_response_id)
        await self._put(SteerAccepted(steer=steer))

    async def _keep(self, frame: Steer) -> Waiting:
        request = self._create.request
        key = secrets.token_urlsafe(16)
        steer = SteerResponse(
            previous_response_id=frame.previous_response_id,
            idempotency_key=key,
            input=words_of(frame.input),
            settings=request.stored_settings(),
        )
        check_input(steer.text)
        kept = await self._services.store.kept_responses.get(self._uid, frame.previous_response_id)
        brought = {
            "door": DOOR,
            "asked": {**kept.asked, "previous_response_id": frame.previous_response_id},
            "settings": request.other_settings,
        }
        accepted = await self._services.queue_changes.steer(self._uid, steer, brought)
        return Waiting(accepted.steer.id, key, frame)

    async def following(self, kept: KeptResponse) -> KeptResponse | None:
        """The answer that follows with what was kept; None if there is none."""
        async with self._turn:
            self._is_over = True
        session_id = session_of(kept.response_id)
        for wait in chain(LOOK_SECONDS, repeat(LOOK_SECONDS[-1])):
            if not self._waiting:
                return None
            begun = await self._begun(session_id)
            if begun is not None:
                self._is_over = False
                return begun
            await asyncio.sleep(wait)
        return None

    async def _begun(self, session_id: str) -> KeptResponse | None:
        """What has begun of it by now; the client hears what was refused, which waits no more."""
        store = self._services.store
        queue = await store.queues.get(self._uid, session_id)
        begun: str | None = None
        for waiting in list(self._waiting):
            known = await store.responses.known(self._uid, session_id, waiting.idempotency_key)
            response_id = None if known is None else known[0]
            item = queue.find(waiting.id)
            if response_id not in (None, QUEUED, REMOVED):
                begun = response_id
                self._waiting.remove(waiting)
            elif item is None or item.error is not None:
                self._waiting.remove(waiting)
                await self._withdraw(session_id, waiting.id)
                error = None if item is None else item.error
                problem = "the words were withdrawn" if error is None else error["message"]
                code = "successor_creation_failed"
                await self._fail(waiting.frame, code, problem, waiting.id)
        return None if begun is None else await store.kept_responses.get(self._uid, begun)

    async def _withdraw(self, session_id: str, item_id: str) -> None:
        with suppress(SessionError):
            frame = RemoveFromQueue(session_id=session_id, item_id=item_id)
            await self._services.queue_changes.change(self._uid, frame)

    async def _fail(
        self, frame: Steer, code: str, problem: str, steer_id: str | None = None
    ) -> None:
        await self._put(failure(frame, code, problem, steer_id))

    async def _put(self, event: Event) -> None:
        await self._writer.send([encode(event, self._create.stream_id)])


def failure(frame: Steer, code: str, problem: str, steer_id: str | None = None) -> SteerFailed:
    """The words come back, with the reason."""
    steer = FailedSteer(
        input=frame.input,
        previous_response_id=frame.previous_response_id,
        id=UNSET if steer_id is None else steer_id,
    )
    return SteerFailed(error=SteerError(code=code, message=problem), steer=steer)


def words_of(given: str | list[Any]) -> str:
    """A user's messages, one after the other. Raises `ApiError`."""
    if isinstance(given, str):
        return given
    texts = []
    for place, item in enumerate(given):
        said: Said = to_struct(item, Said) if isinstance(item, dict) else _refuse(place)
        if said.role != "user" or said.type != "message":
            _refuse(place)
        if isinstance(said.content, str):
            texts.append(said.content)
            continue
        if any(part.type != "input_text" for part in said.content):
            _refuse(place)
        texts.append("".join(part.text for part in said.content))
    return "\n\n".join(texts)


def _refuse(place: int) -> NoReturn:
    raise invalid_field(f"input[{place}]", "words that steer are a user's messages, in text")
