"""`IdleEngine`: an `EngineClient` that does nothing; those of the tests override what they need."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.client.holding.call_form import call_form
from engine.client.holding.thoughts import thought_tokens
from engine.client.parsing.formats import grammar_of
from engine.client.parsing.grammar import Grammar
from engine.client.parsing.marks import Marks
from server.engines.client import (
    CoreState,
    DeltaCallback,
    EngineLoad,
    EngineTokenizer,
    Exactness,
    LoRARequest,
    PoolingParams,
    PoolingRequestOutput,
    RequestOutput,
    RequestProgress,
    SamplingParams,
    StructuredOutputsParams,
    TokensPrompt,
)


@dataclass
class ModelConfig:
    max_model_len: int


class IdleTokenizer:
    """Every text is one token."""

    chat_stop: tuple[str, ...] = ()
    takes_tools = True

    async def encode_async(self, text: str, *, owner: str = "") -> list[int]:
        return [0]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(f"<{token_id}>" for token_id in token_ids)

    async def apply_chat_template_async(
        self,
        messages: Sequence[Mapping[str, Any]],
        answer: str = "",
        *,
        owner: str | None = None,
        max_length: int | None = None,
        **variables: Any,
    ) -> list[int]:
        return [0]


class IdleEngine:
    """It is ready, and nothing is heard of a request."""

    core_state = CoreState.READY
    exactness = Exactness.EXACT
    stats: EngineLoad | None = None
    heard_at: float | None = None
    incarnation: int | None = None

    def __init__(self, max_model_len: int = 128, tokenizer: EngineTokenizer | None = None) -> None:
        self.model_config = ModelConfig(max_model_len)
        self.grammar = grammar_of("")
        self._tokenizer = tokenizer or IdleTokenizer()

    @property
    def is_ready(self) -> bool:
        return True

    async def wait_ready(self, timeout: float | None = None) -> None:
        pass

    def get_tokenizer(self) -> EngineTokenizer:
        return self._tokenizer

    @property
    def answer_grammar(self) -> Grammar:
        return self.grammar

    def prompt_end(self, prompt_token_ids: Sequence[int], marks: Marks) -> str:
        return ""

    def call_form(
        self,
        tools: Mapping[str, Mapping[str, Any]],
        name: str | None = None,
        prompt_token_ids: Sequence[int] = (),
    ) -> StructuredOutputsParams:
        return call_form(self.grammar, tools, name)

    def thought_tokens(self, prompt_token_ids: Sequence[int]) -> object:
        return thought_tokens(self.grammar, lambda text: [0])

    async def metrics(self) -> dict[str, Any]:
        return {}

    def check_admission(self, n: int = 1) -> None:
        pass

    def check_params(self, params: SamplingParams) -> None:
        pass

    async def generate(
        self,
        prompt: TokensPrompt,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        on_progress: Callable[[RequestProgress], None] | None = None,
        on_delta: DeltaCallback | None = None,
        resume_token_ids: Sequence[int] = (),
        priority: int = 0,
        is_admitted: bool = False,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        marks: Marks | None = None,
        session_id: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        for nothing in list[RequestOutput]():
            yield nothing

    async def encode(
        self,
        prompt: TokensPrompt,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        for nothing in list[PoolingRequestOutput]():
            yield nothing

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        return False

    def resumed_text(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        resume_token_ids: Sequence[int],
        marks: Marks | None = None,
    ) -> str:
        return ""

    async def abort(self, request_id: str) -> None:
        pass

    def shutdown(self) -> None:
        pass
