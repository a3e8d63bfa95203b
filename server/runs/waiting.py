"""What an answer that was promised waits for, how long that may take, and what viewers see of it.

No wait ends an answer by itself, but for a model that cannot be loaded; a stop ends each at once.
"""

import asyncio
import contextlib
from time import monotonic

from msgspec import UNSET

from server.config.intervals import STORE_RETRY_SECONDS
from server.config.models import ModelState
from server.engines.client import EngineClient, ModelLoadError, RequestProgress
from server.engines.models import Models
from server.live.hub import Hub
from server.protocol.server_frames import QueueReason, ResponseQueued
from server.runs.run import Run
from sessions.background import start
from sessions.model.errors import StoreUnavailable
from sessions.store.store import SessionStore

FRAME_SECONDS = 0.5  # `response.queued` is sent at most twice a second
WEIGHT = 0.3  # of the newest observation in the running mean


class Waiting:
    """Of one answer. `models` None: there is one, which is there as long as the server is.

    It waits for `engine_seconds` where there is no engine core when its turn comes.
    """

    def __init__(
        self,
        run: Run,
        *,
        store: SessionStore,
        engine: EngineClient,
        hub: Hub,
        estimate: "QueueEstimate",
        models: Models | None,
        engine_seconds: float,
    ) -> None:
        self._run = run
        self._store = store
        self._engine = engine
        self._hub = hub
        self._estimate = estimate
        self._models = models
        self._engine_seconds = engine_seconds
        self._is_for_engine = False
        self._shown_at = 0.0

    async def turn(self, num_ahead: int, look_seconds: float) -> None:
        """Until the answer is promoted or stopped; so many of its session come first.

        The message that promotes may be lost: every `look_seconds` the store, which knows whose
        turn it is, is asked.
        """
        run = self._run
        self._show("session", num_ahead)
        while not run.promoted.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(look_seconds):
                    await run.promoted.wait()
            with contextlib.suppress(StoreUnavailable):
                live = await self._store.responses.live(run.session_id)
                if live.active == run.response_id or run.is_elsewhere:
                    run.promoted.set()

    async def engine(self) -> None:
        """Until a core has restarted, or the model is loaded. Raises `ModelLoadError`."""
        if self._engine.is_ready:
            return
        ready = start(self._engine.wait_ready(self._engine_seconds))
        waits = [ready, start(self._run.stop_asked.wait())]
        self._is_for_engine = True
        self.show_loading()
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_for_engine = False
            for wait in waits:
                wait.cancel()
            outcomes = await asyncio.gather(*waits, return_exceptions=True)
        if isinstance(outcomes[0], ModelLoadError) and self._run.stopping is None:
            raise outcomes[0]

    def show_loading(self) -> None:
        """Show how far the model is that the answer waits for; no-op for any other."""
        if self._models is None or not self._is_for_engine:
            return
        model = self._models.status(self._run.response.get("model", ""))
        if model is None or model.state is ModelState.LOADED:
            return
        frame = ResponseQueued(
            response_id=self._run.response_id,
            reason="model_loading",
            position=0,
            progress=UNSET if model.progress is None else round(model.progress, 2),
        )
        self._hub.put_unnumbered(self._run.response_id, frame)

    def show_place(self, progress: RequestProgress) -> None:
        """Show where it is in the engine's queue."""
        position = progress.queue_position
        assert position is not None  # else it is in no queue
        if progress.is_waking:
            self._show("engine_waking", 0)
        else:
            self._estimate.moved(self._run.response_id, position)
            self._show("engine", position, progress.num_tokens_ahead)

    def over(self) -> None:
        """The engine has begun with it."""
        self._estimate.started(self._run.response_id)

    def _show(self, reason: QueueReason, position: int, ahead_tokens: int | None = None) -> None:
        """Not numbered: what it waits for."""
        now = monotonic()
        if now - self._shown_at < FRAME_SECONDS:
            return
        self._shown_at = now
        eta_ms = self._estimate.wait_ms(reason, position)
        frame = ResponseQueued(
            response_id=self._run.response_id,
            reason=reason,
            position=position,
            ahead_tokens=UNSET if ahead_tokens is None else ahead_tokens,
            eta_ms=UNSET if eta_ms is None else eta_ms,
        )
        self._hub.put_unnumbered(self._run.response_id, frame)


async def store_retry(run: Run) -> None:
    """Until a store that is away is worth another try."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STORE_RETRY_SECONDS):
            await run.stop_asked.wait()


class QueueEstimate:
    """What the answers of one worker have seen of queues; nothing is promised."""

    def __init__(self) -> None:
        self._seconds_per_place: float | None = None  # in the engine's queue
        self._seconds_per_answer: float | None = None  # in a session's
        self._places: dict[str, tuple[int, float]] = {}  # response id → where it was, and when

    def moved(self, response_id: str, position: int) -> None:
        """The engine says how many requests are ahead of one of our answers."""
        now = monotonic()
        before, since = self._places.setdefault(response_id, (position, now))
        if position < before:
            self._seconds_per_place = _mean(
                self._seconds_per_place, (now - since) / (before - position)
            )
        self._places[response_id] = (position, now)

    def started(self, response_id: str) -> None:
        """It has its turn."""
        self._places.pop(response_id, None)

    def finished(self, response_id: str, seconds: float) -> None:
        """An answer has ended, so long after its beginning."""
        self.started(response_id)
        self._seconds_per_answer = _mean(self._seconds_per_answer, seconds)

    def wait_ms(self, reason: str, position: int) -> int | None:
        """Until an answer in that place has its turn; None when nothing is known yet.

        In a session's queue, place 1 waits for the active answer; in the engine's, place 0 is next.
        How long an engine takes to wake up is not known.
        """
        if reason == "engine_waking":
            return None
        if reason == "session":
            each, count = self._seconds_per_answer, position
        else:
            each, count = self._seconds_per_place, position + 1
        return None if each is None else round(each * count * 1000)


def _mean(known: float | None, newest: float) -> float:
    return newest if known is None else known + WEIGHT * (newest - known)
