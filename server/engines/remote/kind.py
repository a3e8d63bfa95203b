"""`RemoteKind`: a kind of engine that is reached at an address, as supervisor and workers have it.

The supervisor gets an `EngineElsewhere` by `manage`; each worker joins the engine by `connect`, by
itself, and knows the model by the folder that its tokenizer is in.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from server.engines.client import CoreState, EngineClient, ServedModel
from server.engines.managed import ManagedEngine
from server.engines.native.connection import sampling_defaults
from server.engines.native.fingerprint import model_fingerprint
from server.engines.remote.options import RemoteOptions

if TYPE_CHECKING:
    from engine.client.text.tokenizer import Tokenizer
    from server.config.engines import EngineEntry
    from server.config.models import ModelSource
    from server.config.settings import Settings
    from server.engines.remote.dialects.dialect import Dialect
    from server.engines.tracing import Tracing

# Of a tokenizer, of what the engine calls the model, if somebody has said that, and of what we call
# it. It imports what only workers need.
DialectMaker = Callable[["Tokenizer", "str | None", str], "Dialect"]


@dataclass(frozen=True, slots=True)
class RemoteKind:
    """`dialect` makes the kind's, of a tokenizer and of the model's names."""

    name: str
    dialect: DialectMaker

    def manage(
        self,
        settings: "Settings",
        model: "ModelSource",
        entry: "EngineEntry",
        wake: Callable[[], None],
        on_progress: Callable[[float], None] | None = None,
        most_free: Callable[[], int | None] | None = None,
    ) -> ManagedEngine:
        """Read what the folder says. Raises `EngineSetupError`."""
        from server.engines.remote import keeper  # which workers need not import

        return keeper.manage(self.name, self.dialect, settings, model, entry, wake, on_progress)

    def name_of(self, model: "ModelSource") -> str:
        from server.engines.native import name_of

        return name_of(model)

    def is_here(self, model: "ModelSource") -> bool:
        from server.engines.native import is_here

        return is_here(model)

    def free_bytes(self, settings: "Settings") -> int | None:
        """Its memory is not of this machine."""
        return None

    def connect(
        self,
        options: Mapping[str, Any],
        *,
        on_core_state: Callable[[CoreState, str], None],
        tracing: "Tracing | None" = None,
        tokenizer: "Tokenizer | None" = None,
    ) -> EngineClient:
        """Join the engine, which may not be there yet. Raises `UnsupportedModelError`."""
        from engine import AsyncLLM
        from server.engines.remote.checkpoint import read_checkpoint
        from server.engines.remote.link import RemoteLink
        from server.engines.remote.patience import Patience

        given = msgspec.convert(options, RemoteOptions)
        folder = Path(given.folder)
        checkpoint = read_checkpoint(folder, given.max_model_len, tokenizer)
        link = RemoteLink(
            given.address,
            self.dialect(checkpoint.tokenizer, given.model, given.name),
            checkpoint,
            served_model_name=given.name,
            patience=Patience.of(given.stillness_seconds),
        )
        return AsyncLLM.connect(
            link,
            model=given.folder,
            served_model_name=given.name,
            tokenizer=checkpoint.tokenizer,
            max_num_queued_reqs=given.max_num_queued_reqs,
            on_core_state=on_core_state,
            tracing=tracing,
            answer_format=given.answer_format,
        )

    def read_tokenizer(self, options: Mapping[str, Any]) -> "Tokenizer":
        """Raises `UnsupportedModelError`."""
        from engine.client.text.tokenizer import Tokenizer

        return Tokenizer(msgspec.convert(options, RemoteOptions).folder)

    def served_model(self, options: Mapping[str, Any]) -> ServedModel:
        """What the folder says of the model."""
        given = msgspec.convert(options, RemoteOptions)
        folder = Path(given.folder)
        return ServedModel(given.name, model_fingerprint(folder), sampling_defaults(folder))
