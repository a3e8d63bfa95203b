"""`POST /v1/chat/completions`."""

from starlette.responses import Response

from server.api.openai.chat_answer import ChatAnswer
from server.api.openai.chat_request import ChatRequest
from server.api.openai.exchange import Exchange
from server.api.openai.refusals import refuse
from server.api.rest.objects import Document
from server.api.rest.operation import Access, ApiContext, Call, Operation
from server.commands.stateless.answer import StatelessAnswer
from server.protocol.client_frames import to_struct

PARAMS = {"structured_outputs": "response_format", "prompt": "messages"}


class ChatCompletions:
    """The endpoint."""

    def __init__(self, context: ApiContext) -> None:
        self._models = context.services.models
        self._exchange = Exchange(context.services.stateless.answers, PARAMS)

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
        request: ChatRequest = to_struct(await call.body(), ChatRequest)
        options = request.stream_options

        def words_for(answer: StatelessAnswer) -> ChatAnswer:
            model = self._models.chosen(request.model)
            fingerprint = "" if model is None else model.fingerprint
            with_usage = options is not None and bool(options.include_usage)
            return ChatAnswer(answer, request.model, fingerprint, with_usage=with_usage)

        is_streamed = bool(request.stream)
        return await self._exchange.answer(
            call, request.asked, words_for, is_streamed=is_streamed, options=options
        )
