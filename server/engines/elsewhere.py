"""`EngineElsewhere`: an engine that the supervisor neither starts nor ends, as it keeps it.

At the start it is looked for until it is there: it may load a large model for minutes. What it is
then found to be is checked, so that one that cannot be served ends the start in one line. Later it
is the workers' links that watch it.
"""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import structlog

from server.config.models import ModelFacts
from server.engines.managed import EngineSetupError
from server.engines.native.fingerprint import file_stamps

logger = structlog.get_logger("server")

AGAIN_SECONDS = 0.5  # between two looks for an engine that is not there yet
RELEASE_SECONDS = 5.0  # for a look that is under way: an engine may be as slow as it likes
LOG_SECONDS = 10.0  # between two lines of the log on that

# Looks for it once; how long a text it takes. Raises `EngineSetupError` for one that is there and
# is not to be used, `NotThere`, and whatever else may happen: then it is looked for again.
Find = Callable[[], int]


class NotThere(Exception):
    """It is not there yet: why, in one line for the log."""


class EngineElsewhere:
    """`folder` is what the server reads of its model; `where` says to a person what it is.

    `wake` is called from another thread when it was found, or found to be no good.
    """

    def __init__(
        self,
        model_name: str,
        folder: Path,
        where: str,
        connect_options: Mapping[str, Any],
        *,
        find: Find,
        wake: Callable[[], None],
    ) -> None:
        self.model_name = model_name
        self.start_error: str | None = None
        self.is_refusal = True  # it speaks of the engine by its address
        self.due: float | None = None
        self.num_failed_starts = 0
        self.memory_bytes: int | None = None  # not of this machine
        self.taken_bytes = 0
        self.facts = ModelFacts(format=where)
        self.connect_options = connect_options
        self._find = find
        self._wake = wake
        self._folder, self._stamps = folder, file_stamps(folder)
        self._is_found = False
        self._is_closing = threading.Event()
        self._looking: threading.Thread | None = None

    @property
    def is_current(self) -> bool:
        return self._stamps == file_stamps(self._folder)

    @property
    def is_starting(self) -> bool:
        return not self._is_found and self.start_error is None

    def start(self) -> None:
        """Look for it, and return."""
        self.start_error, self._is_found = None, False
        self._is_closing = threading.Event()
        self._looking = threading.Thread(
            target=self._look, args=(self._is_closing,), name="engine-look", daemon=True
        )
        self._looking.start()

    def watch(self) -> bool:
        return True

    def release(self) -> None:
        self._is_closing.set()
        if self._looking is not None:
            self._looking.join(RELEASE_SECONDS)  # whatever it still finds counts for nothing
        self._looking = None

    def stop(self) -> None:
        self.release()

    def clean_up(self) -> None:
        pass

    def _look(self, is_closing: threading.Event) -> None:
        logged_at = 0.0
        while not is_closing.is_set():
            length = 0
            refusal: str | None = None
            try:
                length = self._find()
            except EngineSetupError as error:
                refusal = str(error)
            except Exception as problem:  # also what nobody has thought of: it is looked for again
                if time.monotonic() - logged_at >= LOG_SECONDS:
                    logged_at = time.monotonic()
                    is_known = isinstance(problem, NotThere)
                    why = str(problem) if is_known else type(problem).__name__
                    logger.warning("engine not found yet", problem=why, exc_info=not is_known)
                is_closing.wait(AGAIN_SECONDS)
                continue
            if is_closing.is_set():
                break  # and perhaps looked for anew by now
            if refusal is None:
                self.facts = msgspec.structs.replace(self.facts, context_length=length)
            self.start_error, self._is_found = refusal, refusal is None
            break
        self._wake()
