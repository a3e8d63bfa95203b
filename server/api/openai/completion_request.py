"""The body of `POST /v1/completions`, and what it asks for."""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta

from server.api.openai.refusals import not_here
from server.api.openai.sampling_fields import SamplingFields
from server.commands.stateless.asked import Asked

DEFAULT_TOKENS = 16  # OpenAI's, of this route
MAX_LOGPROBS = 20


class CompletionRequest(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As OpenAI's clients send it, and some fields of vLLM's."""

    prompt: str | list[str | int | list[int]]
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    return_token_ids: bool | None = None  # of vLLM

    @property
    def asked(self) -> Asked:
        """What is asked for. Raises `ApiError`."""
        if self.suffix:
            raise not_here("suffix", "an answer is not written between two texts")
        if self.echo:
            raise not_here("echo")
        if self.best_of not in (None, self.n or 1):
            raise not_here("best_of", "say n for several answers")
        settings: dict[str, Any] = {"max_output_tokens": DEFAULT_TOKENS}
        if self.logprobs is not None:
            settings["logprobs"] = self.logprobs
        return Asked(
            model=self.model,
            prompt=_prompt(self.prompt),
            settings={**settings, **self.sampling_settings()},
            parameters=self.parameters(),
            num_answers=self.n or 1,
        )


def _prompt(given: str | Sequence[str | int | Sequence[int]]) -> str | list[int]:
    """The one prompt of the call. Raises `ApiError`."""
    if isinstance(given, str):
        return given
    ids = [token for token in given if isinstance(token, int)]
    if len(ids) == len(given):
        return ids
    if len(given) > 1 or isinstance(given[0], int):
        raise not_here("prompt", "a call has one prompt")
    return given[0] if isinstance(given[0], str) else [*given[0]]
