"""What the supervisor does before it starts the first core: find the model, configure the core."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from engine import AsyncEngineArgs, DownloadError, PrivateDirectory, demo_model
from engine.client.download import model_name, resolve_model
from engine.client.text.tokenizer_folder import try_chat_template
from engine.config import EngineConfig
from server.config.settings import Settings
from server.engines.client import RetryableRequestError, ValidationError
from server.engines.managed import EngineSetupError
from server.engines.native.connection import ConnectOptions
from server.engines.native.core_keeper import CoreKeeper


def manage(settings: Settings, wake: Callable[[], None]) -> CoreKeeper:
    """Get the model ready for a core, which `start` then starts. Raises `EngineSetupError`."""
    try:
        folder = demo_model() if settings.is_demo else resolve_model(settings.model)
        try_chat_template(folder)  # one that would hold up or break every answer
    # The template's own error, or of a renderer that was killed.
    except (DownloadError, ValidationError, RetryableRequestError) as error:
        raise EngineSetupError(str(error)) from None
    directory = PrivateDirectory()
    return CoreKeeper(
        core_config(settings, folder, directory.address),
        directory,
        connect_options=connect_options(settings, folder, directory.address),
        watchdog_seconds=settings.intervals.watchdog,
        wake=wake,
        standby_core=settings.standby_core,
    )


def core_config(settings: Settings, folder: Path, address: str) -> EngineConfig:
    """Of a core that serves the model in `folder`, and listens at `address`."""
    args = AsyncEngineArgs(
        model=str(folder),
        served_model_name=_model_name(settings),
        runner="generate",  # people chat with it
        scheduling_policy="priority",  # by arrival, as long as nobody asks for another one
        pace=settings.effective_pace,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        kv_cache_memory_bytes=settings.kv_cache_memory_bytes,
        device=settings.device,
        attn_backend=settings.attn_backend,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        dtype=settings.dtype,
        quantization=settings.quantize,
        kv_cache_dtype=settings.kv_cache_dtype,
        enable_lora=settings.lora_dir is not None,
        max_loras=settings.max_loras,
        max_cpu_loras=max(settings.max_cpu_loras, settings.max_loras),
        max_lora_rank=settings.max_lora_rank,
        sleep_after_seconds=settings.sleep_after_seconds or None,
        log_level=settings.log_level.upper(),
    )
    config = args.create_engine_config(address, model=str(folder))
    return msgspec.structs.replace(config, log_format=settings.effective_log_format)


def connect_options(settings: Settings, folder: Path, address: str) -> dict[str, Any]:
    """Of the workers that join this core, in builtins."""
    options = ConnectOptions(
        address=address,
        folder=str(folder),
        name=_model_name(settings),
        max_num_queued_reqs=settings.max_num_queued_reqs or None,
    )
    return dict(msgspec.to_builtins(options))


def _model_name(settings: Settings) -> str:
    if settings.is_demo:
        return "parley-demo"
    return model_name(settings.model)
