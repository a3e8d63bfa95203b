"""Parley's LLM engine: prompts in, text out. Importing it imports no torch; only the core does.

from engine import AsyncEngineArgs, AsyncLLM, SamplingParams

engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model="folder or hub id"))
async for output in engine.generate("Once upon", SamplingParams(max_tokens=50), "request-1"):
    print(output.outputs[0].text)
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.beam_search import BeamSearchParams
    from engine.client.args import AsyncEngineArgs, EngineArgs
    from engine.client.async_llm import AsyncLLM, AsyncLLMEngine
    from engine.client.launcher import CoreProcess, PrivateDirectory
    from engine.client.requests.core_link import CoreState, Exactness
    from engine.client.requests.inputs import TextPrompt, TokensPrompt
    from engine.client.results.generation_result import GenerationResult
    from engine.client.text.tokenizer import Tokenizer
    from engine.client.vllm_config import ModelConfig
    from engine.errors import (
        ChatTemplateError,
        DownloadError,
        EngineDeadError,
        EngineError,
        EngineGenerateError,
        EngineStartError,
        MaxQueuedTokensError,
        PromptTooLongError,
        QueueOverflowError,
        RetryableRequestError,
        UnsupportedModelError,
        ValidationError,
    )
    from engine.faces.beams import BeamSearchOutput, BeamSearchSequence
    from engine.faces.llm import LLM
    from engine.faces.llm_engine import LLMEngine
    from engine.grammar.params import StructuredOutputsParams
    from engine.logits_processors import AdapterLogitsProcessor
    from engine.logprobs import Logprob
    from engine.lora import LoRARequest
    from engine.outputs import (
        CompletionOutput,
        OutputError,
        RequestMetrics,
        RequestOutput,
        RequestProgress,
    )
    from engine.pooling import (
        ClassificationRequestOutput,
        EmbeddingRequestOutput,
        PoolingParams,
        PoolingRequestOutput,
        ScoringRequestOutput,
    )
    from engine.repetition import RepetitionDetectionParams
    from engine.sampling_params import RequestOutputKind, SamplingParams
    from engine.scaffolding.request_manager import (
        RequestManager,
        RequestStatus,
        StreamingRequest,
        stream_generate,
    )
    from engine.scaffolding.tasks import (
        AsyncLLMWorker,
        GenerationTask,
        StreamGenerationTask,
        TaskStatus,
        create_from_generation_task,
        stream_generation_handler,
    )

__all__ = [
    "LLM",
    "AdapterLogitsProcessor",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "AsyncLLMWorker",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ChatTemplateError",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "CoreProcess",
    "CoreState",
    "DownloadError",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "EngineDeadError",
    "EngineError",
    "EngineGenerateError",
    "EngineStartError",
    "Exactness",
    "GenerationResult",
    "GenerationTask",
    "LLMEngine",
    "LoRARequest",
    "Logprob",
    "MaxQueuedTokensError",
    "ModelConfig",
    "OutputError",
    "PoolingParams",
    "PoolingRequestOutput",
    "PrivateDirectory",
    "PromptTooLongError",
    "QueueOverflowError",
    "RepetitionDetectionParams",
    "RequestManager",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "RequestProgress",
    "RequestStatus",
    "RetryableRequestError",
    "SamplingParams",
    "ScoringRequestOutput",
    "StreamGenerationTask",
    "StreamingRequest",
    "StructuredOutputsParams",
    "TaskStatus",
    "TextPrompt",
    "Tokenizer",
    "TokensPrompt",
    "UnsupportedModelError",
    "ValidationError",
    "create_from_generation_task",
    "demo_model",
    "stream_generate",
    "stream_generation_handler",
]


def demo_model() -> Path:
    """The folder of the small checkpoint that comes with Parley."""
    return Path(__file__).resolve().parent / "demo"


def __getattr__(name: str) -> object:
    """Import what is asked for when it is: the core and the supervisor start without most of it."""
    module = _NAME_TO_HOME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(module), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# As the imports above, which only type checkers read.
_HOMES = {
    "engine.beam_search": ("BeamSearchParams",),
    "engine.client.args": (
        "AsyncEngineArgs",
        "EngineArgs",
    ),
    "engine.client.async_llm": (
        "AsyncLLM",
        "AsyncLLMEngine",
    ),
    "engine.client.launcher": (
        "CoreProcess",
        "PrivateDirectory",
    ),
    "engine.client.requests.core_link": (
        "CoreState",
        "Exactness",
    ),
    "engine.client.requests.inputs": (
        "TextPrompt",
        "TokensPrompt",
    ),
    "engine.client.results.generation_result": ("GenerationResult",),
    "engine.client.text.tokenizer": ("Tokenizer",),
    "engine.client.vllm_config": ("ModelConfig",),
    "engine.errors": (
        "ChatTemplateError",
        "DownloadError",
        "EngineDeadError",
        "EngineError",
        "EngineGenerateError",
        "EngineStartError",
        "MaxQueuedTokensError",
        "PromptTooLongError",
        "QueueOverflowError",
        "RetryableRequestError",
        "UnsupportedModelError",
        "ValidationError",
    ),
    "engine.faces.beams": (
        "BeamSearchOutput",
        "BeamSearchSequence",
    ),
    "engine.faces.llm": ("LLM",),
    "engine.faces.llm_engine": ("LLMEngine",),
    "engine.grammar.params": ("StructuredOutputsParams",),
    "engine.logits_processors": ("AdapterLogitsProcessor",),
    "engine.logprobs": ("Logprob",),
    "engine.lora": ("LoRARequest",),
    "engine.outputs": (
        "CompletionOutput",
        "OutputError",
        "RequestMetrics",
        "RequestOutput",
        "RequestProgress",
    ),
    "engine.pooling": (
        "ClassificationRequestOutput",
        "EmbeddingRequestOutput",
        "PoolingParams",
        "PoolingRequestOutput",
        "ScoringRequestOutput",
    ),
    "engine.repetition": ("RepetitionDetectionParams",),
    "engine.sampling_params": (
        "RequestOutputKind",
        "SamplingParams",
    ),
    "engine.scaffolding.request_manager": (
        "RequestManager",
        "RequestStatus",
        "StreamingRequest",
        "stream_generate",
    ),
    "engine.scaffolding.tasks": (
        "AsyncLLMWorker",
        "GenerationTask",
        "StreamGenerationTask",
        "TaskStatus",
        "create_from_generation_task",
        "stream_generation_handler",
    ),
}
_NAME_TO_HOME = {name: module for module, names in _HOMES.items() for name in names}
