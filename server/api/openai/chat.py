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

PARAMS = {"prompt": "messages"}  # where ours differ; and see `param_of`


class ChatCompletions:
    """The endpoint."""

    def __init__(self, context: ApiContext) -> None:
        self._models = context.services.models
        self._exchange = Exchange(context.services.stateless.answers)

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

        return await self._exchange.answer(
            call,
            request.asked,
            words_for,
            is_streamed=bool(request.stream),
            options=options,
            param_of=lambda name: param_of(name, request),
        )


def param_of(name: str, asked: ChatRequest) -> str:
    """Which field of the body the engine means by its parameter of this name."""
    if name == "structured_outputs":  # of a form, or of a call that must be
        return "response_format" if asked.tool_choice in (None, "auto", "none") else "tools"
    return PARAMS.get(name, name)
