"""`EngineClient`: what the server asks of an engine, of whatever kind; and the words for it.

The rest of the server knows an engine by this file alone. What stands in `__all__` besides the
protocols are our own engine's types for requests, outputs and errors, which every kind speaks.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from engine import (
    ChatTemplateError,
    CoreState,
    EngineDeadError,
    EngineError,
    Exactness,
    Logprob,
    PoolingParams,
    PoolingRequestOutput,
    PromptTooLongError,
    QueueOverflowError,
    RequestOutput,
    RequestOutputKind,
    RequestProgress,
    RetryableRequestError,
    SamplingParams,
    StructuredOutputsParams,
    TokensPrompt,
    UnsupportedModelError,
    ValidationError,
)
from engine.client.parsing.events import CallArguments as ParsedArguments
from engine.client.parsing.events import CallBegin as ParsedBegin
from engine.client.parsing.events import CallEnd as ParsedEnd
from engine.client.parsing.events import Event as ParsedEvent
from engine.client.parsing.events import ReasoningDelta as ParsedReasoning
from engine.client.parsing.events import TextDelta as ParsedText
from engine.client.parsing.grammar import Grammar
from engine.client.parsing.marks import Marks
from engine.client.parsing.parser import AnswerParser
from engine.client.requests.core_link import CANNOT_CONTINUE
from engine.ipc import STOPPED
from engine.lora import ADAPTER_FILES, LoRARequest, hash_adapter
from engine.outputs import CompletionOutput, OutputError, RequestMetrics, TokenCounts
from engine.sampling_params import MIN_TEMPERATURE

# Takes new text, its token ids, and their logprobs where they were asked for.
DeltaCallback = Callable[[str, Sequence[int], "Sequence[Mapping[int, Logprob]] | None"], None]

__all__ = [
    "ADAPTER_FILES",
    "CANNOT_CONTINUE",
    "MIN_TEMPERATURE",
    "STOPPED",
    "AnswerParser",
    "ChatTemplateError",
    "CompletionOutput",
    "Computing",
    "CoreState",
    "DeltaCallback",
    "EngineClient",
    "EngineDeadError",
    "EngineError",
    "EngineLoad",
    "EngineModel",
    "EngineTokenizer",
    "Exactness",
    "Grammar",
    "LoRARequest",
    "Logprob",
    "Marks",
    "ModelLoadError",
    "OutputError",
    "ParsedArguments",
    "ParsedBegin",
    "ParsedEnd",
    "ParsedEvent",
    "ParsedReasoning",
    "ParsedText",
    "Placing",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptTooLongError",
    "QueueOverflowError",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "RequestProgress",
    "RetryableRequestError",
    "SamplingParams",
    "ServedModel",
    "StructuredOutputsParams",
    "TokenCounts",
    "TokensPrompt",
    "UnsupportedModelError",
    "ValidationError",
    "hash_adapter",
]


class ModelLoadError(EngineError):
    """A model that is loaded when somebody asks it cannot be: `problem` says why, to a person."""

    def __init__(self, model: str, problem: str) -> None:
        super().__init__(f"{model}: {problem}")
        self.model = model
        self.problem = problem


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a worker knows of the model, whether or not the engine is there."""

    name: str  # what clients call it
    fingerprint: str  # of what it computes: an answer goes on under the same one alone
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)  # its own, if it has any
    lora_request: LoRARequest | None = None  # of a model with an adapter


class EngineModel(Protocol):
    """What the engine serves, as it has it in memory."""

    @property
    def max_model_len(self) -> int:
        """Tokens of a prompt and its answer together."""


class EngineLoad(Protocol):
    """What an engine does at the moment."""

    @property
    def num_running(self) -> int: ...

    @property
    def num_waiting(self) -> int: ...

    @property
    def num_blocks_total(self) -> int: ...

    @property
    def num_blocks_free(self) -> int: ...

    @property
    def is_sleeping(self) -> bool:
        """It has given memory back, until somebody asks it something."""


class EngineTokenizer(Protocol):
    """Text to token ids. `owner` is a user: users take turns at long texts."""

    @property
    def chat_stop(self) -> tuple[str, ...]:
        """Stop strings that answers in a chat need."""

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template tells the model of tools."""

    async def encode_async(self, text: str, *, owner: str = "") -> list[int]:
        """The ids of a text."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids. Raises `ValidationError` for numbers that are none."""

    async def apply_chat_template_async(
        self,
        messages: Sequence[Mapping[str, Any]],
        answer: str = "",
        *,
        owner: str | None = None,
        max_length: int | None = None,
        **variables: Any,
    ) -> list[int]:
        """The prompt of a chat whose next answer begins with `answer`.

        `variables` are what else the template is given, such as `tools`.

        Raises `PromptTooLongError` for more than `max_length` ids, `ChatTemplateError` for a
        template that takes too much, `ValidationError` for messages that it refuses, and
        `RetryableRequestError` if it could not be rendered now.
        """


