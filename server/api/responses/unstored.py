"""A response of which nothing is stored: its client must stay."""

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import orjson
from starlette.responses import Response

from server.access.rates import budget_headers
from server.api.openai.replies import ReplyStream, whole
from server.api.openai.streams import ClientGone, gone, until_gone
from server.api.responses.answer.answer_events import AnswerEvents
from server.api.responses.answer.emitter import AnswerEvent
from server.api.responses.answer.error_event import error_event
from server.api.responses.answer.response_object import Outcome
from server.api.responses.event_stream import encode
from server.api.responses.request import Asking, ResponsesRequest
from server.api.rest.operation import Call
from server.commands.services import Services
from server.commands.stateless.answer import StatelessAnswer
from server.commands.stateless.asked import Asked, Delta, Ended, Heard
from server.commands.stateless.reply import Reply
from server.commands.stateless.tries import Try
from server.engines.client import ParsedArguments, ParsedBegin
from server.generation.answers import Part, Said
from server.generation.chat_messages import chat_messages
from server.live.response_log import REASONING_DELTA
from server.protocol.calls import CallLedger
from server.protocol.errors import ApiError
from sessions.model.events import ObjectEvent, TextEvent
from sessions.model.ids import new_message_id
from sessions.model.records import Message

ENDS = {
    "stop": ("completed", "eos"),
    "tool_calls": ("completed", "tool_calls"),
    "length": ("incomplete", "max_output_tokens"),
    "deadline": ("incomplete", "deadline"),
}


def asked_of(asking: Asking, model: str, messages: Sequence[Message]) -> Asked:
    """What the engine is asked, of a conversation that ends with these messages."""
    settings = asking.given_settings()
    system = settings.pop("system", "")
    variables = {}
    if (effort := asking.other_settings.get("reasoning_effort")) is not None:
        variables["reasoning_effort"] = effort
    return Asked(
        model=model,
        messages=chat_messages(system, messages, with_calls=True),
        settings=settings,
        variables=variables,
    )


async def answer_unstored(
    services: Services, call: Call, request: ResponsesRequest, asked: Asked, tried: Try
) -> Response:
    """Raises `ApiError` and the store's errors as long as nothing was sent."""

    async def make(reply: Reply) -> None:
        async with AsyncExitStack() as leave:
            answer = await services.stateless.answers.begin(call.uid, asked, leave)
            reply.headers = budget_headers(answer.budget)
            events = UnstoredEvents(answer, {**request.echo(), "model": asked.model})
            if request.stream:
                await _put_events(reply, answer, events)
            else:
                await answer.tell(events.take_first_or_more)
                reply.put(orjson.dumps(events.response()))

    async with AsyncExitStack() as leave:
        try:
            reading = services.stateless.repeats.read(tried, make, leave)
            leave.enter_context(services.identities.holding(call.user, reading.refuse))
            first = await until_gone(call.request.receive, reading.next())
        except ClientGone:
            return gone()
        reading.give()
        if request.stream:
            return ReplyStream(first, reading, leave.pop_all().aclose, _encode_error)
        return whole(first, reading)


async def _put_events(reply: Reply, answer: StatelessAnswer, events: "UnstoredEvents") -> None:
    """Raises `ApiError` as long as there is none."""
    number = 0

    def hear(heard: Heard) -> None:
        nonlocal number
        if new := events.take_first_or_more(heard):
            number = new[-1].sequence_number + 1
            reply.put(encode(new))

    try:
        await answer.tell(hear)
    except ApiError as error:
        if not number:
            raise
        reply.put(_encode_error(error, number))


def _encode_error(error: ApiError, number: int) -> bytes:
    return encode([error_event(error, number)])


class UnstoredEvents:
    """What is heard of an answer, as events."""

    def __init__(self, answer: StatelessAnswer, echo: dict[str, Any]) -> None:
        self._answer = answer
        asked = {**echo, "id": answer.id, "created_at": int(time.time())}
        self._events = AnswerEvents(asked, new_message_id())
        self._calls = CallLedger(answer.id)
        self._has_heard = False
        self.response = self._events.response
        self.begin = self._events.begin

    def take_first_or_more(self, heard: Heard) -> list[AnswerEvent]:
        """The same as `take`, after what `begin` gives. Raises `ApiError` too if nothing is said
        because the engine has failed: its client tries again.
        """
        if self._has_heard:
            return self.take(heard)
        if isinstance(heard, Ended) and heard.reason == "error":
            raise ApiError("engine_unavailable", heard.problem)
        begin, new = self.begin(), self.take(heard)
        self._has_heard = True
        return [*begin, *new]

    def take(self, heard: Heard) -> list[AnswerEvent]:
        """Raises `ApiError` for what the engine does not take."""
        if isinstance(heard, Delta):
            found: list[AnswerEvent] = []
            logprobs = tuple(dict(each) for each in heard.logprobs)
            for part in heard.parts:
                found += self._take(part, logprobs)
                logprobs = ()
            return found
        if heard.reason == "refused":
            raise ApiError("invalid_field", heard.problem, param=heard.param or None)
        return self._events.end(self._outcome(heard))

    def cancelled(self) -> list[AnswerEvent]:
        """Its client has stopped it."""
        return self._events.end(Outcome("cancelled", "client_cancelled", "", self._usage()))

    def _take(self, part: Said, logprobs: Sequence[dict[str, Any]]) -> list[AnswerEvent]:
        match part:
            case Part(text, True):
                return self._events.take(ObjectEvent({"type": REASONING_DELTA, "delta": text}))
            case Part(text):
                return self._events.take(TextEvent(0, text, logprobs=tuple(logprobs)))
            case ParsedBegin(name=name):
                return self._events.take(ObjectEvent(self._calls.begin(name).wire()))
            case ParsedArguments(index=place, delta=delta):
                return self._events.take(ObjectEvent(self._calls.add(place, delta).wire()))
            case _:
                ends = self._calls.end(part.index, is_valid=part.is_valid)
                return [each for end in ends for each in self._events.take(ObjectEvent(end.wire()))]

    def _outcome(self, ended: Ended) -> Outcome:
        status, reason = ENDS.get(ended.reason, ("failed", "engine_error"))
        return Outcome(status, reason, ended.problem, self._usage(), int(time.time()))

    def _usage(self) -> dict[str, int]:
        return {
            "input_tokens": len(self._answer.prompt_token_ids),
            "cached_tokens": self._answer.num_cached_tokens,
            "output_tokens": self._answer.num_output_tokens,
        }
