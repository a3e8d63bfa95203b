"""`Exchange`: a route whose answers are not stored, and each call of it, from body to last byte.

A route brings what its body is (`SamplingFields` and more) and its words for what is heard
(`Words`); everything else is the same for all of them.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

import orjson
from starlette.responses import Response

from server.access.rates import budget_headers
from server.api.openai.refusals import refuse
from server.api.openai.replies import ReplyStream, whole
from server.api.openai.sampling_fields import SamplingFields
from server.api.openai.streams import DONE, ClientGone, encode_event, gone, until_gone
from server.api.rest.objects import Document
from server.api.rest.operation import (
    OPTIONAL_KEY,
    Access,
    ApiContext,
    Call,
    Operation,
    read_object,
)
from server.commands.stateless.answer import StatelessAnswer
from server.commands.stateless.asked import Asked, Ended, Heard
from server.commands.stateless.reply import Reply
from server.commands.stateless.tries import Try
from server.protocol.client_frames import to_struct
from server.protocol.errors import ApiError, invalid_field

_COUNT = re.compile(r"[0-9]{1,6}")
RequestT = TypeVar("RequestT", bound=SamplingFields)

# In which clients name a conversation of theirs.
CONVERSATION = ("x-openwebui-chat-id", "x-conversation-id")


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


class Exchange(Generic[RequestT]):
    """One route. `words` makes its words for an answer to a request, of a model's fingerprint;
    `param_of` gives the request's name for a parameter that the engine refuses.
    """

    def __init__(
        self,
        context: ApiContext,
        *,
        path: str,
        summary: str,
        body: type[RequestT],
        words: Callable[[StatelessAnswer, RequestT, str], Words],
        param_of: Callable[[str, RequestT], str] = lambda name, _: name,
    ) -> None:
        self._identities = context.services.identities
        self._answers = context.services.stateless.answers
        self._repeats = context.services.stateless.repeats
        self._models = context.services.models
        self._path = path
        self._summary = summary
        self._body = body
        self._words = words
        self._param_of = param_of

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="POST",
                path=self._path,
                access=Access.USER,
                endpoint=self.create,
                summary=self._summary,
                headers=(OPTIONAL_KEY,),
                body=self._body,
                refuse=refuse,
                answers={200: (Document, "text/event-stream")},
            )
        ]

    async def create(self, call: Call) -> Response:
        """Raises `ApiError` as long as nothing was sent."""
        data = await call.data()
        request: RequestT = to_struct(read_object(data), self._body)
        asked = replace(request.asked, conversation=_conversation(call, request.asked))

        async def make(reply: Reply) -> None:
            async with AsyncExitStack() as leave:
                answer = await self._answers.begin(call.uid, asked, leave)
                reply.headers = budget_headers(answer.budget)
                await self._put(reply, answer, request)

        receive = call.request.receive
        async with AsyncExitStack() as leave:
            try:
                reading = self._repeats.read(try_of(call, self._path, data), make, leave)
                leave.enter_context(self._identities.holding(call.user, reading.refuse))
                first = await until_gone(receive, reading.next())
            except ClientGone:
                return gone()
            reading.give()
            if request.stream:
                return ReplyStream(first, reading, leave.pop_all().aclose)
            return whole(first, reading)

    async def _put(self, reply: Reply, answer: StatelessAnswer, request: RequestT) -> None:
        """Make the answer. Raises `ApiError`."""
        model = self._models.chosen(request.model)
        words = self._words(answer, request, "" if model is None else model.fingerprint)

        def hear(heard: Heard) -> None:
            self._check(heard, request)
            if not request.stream:
                words.take(heard)
                return
            for chunk in words.chunks(heard):
                reply.put(encode_event(chunk))

        await answer.tell(hear)
        if not request.stream:
            reply.put(orjson.dumps(words.whole()))
            return
        if request.with_usage:
            reply.put(encode_event(words.usage_chunk()))
        reply.put(DONE)

    def _check(self, heard: Heard, request: RequestT) -> None:
        if not isinstance(heard, Ended):
            return
        if heard.reason == "refused":
            param = self._param_of(heard.param, request)
            raise ApiError("invalid_field", heard.problem, param=param)
        if heard.reason == "error":
            raise ApiError("engine_unavailable", heard.problem)


def try_of(call: Call, route: str, data: bytes) -> Try:
    """What says of a call whether another one repeats it. Raises `ApiError`."""
    key = call.header("Idempotency-Key")
    number = call.request.headers.get("x-stainless-retry-count")
    if key is not None and not re.fullmatch(OPTIONAL_KEY.pattern or "", key):
        raise invalid_field("Idempotency-Key", "1 to 128 characters of [A-Za-z0-9_-]")
    credential = call.user.credential
    return Try(
        credential=call.uid if credential is None else credential.digest,
        route=route,
        body=data,
        key=key,
        number=int(number) if number is not None and _COUNT.fullmatch(number) else None,
    )


def _conversation(call: Call, asked: Asked) -> str | None:
    """Which calls share a beginning, if the client says so."""
    headers = call.request.headers
    return next((headers[name] for name in CONVERSATION if headers.get(name)), asked.conversation)
