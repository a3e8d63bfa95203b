"""A response of which nothing is stored: its client must stay."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

from starlette.responses import Response

from server.api.openai.streams import ClientGone, TokenStream, gone, next_of, until_gone
from server.api.responses.answer.answer_events import AnswerEvents
from server.api.responses.answer.error_event import error_event
from server.api.responses.answer.response_object import Outcome
from server.api.responses.answer.teller import AnswerEvent
from server.api.responses.event_stream import encode
from server.api.responses.request import Asking, ResponsesRequest
from server.api.rest.event_stream import HttpViewer
from server.api.rest.operation import Call, json_response
from server.commands.services import Services
from server.commands.stateless.answer import StatelessAnswer
from server.commands.stateless.asked import Asked, Delta, Ended, Heard
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
    services: Services, call: Call, request: ResponsesRequest, asked: Asked
) -> Response:
    """Raises `ApiError` and the store's errors as long as nothing was sent."""
    receive, viewer = call.request.receive, HttpViewer(call.uid)
    async with AsyncExitStack() as leave:
        leave.enter_context(services.identities.holding(call.user, viewer.put_error))
        try:
            beginning = services.stateless.answers.begin(call.uid, asked, leave)
            answer = await until_gone(receive, beginning)
            heard = answer.events()
            leave.push_async_callback(heard.aclose)
            first = await until_gone(receive, next_of(heard))
            assert first is not None  # each answer has an end
            if isinstance(first, Ended) and first.reason == "error":
                raise ApiError("engine_unavailable", first.problem)  # its client tries again
            told = Telling(answer, {**request.echo(), "model": asked.model})
            begin = [*told.begin(), *told.take(first)]
            if request.stream:
                return TokenStream(_stream(viewer, told, begin, heard), leave.pop_all().aclose)
            await until_gone(receive, _collect(told, heard))
        except ClientGone:
            return gone()
        return json_response(told.response())


class Telling:
    """What is heard of an answer, told as events."""

    def __init__(self, answer: StatelessAnswer, echo: dict[str, Any]) -> None:
        self._answer = answer
        asked = {**echo, "id": answer.id, "created_at": int(time.time())}
        self._told = AnswerEvents(asked, new_message_id())
        self._calls = CallLedger(answer.id)
        self.response = self._told.response
        self.begin = self._told.begin

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
        return self._told.end(self._outcome(heard))

    def cancelled(self) -> list[AnswerEvent]:
        """Its client has stopped it."""
        return self._told.end(Outcome("cancelled", "client_cancelled", "", self._usage()))

    def _take(self, part: Said, logprobs: Sequence[dict[str, Any]]) -> list[AnswerEvent]:
        match part:
            case Part(text, True):
                return self._told.take(ObjectEvent({"type": REASONING_DELTA, "delta": text}))
            case Part(text):
                return self._told.take(TextEvent(0, text, logprobs=tuple(logprobs)))
            case ParsedBegin(name=name):
                return self._told.take(ObjectEvent(self._calls.begin(name).wire()))
            case ParsedArguments(index=place, delta=delta):
                return self._told.take(ObjectEvent(self._calls.add(place, delta).wire()))
            case _:
                ends = self._calls.end(part.index, is_valid=part.is_valid)
                return [each for end in ends for each in self._told.take(ObjectEvent(end.wire()))]

    def _outcome(self, ended: Ended) -> Outcome:
        status, reason = ENDS.get(ended.reason, ("failed", "engine_error"))
        return Outcome(status, reason, ended.problem, self._usage(), int(time.time()))

    def _usage(self) -> dict[str, int]:
        return {
            "input_tokens": len(self._answer.prompt_token_ids),
            "cached_tokens": self._answer.num_cached_tokens,
            "output_tokens": self._answer.num_output_tokens,
        }


async def _collect(told: Telling, heard: AsyncGenerator[Heard, None]) -> None:
    async for each in heard:
        told.take(each)


async def _stream(
    viewer: HttpViewer,
    told: Telling,
    begin: list[AnswerEvent],
    heard: AsyncGenerator[Heard, None],
) -> AsyncGenerator[bytes, None]:
    yield encode(begin)
    last = begin[-1].sequence_number
    try:
        async with aclosing(heard):
            async for each in heard:
                if viewer.refusal is not None:
                    raise viewer.refusal
                if new := told.take(each):
                    last = new[-1].sequence_number
                    yield encode(new)
    except ApiError as error:
        yield encode([error_event(error, last + 1)])
