"""`EngineParts`: what an engine is made of, how it is started, and how it is let go of.

`start_parts` starts a core of its own and joins it. `release` ends what an engine holds; it takes
no engine, so that a finalizer of the engine may call it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from engine.client.args import AsyncEngineArgs, EngineArgs
from engine.client.download import resolve_model
from engine.client.launcher import STOP_TIMEOUT_SECONDS, CoreProcess, PrivateDirectory
from engine.client.requests.core_client import CoreClient
from engine.client.requests.core_connection import STALL_SECONDS, CoreConnection
from engine.client.requests.core_link import CoreLink
from engine.client.requests.request_state import RequestState
from engine.client.text.tokenizer import Tokenizer
from engine.tracing.endpoint import open_tracing
from engine.tracing.request_trace import RequestTrace

if TYPE_CHECKING:
    from engine.tracing.tracing import Tracing

HANDSHAKE_SECONDS = 30.0

# What the constructors of vLLM's generations are given instead of arguments; None asks for nothing.
CONFIG_OBJECTS = (
    "vllm_config",
    "executor_class",
    "model_config",
    "cache_config",
    "parallel_config",
    "scheduler_config",
    "device_config",
    "lora_config",
    "placement_group",
)


@dataclass(kw_only=True)
class EngineParts:
    """What an engine is made of."""

    client: CoreClient
    tokenizer: Tokenizer
    model: str
    served_model_name: str
    core: CoreProcess | None = None  # ours to end
    directory: PrivateDirectory | None = None
    max_logprobs: int = 20
    stream_interval: int = 1
    health_seconds: float = STALL_SECONDS
    shutdown_timeout: float = 5.0
    log_stats: bool = True
    log_requests: bool = False
    tracing: Tracing | None = None

    @property
    def owned(self) -> tuple[CoreProcess | None, PrivateDirectory | None, Tracing | None]:
        """What ends with the engine: nothing of one that has joined somebody else's core."""
        return self.core, self.directory, None if self.core is None else self.tracing

    def trace(
        self, states: Sequence[RequestState], headers: Any, arrival_time: float | None
    ) -> None:
        """Let each answer to a request become a span when it ends; `ValidationError`."""
        if self.tracing is not None:
            for state in states:
                state.trace = RequestTrace(
                    self.tracing, headers, self.served_model_name, arrival_time
                )


def constructor_args(
    worker_use_ray: Any,
    engine_use_ray: Any,
    positional: tuple[Any, ...],
    settings: Mapping[str, Any],
) -> EngineArgs:
    """The engine that a call of `AsyncLLM` itself asks for.

    Raises `NotImplementedError` for config objects of vLLM, by position or by name, and what
    `AsyncEngineArgs` raises; `TypeError` without a model.
    """
    way = "AsyncLLM.from_engine_args(AsyncEngineArgs(...))"
    given = dict(settings)
    # Such objects hold settings of parts that only vLLM has: to take some of them would mislead.
    for name in CONFIG_OBJECTS:
        if given.pop(name, None) is not None:
            raise NotImplementedError(f"{name} is not implemented: use {way}")
    flags = isinstance(worker_use_ray, bool) and isinstance(engine_use_ray, bool)
    if not flags or (positional and not isinstance(positional[0], str | PathLike)):
        raise NotImplementedError(f"AsyncLLM() with objects of vLLM is not implemented: use {way}")
    if not positional and "model" not in given:
        raise TypeError(f"AsyncLLM() needs a model, as {way} does")
    return AsyncEngineArgs(
        *positional, worker_use_ray=worker_use_ray, engine_use_ray=engine_use_ray, **given
    )


def start_parts(engine_args: EngineArgs) -> EngineParts:
    """Start a core, and return when it takes requests. Errors: see `AsyncLLM.from_engine_args`."""
    folder = resolve_model(
        engine_args.model, revision=engine_args.revision, cache_dir=engine_args.download_dir
    )
    directory, endpoint = PrivateDirectory(), engine_args.otlp_traces_endpoint
    with contextlib.ExitStack() as undo:
        tracing = None if endpoint is None else open_tracing(endpoint)
        if tracing is not None:
            undo.callback(tracing.close)
        undo.callback(directory.remove)
        config = engine_args.create_engine_config(directory.address, model=str(folder))
        core = CoreProcess(config)
        undo.callback(core.terminate)
        tokenizer = Tokenizer(engine_args.tokenizer or folder)  # while the core loads
        undo.callback(tokenizer.close)
        tokenizer.try_chat_template()
        core.wait_ready()
        connection = CoreConnection(directory.address, reconnect=False)
        undo.callback(connection.close)
        client = CoreClient(
            connection,
            tokenizer,
            reconnect=False,
            max_num_queued_reqs=engine_args.max_num_queued_reqs,
            max_num_queued_tokens=engine_args.max_num_queued_tokens,
        )
        connection.handshake(HANDSHAKE_SECONDS)
        undo.pop_all()
    return EngineParts(
        client=client,
        tokenizer=tokenizer,
        model=config.model,
        served_model_name=config.served_model_name,
        core=core,
        directory=directory,
        max_logprobs=engine_args.max_logprobs,
        stream_interval=engine_args.stream_interval,
        health_seconds=engine_args.watchdog_seconds,
        shutdown_timeout=engine_args.shutdown_timeout,
        log_stats=not engine_args.disable_log_stats,
        log_requests=engine_args.enable_log_requests,
        tracing=tracing,
    )


def release(
    owner_pid: int,
    link: CoreLink,
    core: CoreProcess | None,
    directory: PrivateDirectory | None,
    tracing: Tracing | None = None,
    *,
    timeout: float = STOP_TIMEOUT_SECONDS,
) -> None:
    """End what an engine holds: at its shutdown, its collection, or the interpreter's exit."""
    if os.getpid() != owner_pid:
        return  # a forked child, which owns none of it
    link.close()
    if core is not None:
        core.terminate(timeout)
    if directory is not None:
        directory.remove()
    if tracing is not None:
        tracing.close()