@runtime_checkable
class Computing(Protocol):
    """What an engine of ours is besides an `EngineClient`."""

    @property
    def computes(self) -> str | None:
        """By what: two that say the same write the same, bit for bit. None: nobody has said it."""


@runtime_checkable
class Placing(Protocol):
    """What several engines as one are besides an `EngineClient`."""

    def place_of(self, session_id: str) -> str | None:
        """The name of the engine that has the session's keys and values."""

    def know_place(self, session_id: str, name: str) -> None:
        """It is this one, as another worker has said, whatever was known here."""


class EngineClient(Protocol):
    """One engine, as a worker holds it. All of it belongs to the worker's event loop."""

    @property
    def core_state(self) -> CoreState: ...

    @property
    def is_ready(self) -> bool:
        """It answers now."""

    @property
    def exactness(self) -> Exactness:
        """What becomes of an answer whose engine dies before its end."""

    async def wait_ready(self, timeout: float | None = None) -> None:
        """Return when `is_ready`. Raises `TimeoutError`, or `EngineDeadError` if it never will."""

    @property
    def model_config(self) -> EngineModel:
        """Raises `RetryableRequestError` before the engine has answered for the first time."""

    def get_tokenizer(self) -> EngineTokenizer: ...

    @property
    def answer_grammar(self) -> Grammar:
        """How the model writes thoughts and calls of tools in its answers."""

    def prompt_end(self, prompt_token_ids: Sequence[int], marks: Marks) -> str:
        """The end of a prompt as marked text, in which the answer may have begun."""

    def call_form(
        self,
        tools: Mapping[str, Mapping[str, Any]],
        name: str | None = None,
        prompt_token_ids: Sequence[int] = (),
    ) -> StructuredOutputsParams:
        """The form of an answer to this prompt that calls the tool `name`, or any of `tools`.

        Raises `ValidationError` with the parameter `tool_choice` if the model's calls cannot be
        held to one, and `tools` if arguments cannot be held to a tool's schema.
        """

    def thought_tokens(self, prompt_token_ids: Sequence[int]) -> object:
        """Raise `ValidationError` if the model's thoughts in such an answer cannot be ended."""

    @property
    def stats(self) -> EngineLoad | None:
        """None as long as nothing is known."""

    @property
    def heard_at(self) -> float | None:
        """When it last said how it is, by `time.monotonic()`: each second while it is well.

        None where nothing but `core_state` tells.
        """

    @property
    def incarnation(self) -> int | None:
        """Drawn anew when it has started again; None where nobody can tell."""

    async def metrics(self) -> dict[str, Any]:
        """Counters by name. Raises `EngineDeadError`."""

    def check_admission(self, n: int = 1) -> None:
        """Raise a `RetryableRequestError` if `n` more requests could not be taken now."""

    def check_params(self, params: SamplingParams) -> None:
        """Raise `ValidationError`, with the parameter, for what such an engine cannot do.

        What only the request itself shows, `generate` says.
        """

    def generate(
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
        """Stream the answer to `prompt["prompt_token_ids"]`; the last output has `finished` True.

        `prompt["cache_salt"]` names the user, with whom alone prefixes are shared. The stream
        continues after `resume_token_ids`. `on_progress` is called while the request waits and its
        prompt is read. An engine may give what is new to `on_delta(text, token_ids, logprobs)` in
        the turn in which it comes, and yield the last output alone. A request that `is_admitted` is
        taken even by a queue that is full. `trace_headers` name the span of which its own is a
        part. With `marks` the text is marked, as `AnswerParser` reads it. Answers of one
        `session_id` are written where its keys and values are. Raises `EngineError` and
        `ValidationError`.
        """

    def encode(
        self,
        prompt: TokensPrompt,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """Yield one output, the vector of `prompt["prompt_token_ids"]`; as `generate` otherwise."""

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Have an adapter in memory; True.

        Raises `ValidationError` for one that cannot be used, or that there is no room for,
        `RetryableRequestError` and `EngineDeadError`.
        """

    async def remove_lora(self, lora_id: int) -> bool:
        """Forget one, which running requests keep. False: it was not in memory."""

    def resumed_text(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        resume_token_ids: Sequence[int],
        marks: Marks | None = None,
    ) -> str:
        """The text that a request with these `resume_token_ids` takes for shown."""

    async def abort(self, request_id: str) -> None:
        """End a request before the next token; its reader gets a last output with "abort"."""

    def shutdown(self) -> None:
        """Fail what is open, and close."""
