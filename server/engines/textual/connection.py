"""How a worker joins an engine of texts, and what it knows of the model before."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from server.engines.client import CoreState, EngineClient, ServedModel
from server.engines.remote.wire.address import RemoteAddress

if TYPE_CHECKING:
    from server.engines.tracing import Tracing

DIGITS = 16


class ConnectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker must know; the supervisor passes it on as builtins."""

    base: str  # the address of the routes
    name: str  # of the model, as clients call it
    given: str | None = None  # as the engine calls it, if the operator has said that
    key_file: str | None = None
    ca_file: str | None = None
    context: int | None = None  # tokens, of which an operator wants no more
    max_num_queued_reqs: int | None = None

    @property
    def address(self) -> RemoteAddress:
        key, ca = self.key_file, self.ca_file
        return RemoteAddress(self.base, Path(key) if key else None, Path(ca) if ca else None)


def connect(
    options: Mapping[str, Any],
    *,
    on_core_state: Callable[[CoreState, str], None],
    tracing: "Tracing | None" = None,
    tokenizer: Any = None,
) -> EngineClient:
    """Join the engine, which may not be there yet."""
    from server.engines.textual.engine import TextEngine  # the supervisor needs none of it
    from server.engines.textual.line import Line

    given = msgspec.convert(options, ConnectOptions)
    return TextEngine(
        Line(given.address),
        name=given.name,
        given=given.given,
        context=given.context,
        max_num_queued_reqs=given.max_num_queued_reqs,
        on_core_state=on_core_state,
        tracing=tracing,
    )


def read_tokenizer(options: Mapping[str, Any]) -> None:
    """Nothing of joining takes long."""


def served_model(options: Mapping[str, Any]) -> ServedModel:
    """The model by its name alone: of its files nothing is known."""
    given = msgspec.convert(options, ConnectOptions)
    known = f"openai {given.given or given.name}"
    return ServedModel(given.name, hashlib.sha256(known.encode()).hexdigest()[:DIGITS])
