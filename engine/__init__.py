"""Parley's LLM engine: prompts in, text out. Importing it imports no torch; only the core does.

from engine import AsyncEngineArgs, AsyncLLM, SamplingParams

engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model="folder or hub id"))
async for output in engine.generate("Once upon", SamplingParams(max_tokens=50), "request-1"):
    print(output.outputs[0].text)
"""

from pathlib import Path

from engine.args import AsyncEngineArgs
from engine.async_llm import AsyncLLM, AsyncLLMEngine
from engine.connection import CoreState
from engine.errors import (
    DownloadError,
    EngineDeadError,
    EngineError,
    EngineGenerateError,
    EngineStartError,
    MaxQueuedTokensError,
    QueueOverflowError,
    RetryableRequestError,
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
from engine.sampling_params import RequestOutputKind, SamplingParams
from engine.tokenizer import Tokenizer
from engine.vllm_config import ModelConfig

__all__ = [
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "CompletionOutput",
    "CoreProcess",
    "CoreState",
    "DownloadError",
    "EmbeddingRequestOutput",
    "EngineDeadError",
    "EngineError",
    "EngineGenerateError",
    "EngineStartError",
    "LoRARequest",
    "Logprob",
    "MaxQueuedTokensError",
    "ModelConfig",
    "OutputError",
    "PoolingParams",
    "PoolingRequestOutput",
    "PrivateDirectory",
    "QueueOverflowError",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "RequestProgress",
    "RetryableRequestError",
    "SamplingParams",
    "TextPrompt",
    "Tokenizer",
    "TokensPrompt",
    "ValidationError",
    "demo_model",
]


def demo_model() -> Path:
    """The folder of the small checkpoint that comes with Parley."""
    return Path(__file__).resolve().parent / "demo"
