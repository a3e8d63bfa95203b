"""What the supervisor does before it starts the first core: find the model, configure the core."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from engine import AsyncEngineArgs, DownloadError, PrivateDirectory, demo_model
from engine.client.download import local_path, model_name, resolve_model
from engine.client.hub.plan import DownloadPlan
from engine.client.text.tokenizer_folder import try_chat_template
from engine.config import EngineConfig, FarDoor
from engine.folder.caches.names import find_model
from server.config.models import ModelSource
from server.config.settings import Settings
from server.engines.client import RetryableRequestError, ValidationError
from server.engines.managed import EngineSetupError
from server.engines.native.connection import ConnectOptions
from server.engines.native.core_keeper import CoreKeeper
from server.engines.native.download_forecast import check_download
from server.engines.native.far.check import identity_of
from server.engines.native.forecast import free_bytes, read_facts


def manage(
    settings: Settings,
    model: ModelSource,
    wake: Callable[[], None],
    on_progress: Callable[[float], None] | None = None,
    most_free: Callable[[], int | None] | None = None,
    far: FarDoor | None = None,
    num_sharing: int = 1,
) -> CoreKeeper:
    """Get the model ready for a core, which `start` then starts. Raises `EngineSetupError`.

    May be called in any thread: a model of the hub is downloaded first, with `on_progress`, if
    there is room for it on the disk, and in the memory that `most_free` says there may be. With
    `far` it takes clients of other machines as well. So many cores share the processors.
    """

    def check(plan: DownloadPlan) -> None:
        check_download(settings, plan, most_free() if most_free else free_bytes(settings))

    try:
        folder = _folder_of(model, on_progress, check)
        try_chat_template(folder)  # one that would hold up or break every answer
        facts = read_facts(settings, folder)
    # The template's own error, or of a renderer that was killed.
    except (DownloadError, ValidationError, RetryableRequestError) as error:
        raise EngineSetupError(str(error)) from None
    directory = PrivateDirectory()
    is_default = model == settings.models[0]
    config = core_config(settings, model, folder, directory.address)
    config = msgspec.structs.replace(config, num_sharing=num_sharing)
    if far is not None:
        config = msgspec.structs.replace(config, far=far, identity=identity_of(folder))
    return CoreKeeper(
        config,
        directory,
        facts=facts,
        connect_options=connect_options(settings, model, folder, directory.address),
        watchdog_seconds=settings.intervals.watchdog,
        wake=wake,
        standby_core=settings.standby_core and is_default,
    )


def _folder_of(
    model: ModelSource,
    on_progress: Callable[[float], None] | None,
    on_plan: Callable[[DownloadPlan], None],
) -> Path:
    if model.is_demo:
        return demo_model()
    return resolve_model(model.source, on_progress=on_progress, on_plan=on_plan)


def core_config(settings: Settings, model: ModelSource, folder: Path, address: str) -> EngineConfig:
    """Of a core that serves the model in `folder`, and listens at `address`."""
    args = AsyncEngineArgs(
        model=str(folder),
        served_model_name=name_of(model),
        runner="generate",  # people chat with it
        scheduling_policy="priority",  # by arrival, as long as nobody asks for another one
        pace=settings.pace_of(model),
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        kv_cache_memory_bytes=settings.kv_cache_memory_bytes,
        device=settings.device,
        attn_backend=settings.attn_backend,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        dtype=settings.dtype,
        quantization=settings.quantize,
        kv_cache_dtype=settings.kv_cache_dtype,
        enable_lora=settings.lora_dir is not None and model == settings.models[0],
        max_loras=settings.max_loras,
        max_cpu_loras=max(settings.max_cpu_loras, settings.max_loras),
        max_lora_rank=settings.max_lora_rank,
        sleep_after_seconds=settings.sleep_after_seconds or None,
        log_level=settings.log_level.upper(),
    )
    config = args.create_engine_config(address, model=str(folder))
    return msgspec.structs.replace(config, log_format=settings.effective_log_format)


def connect_options(
    settings: Settings, model: ModelSource, folder: Path, address: str
) -> dict[str, Any]:
    """Of the workers that join this core, in builtins."""
    options = ConnectOptions(
        address=address,
        folder=str(folder),
        name=name_of(model),
        max_num_queued_reqs=settings.max_num_queued_reqs or None,
        restart_seconds=settings.intervals.restart,
        answer_format=settings.answer_format,
    )
    return dict(msgspec.to_builtins(options))


def name_of(model: ModelSource) -> str:
    """What clients call it."""
    if model.given_name is not None:
        return model.given_name
    return "parley-demo" if model.is_demo else model_name(model.source)


def is_here(model: ModelSource) -> bool:
    """Whether its files lie on this machine, or could nowhere else."""
    source = model.source
    looks_local = source.startswith((".", "/", "~")) or source.count("/") > 1
    if model.is_demo or looks_local or os.path.exists(local_path(source)):
        return True
    try:
        return find_model(model.source) is not None
    except DownloadError:
        return True  # it is of a cache of this machine, and something is wrong with it
