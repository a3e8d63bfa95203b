"""`Publisher`: shows an answer's events to this worker's viewers, while it may.

An owner that cannot renew its lease does not know for how long the answer is still its own. So it
shows nothing from shortly before the lease ends until it is renewed, if there are other workers.
"""

import time
from collections.abc import Callable

import structlog

from server.config.intervals import Intervals
from server.live.hub import Hub
from server.runs.run import Run
from sessions.model.events import Event

logger = structlog.get_logger("server")


class Publisher:
    """What its viewers here are shown of one run."""

    def __init__(
        self, run: Run, *, hub: Hub, intervals: Intervals, has_peers: Callable[[], bool]
    ) -> None:
        self._run = run
        self._hub = hub
        self._intervals = intervals
        self._has_peers = has_peers
        run.must_be_silent = self.must_be_silent

    def publish(self, events: list[Event]) -> None:
        """Show the last events of the run; they are held while it must be silent."""
        run = self._run
        first = run.sequence_number - len(events) + 1
        if run.is_held:
            return
        if self.must_be_silent():
            run.is_held = True
            logger.warning("viewers wait for the store", **run.ids)
            return
        self._hub.publish_events(run.response_id, run.fence, first, events)

    def must_be_silent(self) -> bool:
        """Whether somebody might have taken the answer over, or may before we hear of it."""
        silent_for = time.monotonic() - self._run.renewed_at
        return silent_for > self._intervals.silence and self._has_peers()

    def show_held(self) -> None:
        """The answer is still this worker's: its viewers get what they had to wait for."""
        run = self._run
        if run.is_held:
            run.is_held = False
            self._hub.show_again(run.response_id, run.log)

    def speak_again(self) -> None:
        """Nobody can take the answer over any more."""
        self._run.renewed_at = time.monotonic()
        self.show_held()

    def lose(self, error: Exception) -> None:
        """The store refuses this worker's writes: it must not show another character."""
        run = self._run
        if not run.is_deleted:
            logger.warning("run lost", error=type(error).__name__, **run.ids)
        run.lose()

    def tell_rewound(self) -> None:
        """The log has lost what was shown: viewers begin anew."""
        logger.warning("redis lost its last writes, which are written again", **self._run.ids)
        self._hub.spawn(self._hub.data_loss.renew(self._run.session_id))
