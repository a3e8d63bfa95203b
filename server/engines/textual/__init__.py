"""The kind `openai`: any server with OpenAI's `/chat/completions`, which takes and gives texts.

Nothing is known of its tokens, so an answer that breaks off goes on after its text, or not at all.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from server.engines.managed import EngineSetupError
from server.engines.textual.connection import connect, read_tokenizer, served_model

if TYPE_CHECKING:
    from server.config.engines import EngineEntry
    from server.config.models import ModelSource
    from server.config.settings import Settings
    from server.engines.textual.keeper import TextKeeper

__all__ = [
    "connect",
    "free_bytes",
    "is_here",
    "manage",
    "name_of",
    "read_tokenizer",
    "served_model",
]


def manage(
    settings: "Settings",
    model: "ModelSource",
    entry: "EngineEntry",
    wake: Callable[[], None],
    on_progress: Callable[[float], None] | None = None,
    most_free: Callable[[], int | None] | None = None,
) -> "TextKeeper":
    """Know where the engine is; `start` looks for it. Raises `EngineSetupError`."""
    from server.engines.remote.wire.problems import Misfit
    from server.engines.textual.connection import ConnectOptions  # which workers need not import
    from server.engines.textual.keeper import TextKeeper
    from server.engines.textual.line import base_of

    if model.is_demo and model.given_name is None:
        raise EngineSetupError(f"{entry.name}: --model says what clients call its model")
    assert entry.url is not None  # no entry of this kind is without one
    key, ca = entry.key_file, entry.ca_file
    options = ConnectOptions(
        base=base_of(entry.url),
        name=name_of(model),
        given=entry.model,
        key_file=None if key is None else str(key),
        ca_file=None if ca is None else str(ca),
        context=settings.max_model_len,
        max_num_queued_reqs=settings.max_num_queued_reqs or None,
    )
    try:
        _ = options.address.key(), options.address.trust
    except Misfit as problem:
        raise EngineSetupError(f"{entry.name}: {problem}") from None
    return TextKeeper(entry.name, options, wake)


def name_of(model: "ModelSource") -> str:
    """What clients call it, and the engine as well, if nobody says otherwise."""
    return model.given_name or model.source


def is_here(model: "ModelSource") -> bool:
    """It has no files that would have to be fetched."""
    return True


def free_bytes(settings: "Settings") -> int | None:
    """It takes no memory of this machine."""
    return None
