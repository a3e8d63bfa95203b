"""`TextKeeper`: an engine of texts as the supervisor has it, which neither starts nor stops it.

At the start it looks whether the engine is there and has the model, and says in one line why not.
After that the workers look for themselves.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import structlog

from server.config.models import ModelFacts
from server.engines.remote.wire.problems import BadStatus, Broken, Misfit, RemoteProblem
from server.engines.textual.connection import ConnectOptions
from server.engines.textual.facts import DEFAULT_CONTEXT, Facts, read_facts
from server.engines.textual.line import Line

logger = structlog.get_logger("server")

START_SECONDS = 60.0  # in which an engine may come that is started together with this server
RETRY_SECONDS = 0.5
KEY_STATUSES = (401, 403)


class TextKeeper:
    """One engine for one model. `wake` is called in another thread when `start` has ended."""

    memory_bytes: int | None = None
    taken_bytes = 0
    is_current = True  # it has no files
    is_refusal = True
    due: float | None = None

    def __init__(
        self,
        name: str,
        options: ConnectOptions,
        wake: Callable[[], None],
        *,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self.start_error: str | None = None
        self.num_failed_starts = 0
        self._name = name  # of the engine: its address is no client's business
        self._options = options
        self._wake = wake
        self._start_seconds = start_seconds
        self._facts: Facts | None = None
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def model_name(self) -> str:
        return self._options.name

    @property
    def connect_options(self) -> Mapping[str, Any]:
        return dict(msgspec.to_builtins(self._options))

    @property
    def facts(self) -> ModelFacts:
        context = None if self._facts is None else self._facts.context
        limit = self._options.context
        return ModelFacts(context_length=min(context or limit or DEFAULT_CONTEXT, limit or 1 << 53))

    @property
    def is_starting(self) -> bool:
        return self._facts is None and self.start_error is None

    def start(self) -> None:
        """Look for it, in a thread."""
        self.start_error = None
        self._is_stopped.clear()
        self._thread = threading.Thread(target=self._look, name="engine-look", daemon=True)
        self._thread.start()

    def watch(self) -> bool:
        """Nothing is to be replaced: whether it is there the workers see."""
        return True

    def release(self) -> None:
        self._is_stopped.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = self._facts = None

    def stop(self) -> None:
        self.release()

    def clean_up(self) -> None:
        """It has no files of ours."""

    def _look(self) -> None:
        give_up_at = time.monotonic() + self._start_seconds
        while self.is_starting and not self._is_stopped.is_set():
            try:
                self._facts = asyncio.run(look(self._options))
            except Exception as error:
                problem = error if isinstance(error, RemoteProblem) else _unknown(error)
                is_refused = isinstance(problem, Misfit | BadStatus) and not _is_busy(problem)
                if is_refused or time.monotonic() > give_up_at:
                    self._fail(problem)
                else:
                    self._is_stopped.wait(RETRY_SECONDS)
        if self._facts is not None and self._facts.context is None and not self._options.context:
            tokens = DEFAULT_CONTEXT
            logger.warning("the engine does not say its context", assumed_tokens=tokens)
        self._wake()

    def _fail(self, problem: RemoteProblem) -> None:
        self.num_failed_starts += 1
        if isinstance(problem, BadStatus) and problem.status in KEY_STATUSES:
            problem = Misfit(f"it refuses our key: {problem}")
        self.start_error = f"{self._name}: {problem}"


async def look(options: ConnectOptions) -> Facts:
    """What the engine says of itself. Raises `RemoteProblem`."""
    return read_facts(await Line(options.address).models(), options.name, options.given)


def _unknown(error: Exception) -> RemoteProblem:
    """Of what nobody has thought of, which is in the log as it was."""
    logger.error("the engine cannot be looked at", exc_info=error)
    return Broken(f"it cannot be looked at: {type(error).__name__}")


def _is_busy(problem: RemoteProblem) -> bool:
    return isinstance(problem, BadStatus) and problem.is_busy
