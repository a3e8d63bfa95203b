"""`RemoteKeeper`: an engine elsewhere, for the supervisor, which neither starts nor ends it.

At the start it is looked for once it is there: it may load a large model for minutes. What it is
then found to be is checked, so that one that cannot be served ends the start in one line. Later it
is the workers' links that watch it.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from engine import DownloadError, demo_model
from engine.client.download import resolve_model
from engine.client.text.tokenizer import Tokenizer
from engine.client.text.tokenizer_folder import try_chat_template
from server.config.models import ModelFacts
from server.engines.client import RetryableRequestError, ValidationError
from server.engines.managed import EngineSetupError
from server.engines.native.fingerprint import file_stamps
from server.engines.native.preparation import name_of
from server.engines.remote.checkpoint import Checkpoint, check_agreement, read_checkpoint
from server.engines.remote.dialect import Dialect, RemoteFacts
from server.engines.remote.options import RemoteOptions
from server.engines.remote.wire.exchange import asking
from server.engines.remote.wire.problems import BadStatus, Misfit, RemoteProblem

if TYPE_CHECKING:
    from server.config.engines import EngineEntry
    from server.config.models import ModelSource
    from server.config.settings import Settings

logger = structlog.get_logger("server")

DialectMaker = Callable[[Tokenizer, "str | None"], Dialect]

REPLY_SECONDS = 5.0
AGAIN_SECONDS = 0.5  # between two looks for an engine that is not there yet
LOG_SECONDS = 10.0  # between two lines of the log on that


def manage(
    kind: str,
    dialect: DialectMaker,
    settings: "Settings",
    model: "ModelSource",
    entry: "EngineEntry",
    wake: Callable[[], None],
    on_progress: Callable[[float], None] | None = None,
) -> "RemoteKeeper":
    """Read the tokenizer's folder, which is fetched if need be. Raises `EngineSetupError`."""
    try:
        folder = (
            demo_model()
            if model.is_demo
            else resolve_model(model.source, on_progress=on_progress, needs_weights=False)
        )
        checkpoint = read_checkpoint(folder, settings.max_model_len)
        try_chat_template(folder)
    except (DownloadError, ValidationError, RetryableRequestError) as error:
        raise EngineSetupError(str(error)) from None
    assert entry.url is not None  # of a remote kind
    options = RemoteOptions(
        url=entry.url,
        folder=str(folder),
        name=name_of(model),
        key_file=None if entry.key_file is None else str(entry.key_file),
        ca_file=None if entry.ca_file is None else str(entry.ca_file),
        model=entry.model,
        max_model_len=settings.max_model_len,
        max_num_queued_reqs=settings.max_num_queued_reqs or None,
        answer_format=settings.answer_format,
        stillness_seconds=settings.intervals.stillness,
    )
    return RemoteKeeper(kind, dialect, options, checkpoint, wake)


class RemoteKeeper:
    """`wake` is called from another thread when the engine was found, or found to be no good."""

    def __init__(
        self,
        kind: str,
        dialect: DialectMaker,
        options: RemoteOptions,
        checkpoint: Checkpoint,
        wake: Callable[[], None],
    ) -> None:
        self.start_error: str | None = None
        self.is_refusal = True  # it speaks of the engine by its address
        self.due: float | None = None
        self.num_failed_starts = 0
        self.memory_bytes: int | None = None  # not of this machine
        self.taken_bytes = 0
        self.facts = ModelFacts(format=f"{kind} at {options.url}")
        self.connect_options: Mapping[str, Any] = dict(msgspec.to_builtins(options))
        self._dialect = dialect
        self._options = options
        self._checkpoint = checkpoint
        self._wake = wake
        self._stamps = file_stamps(checkpoint.folder)
        self._is_found = False
        self._is_closing = threading.Event()
        self._looking: threading.Thread | None = None

    @property
    def model_name(self) -> str:
        return self._options.name

    @property
    def is_current(self) -> bool:
        return self._stamps == file_stamps(self._checkpoint.folder)

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
            self._looking.join()
        self._looking = None

    def stop(self) -> None:
        self.release()

    def clean_up(self) -> None:
        pass

    def _look(self, is_closing: threading.Event) -> None:
        logged_at = 0.0
        while not is_closing.is_set():
            try:
                facts = asyncio.run(self._find())
            except Misfit as problem:
                self.start_error = f"the engine at {self._options.url}: {problem}"
                break
            except Exception as problem:  # also what nobody has thought of: it is looked for again
                if time.monotonic() - logged_at >= LOG_SECONDS:
                    logged_at = time.monotonic()
                    is_known = isinstance(problem, RemoteProblem)
                    why = str(problem) if is_known else type(problem).__name__
                    logger.warning("engine not found yet", problem=why, exc_info=not is_known)
                is_closing.wait(AGAIN_SECONDS)
                continue
            limit = self._options.max_model_len or facts.max_model_len
            length = min(facts.max_model_len, limit)
            self.facts = msgspec.structs.replace(self.facts, context_length=length)
            self._is_found = True
            break
        self._wake()

    async def _find(self) -> RemoteFacts:
        """Raises `RemoteProblem`."""
        dialect = self._dialect(self._checkpoint.tokenizer, self._options.model)
        ask = asking(self._options.address, REPLY_SECONDS)
        try:
            facts = await dialect.probe(ask)
            await check_agreement(dialect, ask, self._checkpoint)
        except BadStatus as problem:
            if problem.status in (401, 403):
                raise Misfit(f"it refuses our key: {problem}") from None
            raise
        return facts
