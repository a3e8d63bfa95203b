"""`Exchange`: one call of a route whose answers are not stored, from what it asks to its last byte.

A route brings its words for what is heard (`Words`); everything else is the same for all of them.
"""

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from typing import Any, Protocol

from msgspec import Struct
from starlette.responses import Response

from server.api.openai.streams import (
    DONE,
    ClientGone,
    TokenStream,
    encode_event,
    gone,
    next_of,
    until_gone,
)
from server.api.rest.operation import Call, json_response
from server.commands.stateless.answer import StatelessAnswer
from server.commands.stateless.answers import StatelessAnswers
from server.commands.stateless.asked import Asked, Ended, Heard
from server.protocol.errors import ApiError

ParamOf = Callable[[str], str]


class StreamOptions(Struct, frozen=True):
    """Of a call that asks for a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: a usage in every chunk
    include_obfuscation: bool | None = None  # nothing is obfuscated here


class Words(Protocol):
    """One route's words for one answer."""

    def chunks(self, heard: Heard) -> Iterator[dict[str, Any]]:
        """What a stream says of it."""

    def usage_chunk(self) -> dict[str, Any]:
        """The last chunk, for who has asked for it."""

    def take(self, heard: Heard) -> None:
        """Collect what `whole` says."""

    def whole(self) -> dict[str, Any]:
        """The answer that is not streamed."""


class Exchange:
    """What the routes share."""

    def __init__(self, answers: StatelessAnswers) -> None:
        self._answers = answers

    async def answer(
        self,
        call: Call,
        asked: Asked,
        words_for: Callable[[StatelessAnswer], Words],
        *,
        is_streamed: bool,
        options: StreamOptions | None,
        param_of: ParamOf = str,
    ) -> Response:
        """Raises `ApiError` and the store's errors as long as nothing was sent.

        `param_of` gives the call's name for a parameter that the engine refuses.
        """
        receive = call.request.receive
        async with AsyncExitStack() as leave:
            try:
                answer = await until_gone(receive, self._answers.begin(call.uid, asked, leave))
                events = answer.events()
                leave.push_async_callback(events.aclose)
                first = await until_gone(receive, next_of(events))
                assert first is not None  # each answer has an end
                _check(first, param_of)  # as long as there is no status yet
                words = words_for(answer)
                if is_streamed:
                    with_usage = options is not None and bool(options.include_usage)
                    chunks = _stream(words, first, events, param_of, with_usage=with_usage)
                    return TokenStream(chunks, leave.pop_all().aclose)
                await until_gone(receive, _collect(words, first, events, param_of))
            except ClientGone:
                return gone()
            return json_response(words.whole())


async def _collect(
    words: Words, first: Heard, events: AsyncGenerator[Heard, None], param_of: ParamOf
) -> None:
    words.take(first)
    async for heard in events:
        _check(heard, param_of)
        words.take(heard)


async def _stream(
    words: Words,
    first: Heard,
    events: AsyncGenerator[Heard, None],
    param_of: ParamOf,
    *,
    with_usage: bool,
) -> AsyncGenerator[bytes, None]:
    for chunk in words.chunks(first):
        yield encode_event(chunk)
    async with aclosing(events):
        async for heard in events:
            if (problem := _problem(heard, param_of)) is not None:
                yield encode_event({"error": problem.body()})
                return
            for chunk in words.chunks(heard):
                yield encode_event(chunk)
    if with_usage:
        yield encode_event(words.usage_chunk())
    yield DONE


def _check(heard: Heard, param_of: ParamOf) -> None:
    if (problem := _problem(heard, param_of)) is not None:
        raise problem


def _problem(heard: Heard, param_of: ParamOf) -> ApiError | None:
    """Of an answer that has failed."""
    if not isinstance(heard, Ended):
        return None
    if heard.reason == "refused":
        return ApiError("invalid_field", heard.problem, param=param_of(heard.param))
    return ApiError("engine_unavailable", heard.problem) if heard.reason == "error" else None
