"""How a worker joins the core, and what it reads in the model's folder, which it shares with it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from server.engines.client import EngineClient, ServedModel
from server.engines.native.far.options import FarOptions
from server.engines.native.fingerprint import model_fingerprint

if TYPE_CHECKING:
    from engine import CoreState
    from engine.client.far.connection import FarCoreConnection
    from engine.client.text.tokenizer import Tokenizer
    from server.engines.tracing import Tracing

SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class ConnectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker must know to join the core; the supervisor passes it on as builtins."""

    address: str
    folder: str  # of the model
    name: str  # of the model, as clients call it
    max_num_queued_reqs: int | None = None
    restart_seconds: float = 60.0  # `Intervals.restart`
    answer_format: str | None = None
    far: FarOptions | None = None  # of a core on another machine


def connect(
    options: Mapping[str, Any],
    *,
    on_core_state: "Callable[[CoreState, str], None]",
    tracing: "Tracing | None" = None,
    tokenizer: "Tokenizer | None" = None,
) -> EngineClient:
    """Join the core, which may not be there yet. Raises `UnsupportedModelError`.

    `tokenizer` is what `read_tokenizer` has read before.
    """
    from engine import AsyncLLM  # workers need it; the supervisor imports this module, too

    given = msgspec.convert(options, ConnectOptions)
    return AsyncLLM.connect(
        _link(given),
        model=given.folder,
        served_model_name=given.name,
        tokenizer=tokenizer,
        max_num_queued_reqs=given.max_num_queued_reqs,
        restart_seconds=given.restart_seconds,
        on_core_state=on_core_state,
        tracing=tracing,
        answer_format=given.answer_format,
    )


def _link(given: ConnectOptions) -> "str | FarCoreConnection":
    if given.far is None:
        return given.address
    from server.engines.native.far.check import open_link  # which few need

    return open_link(given.address, given.far)


def read_tokenizer(options: Mapping[str, Any]) -> "Tokenizer":
    """What of joining takes long, for models that are joined again and again.

    Raises `UnsupportedModelError`.
    """
    from engine.client.text.tokenizer import Tokenizer

    return Tokenizer(msgspec.convert(options, ConnectOptions).folder)


def served_model(options: Mapping[str, Any]) -> ServedModel:
    """What the model's folder says of it."""
    given = msgspec.convert(options, ConnectOptions)
    folder = Path(given.folder)
    return ServedModel(given.name, model_fingerprint(folder), sampling_defaults(folder))


def sampling_defaults(folder: Path) -> dict[str, Any]:
    path = folder / "generation_config.json"
    if not path.is_file():
        return {}
    config = orjson.loads(path.read_bytes())
    return {name: config[name] for name in SAMPLING_DEFAULTS if config.get(name) is not None}
