"""`POST /v1/completions`: the text, or the tokens, that follow a prompt as it is."""

from starlette.responses import Response

from server.api.openai.completion_answer import CompletionAnswer
from server.api.openai.completion_request import CompletionRequest
from server.api.openai.exchange import Exchange
from server.api.openai.refusals import refuse
from server.api.rest.objects import Document
from server.api.rest.operation import Access, ApiContext, Call, Operation
from server.commands.stateless.answer import StatelessAnswer
from server.protocol.client_frames import to_struct


class Completions:
    """The endpoint."""

    def __init__(self, context: ApiContext) -> None:
        self._models = context.services.models
        self._exchange = Exchange(context.services.stateless.answers)

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="POST",
                path="/v1/completions",
                access=Access.USER,
                endpoint=self.create,
                summary="Go on with a text, or with token ids, as OpenAI's older route does",
                body=CompletionRequest,
                refuse=refuse,
                answers={200: (Document, "text/event-stream")},
            )
        ]

    async def create(self, call: Call) -> Response:
        request: CompletionRequest = to_struct(await call.body(), CompletionRequest)
        options = request.stream_options

        def words_for(answer: StatelessAnswer) -> CompletionAnswer:
            model = self._models.chosen(request.model)
            return CompletionAnswer(
                answer,
                request.model,
                "" if model is None else model.fingerprint,
                with_usage=options is not None and bool(options.include_usage),
                with_token_ids=bool(request.return_token_ids),
            )

        is_streamed = bool(request.stream)
        return await self._exchange.answer(
            call, request.asked, words_for, is_streamed=is_streamed, options=options
        )
