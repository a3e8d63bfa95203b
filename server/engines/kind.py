"""`EngineKind`: what the supervisor and the workers need of a kind of engine."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from server.config.engines import EngineEntry
from server.engines.client import CoreState, EngineClient, ServedModel
from server.engines.managed import ManagedEngine

if TYPE_CHECKING:
    from server.config.models import ModelSource
    from server.config.settings import Settings
    from server.engines.tracing import Tracing


class EngineKind(Protocol):
    """A module, or what has the same functions."""

    def manage(
        self,
        settings: "Settings",
        model: "ModelSource",
        entry: EngineEntry,
        wake: Callable[[], None],
        on_progress: Callable[[float], None] | None = None,
        most_free: Callable[[], int | None] | None = None,
    ) -> ManagedEngine:
        """Prepare an engine for the supervisor, whose `watch` is due whenever `wake` was called.

        `entry` is what the operator says of it.

        In any thread, and it may take long: files are fetched, of which `on_progress` hears the
        share that has come, perhaps in further threads. Raises `EngineSetupError`, also instead of
        fetching what cannot fit into the memory that `most_free` says there may be, by default
        what `free_bytes` says.
        """

    def name_of(self, model: "ModelSource") -> str:
        """What clients call a model, whether or not its files are here."""

    def is_here(self, model: "ModelSource") -> bool:
        """Whether `manage` fetches nothing."""

    def free_bytes(self, settings: "Settings") -> int | None:
        """Memory for further models, as the system says; None: nobody can tell."""

    def connect(
        self,
        options: Mapping[str, Any],
        *,
        on_core_state: Callable[[CoreState, str], None],
        tracing: "Tracing | None" = None,
        tokenizer: Any = None,
    ) -> EngineClient:
        """Join the engine from a worker. Raises `UnsupportedModelError`.

        `options` are the `connect_options` of the `ManagedEngine`: the kind alone reads them.
        `tracing` gets a span of each request. `tokenizer` is of `read_tokenizer`, if that was
        called.
        """

    def read_tokenizer(self, options: Mapping[str, Any]) -> Any:
        """What of joining would halt a worker for a while. Raises `UnsupportedModelError`."""

    def served_model(self, options: Mapping[str, Any]) -> ServedModel:
        """What a worker that joins with these options serves."""
