"""The native kind: our own engine, whose core is a process of this host.

The supervisor gets a `CoreKeeper` by `manage`; each worker joins the core by `connect`, and knows
the model by `served_model`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from server.engines.native.connection import connect, served_model

if TYPE_CHECKING:
    from server.config.settings import Settings
    from server.engines.native.core_keeper import CoreKeeper

__all__ = ["connect", "manage", "served_model"]


def manage(settings: "Settings", wake: Callable[[], None]) -> "CoreKeeper":
    """Get the model ready for a core, which `start` then starts. Raises `EngineSetupError`."""
    from server.engines.native import preparation  # which workers need not import

    return preparation.manage(settings, wake)
