"""`ManagedEngine`: an engine as the supervisor prepares, starts, watches and stops it."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from server.config.models import ModelFacts


class EngineSetupError(Exception):
    """The model cannot be served: one line for the operator."""


class EngineRefused(Exception):
    """Engines are not changed as somebody asked: one line that says why."""


class ManagedEngine(Protocol):
    """One engine, before and after each of its restarts.

    All of it but `clean_up` and `release` belongs to the supervisor's own thread.
    """

    @property
    def model_name(self) -> str:
        """What clients call the model."""

    @property
    def connect_options(self) -> Mapping[str, Any]:
        """What `EngineKind.connect` needs in a worker: builtins that JSON can carry."""

    @property
    def facts(self) -> ModelFacts:
        """What its files say."""

    @property
    def is_current(self) -> bool:
        """Whether its files are still those that all this was read from."""

    @property
    def memory_bytes(self) -> int | None:
        """What it takes, or will have taken; None before it serves, or if nobody can tell."""

    @property
    def taken_bytes(self) -> int:
        """What its process has taken so far, as far as that is its own."""

    @property
    def is_starting(self) -> bool: ...

    @property
    def start_error(self) -> str | None:
        """Why the last start failed."""

    @property
    def num_failed_starts(self) -> int:
        """How many in a row."""

    @property
    def is_refusal(self) -> bool:
        """`start_error` speaks of the model alone, and needs no introduction."""

    @property
    def due(self) -> float | None:
        """When `watch` has something to start (`time.monotonic()`)."""

    def start(self) -> None:
        """Begin to start it, and return."""

    def watch(self) -> bool:
        """Replace what died or hangs. False when it will not start any more."""

    def release(self) -> None:
        """End its process and give back its memory; `start` starts it anew. In any thread."""

    def stop(self) -> None:
        """End it, and leave nothing behind."""

    def clean_up(self) -> None:
        """Remove its files, from any thread: this process exits now."""


@runtime_checkable
class Restartable(Protocol):
    """An engine whose process is ours."""

    def restart(self) -> None:
        """Have it end, and be replaced as one that has died. Raises `EngineRefused`."""
