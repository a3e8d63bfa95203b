"""Which kind of engine answers: the one place that names them all.

A kind is a module or a folder beside this file with the two functions of `EngineKind`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from server.config.settings import Settings
from server.engines import native
from server.engines.client import CoreState, EngineClient
from server.engines.managed import ManagedEngine

if TYPE_CHECKING:
    from server.engines.tracing import Tracing


class EngineKind(Protocol):
    """What the supervisor and the workers need of a kind."""

    def manage(self, settings: Settings, wake: Callable[[], None]) -> ManagedEngine:
        """Prepare an engine for the supervisor, whose `watch` is due whenever `wake` was called.

        Raises `EngineSetupError`.
        """

    def connect(
        self,
        address: str,
        *,
        folder: str,
        name: str,
        max_num_queued_reqs: int | None,
        on_core_state: Callable[[CoreState, str], None],
        tracing: "Tracing | None" = None,
    ) -> EngineClient:
        """Join the engine from a worker. Raises `UnsupportedModelError`.

        `tracing` gets a span of each request.
        """


KINDS: dict[str, EngineKind] = {"native": native}


def chosen_kind(settings: Settings) -> str:
    """The name of the kind that an operator's settings ask for."""
    return "native"
