"""`EngineArgs` and `AsyncEngineArgs`: what a caller may say about an engine, in vLLM's names.

An unknown name raises `TypeError`: a typo is never ignored. A feature that does not exist here
raises `NotImplementedError` by name, a wrong value `ValidationError`.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, Field, dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypeVar

from engine.client.absent_args import AbsentFeatures
from engine.client.cli_args import add_arguments
from engine.config import EngineConfig
from engine.errors import ValidationError, refuse
from engine.logits_processors import class_name
from engine.tracing.endpoint import check_endpoint

DTYPES = {"auto": "auto", "half": "float16", "float": "float32"}
DTYPES |= {name: name for name in ("float16", "float32", "bfloat16")}

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)


@dataclass
class EngineArgs(AbsentFeatures):
    """Arguments of an engine. Wrong values raise `ValidationError` here or when it starts."""

    model: str = field(kw_only=False)  # a local folder, or a hub id
    _: KW_ONLY
    served_model_name: str | list[str] | None = None
    tokenizer: str | None = None
    runner: str = "auto"
    tokenizer_mode: str = "auto"
    skip_tokenizer_init: bool = False
    revision: str | None = None
    trust_remote_code: bool = False  # True is refused: code from a checkpoint never runs
    download_dir: str | None = None
    load_format: str = "auto"  # auto, safetensors, dummy
    dtype: str = "auto"
    seed: int | None = 0
    max_model_len: int | None = None  # None and -1: the model's, as far as the cache holds it
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    block_size: int | None = None
    num_gpu_blocks_override: int | None = None
    enable_prefix_caching: bool | None = None
    prefix_caching_hash_algo: str = "builtin"
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    enable_chunked_prefill: bool | None = None
    long_prefill_token_threshold: int = 0
    scheduling_policy: str = "fcfs"
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    stream_interval: int = 1
    async_scheduling: bool | None = None
    enforce_eager: bool = False
    max_logprobs: int = 20
    logprobs_mode: str = "raw_logprobs"
    logits_processors: list[str] | Sequence[type] | None = None  # module:Class, or such classes
    generation_config: str = "auto"
    shutdown_timeout: float = 5.0
    enable_lora: bool = False
    max_loras: int = 1  # different adapters at a time, of running requests
    max_cpu_loras: int | None = None  # in memory; None: `max_loras`
    max_lora_rank: int = 16
    disable_log_stats: bool = False
    enable_log_requests: bool = False
    otlp_traces_endpoint: str | None = None  # of a collector that takes OTLP over HTTP
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    # of earlier versions of vLLM
    disable_log_requests: bool = False
    max_log_len: int | None = None
    worker_use_ray: bool = False
    engine_use_ray: bool = False
    # ours
    device: str = "auto"
    attn_backend: str = "auto"
    model_impl: str = "auto"
    batch_invariant: bool = True  # the same bits in any batch, as far as a CPU's kernels allow it
    pace: float = 0.0  # tokens/s per answer, 0 = as fast as possible
    max_step_seconds: float = 0.03  # of a step that reads a prompt, about; 0 = any length
    watchdog_seconds: float = 30.0
    sleep_after_seconds: float | None = None
    max_queue_seconds: float | None = None
    max_request_seconds: float | None = None  # from the first step of a request to its end
    threads: int = 0  # of torch, 0 = torch's own choice
    log_level: str | None = None  # of the core's own lines on stderr; None: WARNING

    def __post_init__(self) -> None:
        self._refuse_unavailable()
        self._check()

    @staticmethod
    def add_cli_args(parser: Parser) -> Parser:
        """Add a flag for each argument, with its default; return the parser.

        Those that `AsyncEngineArgs` adds are not among them.
        """
        _add_flags(parser, [each for each in fields(EngineArgs) if each.name not in _ASYNC_ARGS])
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """The arguments that a parser has read; attributes of other names are not looked at."""
        names = (each.name for each in fields(cls))
        return cls(**{name: getattr(args, name) for name in names if hasattr(args, name)})

    def create_engine_config(self, address: str, *, model: str | None = None) -> EngineConfig:
        """The core's configuration. `model` is the local folder, when `self.model` is a hub id."""
        given: dict[str, Any] = {
            "block_size": self.block_size,
            "enable_prefix_caching": self.enable_prefix_caching,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_num_seqs": self.max_num_seqs,
        }
        return EngineConfig(
            model=str(Path(model or self.model).absolute()),
            address=address,
            served_model_name=self.model_name,
            dtype=DTYPES[self.dtype],
            device=self.device,
            load_format=self.load_format,
            seed=self.seed or 0,
            max_model_len=None if self.max_model_len == -1 else self.max_model_len,
            num_blocks=self.num_gpu_blocks_override,
            kv_cache_memory_bytes=self.kv_cache_memory_bytes,
            gpu_memory_utilization=self.gpu_memory_utilization,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            scheduling_policy=self.scheduling_policy,
            max_num_queued_reqs=self.max_num_queued_reqs,
            max_num_queued_tokens=self.max_num_queued_tokens,
            max_queue_seconds=self.max_queue_seconds,
            max_request_seconds=self.max_request_seconds,
            tokenizer=os.fspath(self.tokenizer) if self.tokenizer else "",
            attn_backend=self.attn_backend,
            model_impl=self.model_impl,
            runner=self.runner,
            quantization=self.quantization,
            kv_cache_dtype=self.kv_cache_dtype,
            logprobs_mode=self.logprobs_mode,
            logits_processors=[class_name(each) for each in self.logits_processors or ()],
            batch_invariant=self.batch_invariant,
            async_scheduling=self.async_scheduling,
            enforce_eager=self.enforce_eager,
            enable_lora=self.enable_lora,
            max_loras=self.max_loras,
            max_cpu_loras=self.max_cpu_loras,
            max_lora_rank=self.max_lora_rank,
            pace=self.pace,
            max_step_seconds=self.max_step_seconds,
            watchdog_seconds=self.watchdog_seconds,
            sleep_after_seconds=self.sleep_after_seconds,
            threads=self.threads,
            log_level=self.log_level or "WARNING",
            **{name: value for name, value in given.items() if value is not None},
        )

    @property
    def model_name(self) -> str:
        """The name that clients see: the first served name, else the model as it was given."""
        names = self.served_model_name
        if isinstance(names, list):
            names = names[0] if names else None
        return names or self.model

    def _refuse_unavailable(self) -> None:
        if self.trust_remote_code:
            raise ValidationError(
                "trust_remote_code=True is refused: code from a checkpoint never runs",
                "trust_remote_code",
                True,
            )
        for name, only in _ONLY_VALUES.items():
            value = getattr(self, name)
            if value not in only:
                raise NotImplementedError(f"{name}={value!r} is not implemented")
        self.refuse_absent(EngineArgs.__annotations__)

    def _check(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                listed = ", ".join(map(str, choices))
                raise refuse(name, getattr(self, name), f"must be one of {listed}")
        for name in _BOOLEANS:
            if not isinstance(getattr(self, name), bool):
                raise refuse(name, getattr(self, name), "must be True or False")
        for name in ("enable_prefix_caching", "async_scheduling"):
            if not isinstance(getattr(self, name), bool | None):
                raise refuse(name, getattr(self, name), "must be a bool")
        for name, limits in _INTEGERS.items():
            _check_range(name, getattr(self, name), int, *limits)
        for name, bounds in _SECONDS_AND_RATES.items():
            _check_range(name, getattr(self, name), int | float, *bounds)
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            problem = f"must be at least max_loras, {self.max_loras}"
            raise refuse("max_cpu_loras", self.max_cpu_loras, problem)
        self._check_names()
        self._check_processors()

    def _check_names(self) -> None:
        if not self.model or not isinstance(self.model, str):
            raise ValidationError("model must be a folder or a hub id", "model", self.model)
        for name in ("tokenizer", "revision", "download_dir"):
            if not isinstance(getattr(self, name), str | PathLike | None):
                raise refuse(name, getattr(self, name), "must be a string")
        if self.otlp_traces_endpoint is not None:
            check_endpoint(self.otlp_traces_endpoint)
        names = self.served_model_name
        if names is None or (names and isinstance(names, str)):
            return
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            raise refuse("served_model_name", names, "must be a name or a list of names")

    def _check_processors(self) -> None:
        given = self.logits_processors
        if not isinstance(given, list | None):
            raise refuse("logits_processors", given, "must be a list")
        try:
            for each in given or ():
                class_name(each)
        except ValueError as error:
            raise ValidationError(f"logits_processors: {error}", "logits_processors") from None


@dataclass
class AsyncEngineArgs(EngineArgs):
    """The same: every engine here is an `AsyncLLM`."""

    @staticmethod
    def add_cli_args(parser: Parser, async_args_only: bool = False) -> Parser:
        """As `EngineArgs.add_cli_args`, and the flags of what only this class had in vLLM.

        With `async_args_only` these alone, for a parser that has the others.
        """
        if not async_args_only:
            EngineArgs.add_cli_args(parser)
        _add_flags(parser, [each for each in fields(EngineArgs) if each.name in _ASYNC_ARGS])
        return parser


def _add_flags(parser: argparse.ArgumentParser, chosen: list[Field[Any]]) -> None:
    add_arguments(parser, chosen, present=EngineArgs.__annotations__, choices=_CHOICES)


def _check_range(name: str, value: Any, kind: Any, low: float, high: float) -> None:
    if value is None and name in _MAY_BE_NONE:
        return
    if name == "max_model_len" and value == -1:
        return
    if isinstance(value, bool) or not isinstance(value, kind):
        raise refuse(name, value, f"must be {'an integer' if kind is int else 'a number'}")
    if not low <= value <= high:  # also what is no number
        limit = f"at least {low:g}" if high >= LONGEST else f"between {low:g} and {high:g}"
        raise refuse(name, value, f"must be {limit}")


LARGEST = 1 << 62
SHORTEST = 1e-3  # seconds
LONGEST = 1e9

_ASYNC_ARGS = frozenset(
    (
        "enable_log_requests",
        "disable_log_requests",
        "max_log_len",
        "worker_use_ray",
        "engine_use_ray",
    )
)
_CHOICES = {
    "dtype": tuple(DTYPES),
    "load_format": ("auto", "safetensors", "dummy"),
    "scheduling_policy": ("fcfs", "priority"),
    "device": ("auto", "cpu", "cuda"),
    "attn_backend": ("auto", "cpu", "torch", "flash_attn", "varlen", "cuda"),
    "model_impl": ("auto", "transformers", "fused"),
    "runner": ("auto", "generate", "pooling"),
    "logprobs_mode": ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"),
    "log_level": (None, "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
    # blocks are compared by their tokens, so that it makes no difference
    "prefix_caching_hash_algo": ("builtin", "sha256", "sha256_cbor", "xxhash", "xxhash_cbor"),
}
_ONLY_VALUES: dict[str, tuple[object, ...]] = {
    "quantization": (None, "int8", "int4"),
    "kv_cache_dtype": ("auto", "int8"),
    "skip_tokenizer_init": (False,),
    "enable_chunked_prefill": (None, True),  # a prefill is always chunked
    "tokenizer_mode": ("auto", "hf"),
    "block_size": (None, 16),  # what the kernels are written for
    "generation_config": ("auto", "vllm"),  # no sampling parameter comes from a checkpoint
    "tensor_parallel_size": (1,),  # there is one device, and one process that computes on it
    "pipeline_parallel_size": (1,),
    "data_parallel_size": (1,),
    "worker_use_ray": (False,),
    "engine_use_ray": (False,),
}
_BOOLEANS = (
    "enforce_eager",
    "enable_lora",
    "disable_log_stats",
    "enable_log_requests",
    "disable_log_requests",
    "batch_invariant",
)
_INTEGERS: dict[str, tuple[int, int]] = {
    "seed": (-(1 << 63), (1 << 63) - 1),
    "max_model_len": (2, LARGEST),
    "kv_cache_memory_bytes": (1, LARGEST),
    "num_gpu_blocks_override": (1, 1 << 31),
    "max_num_batched_tokens": (1, 1 << 20),
    "max_num_seqs": (1, 1 << 20),
    "long_prefill_token_threshold": (0, LARGEST),
    "max_num_queued_reqs": (1, LARGEST),
    "max_num_queued_tokens": (1, LARGEST),
    "stream_interval": (1, LARGEST),
    "max_logprobs": (-1, LARGEST),
    "max_loras": (1, LARGEST),
    "max_cpu_loras": (1, LARGEST),
    "max_lora_rank": (1, 512),
    "max_log_len": (0, LARGEST),
    "threads": (0, 1024),
}
_SECONDS_AND_RATES: dict[str, tuple[float, float]] = {
    "gpu_memory_utilization": (SHORTEST, 1),
    "shutdown_timeout": (0, LONGEST),
    "pace": (0, LONGEST),
    "max_step_seconds": (0, LONGEST),
    "watchdog_seconds": (SHORTEST, LONGEST),
    "sleep_after_seconds": (SHORTEST, LONGEST),
    "max_queue_seconds": (SHORTEST, LONGEST),
    "max_request_seconds": (SHORTEST, LONGEST),
}
_MAY_BE_NONE = frozenset(
    (
        "seed",
        "max_model_len",
        "kv_cache_memory_bytes",
        "num_gpu_blocks_override",
        "max_num_batched_tokens",
        "max_num_seqs",
        "max_num_queued_reqs",
        "max_num_queued_tokens",
        "max_log_len",
        "sleep_after_seconds",
        "max_cpu_loras",
        "max_queue_seconds",
        "max_request_seconds",
    )
)
