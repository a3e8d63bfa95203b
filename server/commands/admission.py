"""`Admission`: whether an answer may begin now."""

import contextlib
from collections.abc import Iterator

from server.engines.client import (
    CoreState,
    EngineDeadError,
    EngineError,
    ModelLoadError,
    RetryableRequestError,
)
from server.engines.models import Models
from server.protocol.errors import ApiError
from server.runs.runs import Runs
from sessions.model.quotas import Budget
from sessions.store.store import SessionStore

ENGINE_GRACE_SECONDS = 2.0  # for a worker that has just started to join the core
CALL_SECONDS = 2.0  # for the supervisor to say whether a model can be loaded; the answer waits then


class Admission:
    """Of one worker, for all of its doors."""

    def __init__(self, store: SessionStore, runs: Runs, models: Models) -> None:
        self._store = store
        self._runs = runs
        self._models = models
        self._num_beginning = 0  # admitted, and the engine is not asked for them yet

    @contextlib.contextmanager
    def beginning(self) -> Iterator[None]:
        """From the `check` that has admitted an answer until the engine knows of it."""
        self._num_beginning += 1
        try:
            yield
        finally:
            self._num_beginning -= 1

    async def check(self, uid: str, name: str, *, is_promised: bool = False) -> Budget | None:
        """What is left of the user's tokens, if they are counted. Raises what refuses an answer.

        One that is promised to them is not refused for their tokens: it ends when they do. A model
        that is not loaded is asked for here; whether there is memory for it is soon known.
        """
        if self._runs.draining:
            raise ApiError("draining", "this worker is restarting; connect again")
        budgets = self._store.budgets
        budget = await (budgets.today(uid) if is_promised else budgets.check(uid))
        engine = self._models.engine(name)
        try:
            if self._models.is_known(name):  # the default one is not loaded for any word
                await self._models.call(name, CALL_SECONDS)
            if engine.core_state is CoreState.CONNECTING and self._models.can_prompt(name):
                # Another worker may have said that all is ready while we were still joining.
                with contextlib.suppress(TimeoutError):
                    await engine.wait_ready(ENGINE_GRACE_SECONDS)
            engine.check_admission(self._num_beginning + 1)
        except ModelLoadError as error:
            raise ApiError("model_unavailable", str(error), param="settings.model") from error
        except (RetryableRequestError, EngineDeadError) as error:
            raise ApiError("engine_unavailable", "the engine is away; try again shortly") from error
        except EngineError as error:
            raise ApiError("queue_full", "too many answers are waiting for the engine") from error
        return budget
