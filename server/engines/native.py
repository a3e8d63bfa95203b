"""The native kind: our own engine, whose core is a process of this host.

The supervisor prepares the model, starts the core and watches it with what is imported here; a
worker joins it by `connect`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from engine import (
    AsyncEngineArgs,
    AsyncLLM,
    CoreProcess,
    CoreState,
    DownloadError,
    EngineStartError,
    PrivateDirectory,
    UnsupportedModelError,
    demo_model,
)
from engine.client.download import resolve_model
from engine.client.probe import CoreProbe
from engine.client.text.tokenizer_folder import try_chat_template
from engine.config import EngineConfig
from server.engines.client import EngineClient

__all__ = [
    "CoreProbe",
    "CoreProcess",
    "DownloadError",
    "EngineConfig",
    "EngineStartError",
    "PrivateDirectory",
    "UnsupportedModelError",
    "connect",
    "core_config",
    "demo_model",
    "resolve_model",
    "try_chat_template",
]


def core_config(folder: Path, address: str, *, log_format: str, **arguments: Any) -> EngineConfig:
    """Of a core that listens at `address`; `arguments` are those of `AsyncEngineArgs`."""
    args = AsyncEngineArgs(
        model=str(folder),
        scheduling_policy="priority",  # by arrival, as long as nobody asks for another one
        **arguments,
    )
    config = args.create_engine_config(address, model=str(folder))
    return msgspec.structs.replace(config, log_format=log_format)


def connect(
    address: str,
    *,
    folder: str,
    name: str,
    max_num_queued_reqs: int | None,
    on_core_state: Callable[[CoreState, str], None],
) -> EngineClient:
    """Join the core, which may not be there yet. Raises `UnsupportedModelError`."""
    return AsyncLLM.connect(
        address,
        model=folder,
        served_model_name=name,
        max_num_queued_reqs=max_num_queued_reqs,
        on_core_state=on_core_state,
    )
