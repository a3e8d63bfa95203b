"""`Calls`: the tool process's memory of calls, by the key that the caller has chosen for each.

A call runs once, however often and from wherever it is asked for under its key: its outcome is
kept for a while, for the worker that takes an answer over. The memory is bounded in number, bytes
and time. What it has forgotten it says: no call is run because nobody remembers it.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from server.tools.messages import Place, ToolError, ToolResult

KEEP_SECONDS = 600.0
MAX_KEPT = 4096
MAX_KEPT_BYTES = 32 * 2**20
MAX_RUNNING = 128
ENTRY_BYTES = 512  # that an entry takes beside its text

Outcome = ToolResult | ToolError


@dataclass(eq=False, slots=True)
class KeptCall:
    """A call that runs, or its outcome; `digest` is None for a key that no call may use."""

    key: str
    number: int
    digest: bytes | None
    ended: "asyncio.Future[Outcome]" = field(repr=False)
    ended_at: float = 0.0
    num_bytes: int = ENTRY_BYTES


class Calls:
    """All of this process. `now` is replaced in tests."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.epoch = secrets.token_hex(8)
        self._now = now
        self._num_begun = 0
        self._forgotten = 0  # the number of the latest call that is forgotten
        self._running: dict[str, KeptCall] = {}
        self._kept: dict[str, KeptCall] = {}  # by the time of their end
        self._num_bytes = 0

    @property
    def place(self) -> Place:
        """Calls that begin from now on come after it."""
        return Place(self.epoch, self._num_begun)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def begin(self, key: str, digest: bytes) -> tuple[KeptCall, bool]:
        """The call of this key, and whether it is new, so that the caller has to run it.

        Raises `ToolError`: another call has this key, or too many run.
        """
        self._forget()
        known = self._running.get(key) or self._kept.get(key)
        if known is not None:
            if known.digest != digest:
                raise ToolError("tool_key_reused", "this key belongs to another call")
            return known, False
        if len(self._running) >= MAX_RUNNING:
            raise ToolError("tool_busy", f"{MAX_RUNNING} calls of tools are running")
        call = self._running[key] = self._number(key, digest)
        return call, True

    def end(self, call: KeptCall, outcome: Outcome) -> None:
        """Tell everybody who waits. The first outcome counts."""
        if call.ended.done():
            return
        call.ended.set_result(outcome)
        self._running.pop(call.key, None)
        self._keep(call, outcome.text if isinstance(outcome, ToolResult) else outcome.message)

    def recall(self, key: str, place: Place | None) -> KeptCall | ToolError:
        """The call of this key, if it is known; otherwise what is known of it.

        Never runs anything. Afterwards no call can begin under an unknown key: the frame that asks
        for it may still be on its way from a worker that has died.
        """
        self._forget()
        if (call := self._running.get(key) or self._kept.get(key)) is not None and call.digest:
            return call
        is_sure = place is not None and place.epoch == self.epoch
        is_sure = is_sure and place is not None and self._forgotten <= place.num_begun
        if call is None:
            self._keep(self._number(key, None), "")
        if is_sure:
            return ToolError("tool_not_started", "the call had not begun, and will not")
        return ToolError("tool_outcome_unknown", "whether the tool has run is not known any more")

    def running(self, key: str) -> KeptCall | None:
        return self._running.get(key)

    def _number(self, key: str, digest: bytes | None) -> KeptCall:
        self._num_begun += 1
        ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        return KeptCall(key, self._num_begun, digest, ended)

    def _keep(self, call: KeptCall, text: str) -> None:
        call.ended_at = self._now()
        call.num_bytes += len(text.encode(errors="replace"))
        self._kept[call.key] = call
        self._num_bytes += call.num_bytes
        self._forget()

    def _forget(self) -> None:
        """What is too old, and the oldest of what is too much."""
        too_old = self._now() - KEEP_SECONDS
        while self._kept:
            oldest = next(iter(self._kept.values()))
            is_much = len(self._kept) > MAX_KEPT or self._num_bytes > MAX_KEPT_BYTES
            if not is_much and oldest.ended_at > too_old:
                return
            del self._kept[oldest.key]
            self._num_bytes -= oldest.num_bytes
            self._forgotten = max(self._forgotten, oldest.number)
