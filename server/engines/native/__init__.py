"""The native kind: our own engine, whose core is a process of this host, or of another one.

The supervisor gets a `CoreKeeper` of each model by `manage`, or an `EngineElsewhere` (`far/`) of a
core that runs elsewhere; each worker joins the core by `connect`, and knows the model by
`served_model`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from server.engines.native.connection import connect, read_tokenizer, served_model

if TYPE_CHECKING:
    from server.config.engines import EngineEntry
    from server.config.models import ModelSource
    from server.config.settings import Settings
    from server.engines.managed import ManagedEngine

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
) -> "ManagedEngine":
    """Get the model ready for a core, which `start` then starts. Raises `EngineSetupError`.

    For a core on another machine what workers read of the model is made ready here.
    """
    from server.engines.native import preparation  # which workers need not import

    if entry.url is not None:
        from server.engines.native.far import keeper

        return keeper.manage(settings, model, entry, wake, on_progress)
    return preparation.manage(
        settings, model, wake, on_progress, most_free, num_sharing=entry.num_sharing
    )


def name_of(model: "ModelSource") -> str:
    """What clients call it."""
    from server.engines.native import preparation

    return preparation.name_of(model)


def is_here(model: "ModelSource") -> bool:
    """Whether its files lie on this machine."""
    from server.engines.native import preparation

    return preparation.is_here(model)


def free_bytes(settings: "Settings") -> int | None:
    """Memory for further models; None on a GPU, whose cores find out by themselves."""
    from server.engines.native import forecast

    return forecast.free_bytes(settings)
