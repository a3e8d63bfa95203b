"""`POST /v1/chat/completions`."""

from server.api.openai.chat_answer import ChatAnswer
from server.api.openai.chat_request import ChatRequest
from server.api.openai.exchange import Exchange
from server.api.rest.operation import ApiContext

PARAMS = {"prompt": "messages"}  # where ours differ; and see `param_of`


def chat_completions(context: ApiContext) -> Exchange[ChatRequest]:
    return Exchange(
        context,
        path="/v1/chat/completions",
        summary="Answer a conversation that the client keeps, as OpenAI's route does",
        body=ChatRequest,
        words=ChatAnswer,
        param_of=param_of,
    )


def param_of(name: str, asked: ChatRequest) -> str:
    """Which field of the body the engine means by its parameter of this name."""
    if name == "structured_outputs":  # of a form, or of a call that must be
        return "response_format" if asked.tool_choice in (None, "auto", "none") else "tools"
    return PARAMS.get(name, name)
