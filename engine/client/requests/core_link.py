"""`CoreLink`: what a client needs of the way to its core, wherever that is, and its words for it.

`CoreConnection` is the link to a core of ours, over a socket of this host. Another one leads to an
engine that somebody else has written: it makes that engine's words of the requests, and
`SequenceOutput`s of what comes back. All that a client does for a request stays the same above it.
"""

import enum
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from engine.ipc import ClientMessage, Ready, SchedulerStats, SequenceOutput
from engine.sampling_params import SamplingParams

CANNOT_CONTINUE = "cannot_continue"  # the code of an error: this answer would start again there


class CoreState(enum.StrEnum):
    """What a client knows of its core."""

    CONNECTING = "connecting"  # no core has answered yet
    READY = "ready"
    STALLED = "stalled"  # alive, but its step loop has not come round for a while
    DEAD = "dead"  # gone; one that joins again joins the next one as soon as it answers


class Exactness(enum.StrEnum):
    """What becomes of an answer whose engine dies in the middle, from the best to the worst.

    On no rung is a character that was shown shown again, or changed.
    """

    EXACT = "exact"  # it goes on, bit for bit as it would have
    TOKENS = "tokens"  # it goes on from the next token, perhaps with other words than it would have
    TEXT = "text"  # it goes on after its text, which the engine may cut into other tokens
    NONE = "none"  # it ends there, incomplete


class CoreListener(Protocol):
    """Who hears from a `CoreLink`; called on the event loop, must not raise."""

    def on_core_outputs(self, outputs: Sequence[SequenceOutput]) -> None: ...

    def on_core_silent(self, request_ids: Sequence[str]) -> None:
        """The core was asked to end these, and will not say when it has."""

    def on_core_state(self, state: CoreState, reason: str) -> None: ...


class CoreLink(Protocol):
    """One client's way to one core at a time, from whichever event loop it was last attached to."""

    @property
    def state(self) -> CoreState: ...

    @property
    def ready(self) -> Ready | None:
        """What the core that we are joined to said of itself; None without one."""

    @property
    def stats(self) -> SchedulerStats | None:
        """Its load, as far as that is known."""

    @property
    def heard_at(self) -> float | None:
        """When it last said how it is, by `time.monotonic()`: each second while it is well.

        None where only `state` tells.
        """

    @property
    def exactness(self) -> Exactness:
        """What becomes of an answer when the core dies and is joined again."""

    def listen(self, listener: CoreListener) -> None:
        """Let this one hear what comes, held weakly: an engine that nobody holds can be collected.

        Called once, before all else.
        """

    def attach(self) -> None:
        """Work on the running event loop from now on. Does nothing if it does so already."""

    def send(self, message: ClientMessage) -> bool:
        """Put a message on its way without waiting; False when no core is connected.

        `ValidationError` for one that cannot be sent, and for a request that names something that
        this core cannot do. A request that it cannot continue ends with the error
        `CANNOT_CONTINUE`.
        """

    def check(self, params: SamplingParams) -> None:
        """Raise the `ValidationError` that `send` would raise for these parameters alone."""

    def abort(self, request_ids: Sequence[str], reason: str = "abort") -> None:
        """Have the core end requests, by internal id; without a core there is nothing to end.

        Each has a last output, with reason "abort", when the core is known to have ended it; of
        those for which nobody will know, the listener hears.
        """

    def call(self, name: str, *args: Any) -> Awaitable[Any]:
        """Call a utility of the core by name. Fails with `EngineDeadError` if the core dies.

        `EngineGenerateError` if it answers with an error, or has no such utility. Raises
        `ValidationError` for arguments that the core could not read.
        """

    async def wait_ready(self) -> None:
        """Return when a core is joined and its step loop comes round. May be cancelled freely.

        Raises `EngineDeadError` when the link is closed, or the only core dies, meanwhile.
        """

    def core_has_exited(self) -> bool:
        """Whether the joined core is gone, even if the event loop does not know yet."""

    def close(self) -> None:
        """End it. Idempotent; what was sent before still leaves."""
