"""`TextOfAnother`: an engine that has another one read and write text for it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from server.engines.client import (
    EngineClient,
    EngineTokenizer,
    Grammar,
    Marks,
    SamplingParams,
    StructuredOutputsParams,
)


class TextOfAnother(ABC):
    """What of an `EngineClient` concerns text alone."""

    @property
    @abstractmethod
    def text_engine(self) -> EngineClient:
        """Raises `RetryableRequestError` while there is none."""

    def get_tokenizer(self) -> EngineTokenizer:
        return self.text_engine.get_tokenizer()

    @property
    def answer_grammar(self) -> Grammar:
        return self.text_engine.answer_grammar

    def prompt_end(self, prompt_token_ids: Sequence[int], marks: Marks) -> str:
        return self.text_engine.prompt_end(prompt_token_ids, marks)

    def call_form(
        self,
        tools: Mapping[str, Mapping[str, Any]],
        name: str | None = None,
        prompt_token_ids: Sequence[int] = (),
    ) -> StructuredOutputsParams:
        return self.text_engine.call_form(tools, name, prompt_token_ids)

    def thought_tokens(self, prompt_token_ids: Sequence[int]) -> object:
        return self.text_engine.thought_tokens(prompt_token_ids)

    def resumed_text(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        resume_token_ids: Sequence[int],
        marks: Marks | None = None,
    ) -> str:
        return self.text_engine.resumed_text(prompt_token_ids, params, resume_token_ids, marks)
