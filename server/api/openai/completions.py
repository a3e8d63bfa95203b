"""`POST /v1/completions`: the text, or the tokens, that follow a prompt as it is."""

from server.api.openai.completion_answer import CompletionAnswer
from server.api.openai.completion_request import CompletionRequest
from server.api.openai.exchange import Exchange
from server.api.rest.operation import ApiContext


def completions(context: ApiContext) -> Exchange[CompletionRequest]:
    return Exchange(
        context,
        path="/v1/completions",
        summary="Go on with a text, or with token ids, as OpenAI's older route does",
        body=CompletionRequest,
        words=CompletionAnswer,
    )
