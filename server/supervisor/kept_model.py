"""`KeptModel`: one model that the supervisor knows, its status and who uses it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from server.config.models import ModelSource, ModelState, ModelStatus
from server.engines.managed import ManagedEngine


@dataclass(eq=False)
class KeptModel:
    """`on_change` hears that the status is another one."""

    source: ModelSource
    status: ModelStatus
    on_change: Callable[[], None]
    engine: ManagedEngine | None = None  # once its files are known
    users: set[str] = field(default_factory=set)  # workers
    used_at: float = 0.0  # by the monotonic clock: when it was loaded, or used last
    is_leaving: bool = False  # an administrator wants it to go as soon as nobody uses it
    is_wanted: bool = False  # it was asked for while it went
    goes_at: float | None = None  # the end of its grace
    logged_at: float = 0.0
    thread: threading.Thread | None = None
    outcome: ManagedEngine | str | None = None  # of a preparation; a text says why it failed
    lock: threading.Lock = field(default_factory=threading.Lock)  # held by a preparation
    fetched: float | None = None  # the share of its files that has come
    has_ended: bool = False  # its process, at the end of an unloading

    @property
    def name(self) -> str:
        return self.status.name

    @property
    def engine_names(self) -> set[str]:
        """One that is alone has the name of its model."""
        return {engine.name for engine in self.status.engines} or {self.name}

    @property
    def is_idle(self) -> bool:
        return self.status.state is ModelState.LOADED and not self.users

    @property
    def promised_bytes(self) -> int:
        """What its process takes when all of its cache is in use."""
        needs = None if self.engine is None else self.engine.facts.needs_bytes
        return self.status.memory_bytes or needs or 0

    def enter(self, state: ModelState, **fields: object) -> None:
        """Another state: what belongs to the one before is gone, but for what the files say."""
        old = self.status
        self.status = msgspec.structs.replace(
            ModelStatus(name=old.name, kind=old.kind, url=old.url, attempt=old.attempt),
            state=state,
            **{"facts": old.facts, "options": old.options, "engines": old.engines, **fields},
        )
        self.on_change()

    def change(self, **fields: object) -> None:
        """The same state, of which something else is true now."""
        self.status = msgspec.structs.replace(self.status, **fields)
        self.on_change()
