"""The body of `POST /v1/completions`, and what it asks for."""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta

from server.api.openai.refusals import not_here
from server.api.openai.sampling_fields import SamplingFields
from server.commands.stateless.asked import Asked
from server.protocol.errors import invalid_field

DEFAULT_TOKENS = 16  # OpenAI's, of this route
MAX_LOGPROBS = 20
MAX_CHOICES = 256


class CompletionRequest(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As OpenAI's clients send it, and some fields of vLLM's."""

    prompt: str | list[str | int | list[int]]
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    return_token_ids: bool | None = None  # of vLLM

    @property
    def asked(self) -> Asked:
        """What is asked for. Raises `ApiError`."""
        if self.suffix:
            raise not_here("suffix", "no model here is known to fill a gap between two texts")
        if self.max_tokens == 0 and not self.echo:
            raise invalid_field("max_tokens", "an answer of no tokens is only an echo")
        if self.best_of not in (None, self.n or 1):
            raise not_here("best_of", "say n for several answers")
        settings: dict[str, Any] = {"max_output_tokens": DEFAULT_TOKENS}
        if self.logprobs is not None:
            settings["logprobs"] = self.logprobs
        settings |= self.sampling_settings()
        settings["max_output_tokens"] = max(1, settings["max_output_tokens"])
        prompts = _prompts(self.prompt)
        if len(prompts) * (self.n or 1) > MAX_CHOICES:
            raise invalid_field("prompt", f"a call has at most {MAX_CHOICES} answers")
        return Asked(
            model=self.model,
            prompts=prompts,
            is_echoed=bool(self.echo),
            is_only_echoed=self.max_tokens == 0,
            settings=settings,
            parameters=self._parameters(),
            num_answers=self.n or 1,
        )

    def _parameters(self) -> dict[str, Any]:
        more = self.parameters()
        if self.echo and self.logprobs is not None:
            more["prompt_logprobs"] = self.logprobs
        return more


def _prompts(given: str | Sequence[str | int | Sequence[int]]) -> list[str | list[int]]:
    """Texts, or token ids. Raises `ApiError`."""
    if isinstance(given, str):
        return [given]
    ids = [token for token in given if isinstance(token, int)]
    if len(ids) == len(given):
        return [ids]
    if ids:
        raise invalid_field("prompt", "prompt is a text, token ids, or several of them")
    prompts = [each for each in given if not isinstance(each, int)]
    return [each if isinstance(each, str) else [*each] for each in prompts]
