"""`POST /v1/embeddings`."""

import base64
import sys
from array import array
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from starlette.responses import Response

from server.access.rates import budget_headers
from server.api.openai.refusals import refuse
from server.api.openai.streams import ClientGone, gone, until_gone
from server.api.rest.objects import Document
from server.api.rest.operation import Access, ApiContext, Call, Operation, json_response
from server.protocol.client_frames import to_struct
from server.protocol.errors import invalid_field

MAX_TEXTS = 256


class EmbeddingRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As OpenAI's clients send it; they ask for `base64` by default."""

    model: str
    input: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None  # without effect

    @property
    def texts(self) -> list[str | list[int]]:
        """Texts, or token ids. Raises `ApiError`."""
        if isinstance(self.input, str):
            return [self.input]
        ids = [token for token in self.input if isinstance(token, int)]
        if len(ids) == len(self.input):
            return [ids]
        texts = [text for text in self.input if not isinstance(text, int)]
        if ids or len(texts) > MAX_TEXTS:
            raise invalid_field(
                "input", f"input is a text, token ids, or up to {MAX_TEXTS} of them"
            )
        return texts


class Embeddings:
    """The endpoint."""

    def __init__(self, context: ApiContext) -> None:
        self._embeddings = context.services.stateless.embeddings

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="POST",
                path="/v1/embeddings",
                access=Access.USER,
                endpoint=self.create,
                summary="Vectors of texts, by the model that also answers",
                body=EmbeddingRequest,
                refuse=refuse,
                answers={200: Document},
            )
        ]

    async def create(self, call: Call) -> Response:
        asked: EmbeddingRequest = to_struct(await call.body(), EmbeddingRequest)
        work = self._embeddings.embed(call.uid, asked.model, asked.texts, asked.dimensions)
        try:
            embedded = await until_gone(call.request.receive, work)
        except ClientGone:
            return gone()
        form = _as_base64 if asked.encoding_format == "base64" else list
        data = [
            {"object": "embedding", "index": place, "embedding": form(vector)}
            for place, vector in enumerate(embedded.vectors)
        ]
        tokens = embedded.num_tokens
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        body = {"object": "list", "data": data, "model": asked.model, "usage": usage}
        answer = json_response(body)
        answer.raw_headers += budget_headers(embedded.budget)
        return answer


def _as_base64(vector: Sequence[float]) -> Any:
    """Of float32, least significant byte first."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()
