"""Parley's LLM engine: prompts in, text out. Importing it imports no torch; only the core does.

from engine import AsyncEngineArgs, AsyncLLM, SamplingParams

engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model="folder or hub id"))
async for output in engine.generate("Once upon", SamplingParams(max_tokens=50), "request-1"):
    print(output.outputs[0].text)
"""

from pathlib import Path

from engine.args import AsyncEngineArgs, EngineArgs
from engine.async_llm import AsyncLLM, AsyncLLMEngine
from engine.connection import CoreState
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
from engine.inputs import LoRARequest, TextPrompt, TokensPrompt
from engine.launcher import CoreProcess, PrivateDirectory
from engine.outputs import (
    CompletionOutput,
    Logprob,
    OutputError,
    RequestMetrics,
    RequestOutput,
    RequestProgress,
)
from engine.pooling import EmbeddingRequestOutput, PoolingParams, PoolingRequestOutput
from engine.request_manager import (
    RequestManager,
    RequestStatus,
    StreamingRequest,
    stream_generate,
)
from engine.sampling_params import RequestOutputKind, SamplingParams
from engine.tasks import (
    AsyncLLMWorker,
    GenerationTask,
    StreamGenerationTask,
    TaskStatus,
    create_from_generation_task,
    stream_generation_handler,
)
from engine.tokenizer import Tokenizer
from engine.vllm_config import ModelConfig

__all__ = [
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "AsyncLLMWorker",
    "ChatTemplateError",
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
    "GenerationTask",
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
    "RequestManager",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "RequestProgress",
    "RequestStatus",
    "RetryableRequestError",
    "SamplingParams",
    "StreamGenerationTask",
    "StreamingRequest",
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
