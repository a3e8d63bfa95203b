"""`POST /v1/chat/completions`."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

from starlette.responses import Response

from server.api.openai.chat_answer import ChatAnswer
from server.api.openai.chat_request import ChatRequest
from server.api.openai.refusals import refuse
from server.api.openai.streams import (
    DONE,
    ClientGone,
    TokenStream,
    encode_event,
    gone,
    next_of,
    until_gone,
)
from server.api.rest.objects import Document
from server.api.rest.operation import Access, ApiContext, Call, Operation, json_response
from server.commands.stateless.answer import StatelessAnswer
from server.commands.stateless.asked import Ended, Heard
from server.protocol.client_frames import to_struct
from server.protocol.errors import ApiError

PARAMS = {"structured_outputs": "response_format", "prompt": "messages"}  # where ours differ


class ChatCompletions:
    """The endpoint."""

    def __init__(self, context: ApiContext) -> None:
        self._answers = context.services.stateless
        self._models = context.services.models

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="POST",
                path="/v1/chat/completions",
                access=Access.USER,
                endpoint=self.create,
                summary="Answer a conversation that the client keeps, as OpenAI's route does",
                body=ChatRequest,
                refuse=refuse,
                answers={200: (Document, "text/event-stream")},
            )
        ]

    async def create(self, call: Call) -> Response:
        asked: ChatRequest = to_struct(await call.body(), ChatRequest)
        async with AsyncExitStack() as leave:
            begin = self._answers.begin(call.uid, asked.asked, leave)
            try:
                answer = await until_gone(call.request.receive, begin)
                events = answer.events()
                leave.push_async_callback(events.aclose)
                first = await until_gone(call.request.receive, next_of(events))
                assert first is not None  # each answer has an end
                _check(first)  # as long as there is no status yet
                said = self._said(asked, answer)
                if asked.stream:
                    chunks = _stream(asked, said, first, events)
                    return TokenStream(chunks, leave.pop_all().aclose)
                await until_gone(call.request.receive, _collect(said, first, events))
            except ClientGone:
                return gone(call.request)
            return json_response(said.whole())

    def _said(self, asked: ChatRequest, answer: StatelessAnswer) -> ChatAnswer:
        model = self._models.chosen(asked.model)
        fingerprint = "" if model is None else model.fingerprint
        options = asked.stream_options
        with_usage = options is not None and bool(options.include_usage)
        return ChatAnswer(answer, asked.model, fingerprint, with_usage=with_usage)


def _problem(heard: Heard) -> ApiError | None:
    """Of an answer that has failed."""
    if not isinstance(heard, Ended):
        return None
    if heard.reason == "refused":
        return ApiError("invalid_field", heard.problem, param=PARAMS.get(heard.param, heard.param))
    return ApiError("engine_unavailable", heard.problem) if heard.reason == "error" else None


def _check(heard: Heard) -> None:
    """Raises `ApiError` for an answer that has failed."""
    if (problem := _problem(heard)) is not None:
        raise problem


async def _collect(said: ChatAnswer, first: Heard, events: AsyncGenerator[Heard, None]) -> None:
    said.take(first)
    async for heard in events:
        _check(heard)
        said.take(heard)


async def _stream(
    asked: ChatRequest, said: ChatAnswer, first: Heard, events: AsyncGenerator[Heard, None]
) -> AsyncGenerator[bytes, None]:
    for chunk in said.chunks(first):
        yield encode_event(chunk)
    async with aclosing(events):
        async for heard in events:
            if (problem := _problem(heard)) is not None:
                yield encode_event({"error": problem.body()})
                return
            for chunk in said.chunks(heard):
                yield encode_event(chunk)
    if asked.stream_options is not None and asked.stream_options.include_usage:
        yield encode_event(said.usage_chunk())
    yield DONE
