"""`FarCoreKeeper`: a core on another machine, for the supervisor, which neither starts nor ends it.

At the start it is looked for until it is there: it may load a large model for minutes. One that is
not to be used, or that does not trust our key, ends the start in one line. Later it is the workers'
connections that watch it.
"""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from engine import DownloadError, EngineStartError, demo_model
from engine.client.download import resolve_model
from engine.client.far.connection import CoreRefusal
from engine.client.text.tokenizer_folder import try_chat_template
from engine.far.keys import KeysError, read_keys
from engine.ipc import Ready
from server.config.models import ModelFacts
from server.engines.client import RetryableRequestError, ValidationError
from server.engines.managed import EngineSetupError
from server.engines.native.connection import ConnectOptions
from server.engines.native.far.check import identity_of, open_link
from server.engines.native.far.options import FarOptions
from server.engines.native.fingerprint import file_stamps, has_weights
from server.engines.native.preparation import name_of

if TYPE_CHECKING:
    from server.config.engines import EngineEntry
    from server.config.models import ModelSource
    from server.config.settings import Settings

logger = structlog.get_logger("server")

HANDSHAKE_SECONDS = 3.0
AGAIN_SECONDS = 0.5  # between two looks for a core that is not there yet
LOG_SECONDS = 10.0  # between two lines of the log on that


def manage(
    settings: "Settings",
    model: "ModelSource",
    entry: "EngineEntry",
    wake: Callable[[], None],
    on_progress: Callable[[float], None] | None = None,
) -> "FarCoreKeeper":
    """Get ready what workers read of the model, which needs no weights. `EngineSetupError`."""
    assert entry.url is not None and entry.keys_folder is not None
    try:
        read_keys(entry.keys_folder).core  # noqa: B018  (raises for what is no client's folder)
        folder = (
            demo_model()
            if model.is_demo
            else resolve_model(model.source, on_progress=on_progress, needs_weights=False)
        )
        try_chat_template(folder)
    except KeysError as error:
        raise EngineSetupError(f"{entry.name}: {error}") from None
    except (DownloadError, ValidationError, RetryableRequestError) as error:
        raise EngineSetupError(str(error)) from None
    far = FarOptions(
        keys=str(entry.keys_folder),
        identity=identity_of(folder),
        has_weights=has_weights(folder),
        quantize=settings.quantize,
        kv_cache_dtype=settings.kv_cache_dtype,
        dtype=settings.dtype,
    )
    options = ConnectOptions(
        address=entry.url,
        folder=str(folder),
        name=name_of(model),
        max_num_queued_reqs=settings.max_num_queued_reqs or None,
        answer_format=settings.answer_format,
        far=far,
    )
    return FarCoreKeeper(options, wake)


class FarCoreKeeper:
    """`wake` is called from another thread when the core was found, or found to be no good."""

    def __init__(self, options: ConnectOptions, wake: Callable[[], None]) -> None:
        self.start_error: str | None = None
        self.is_refusal = True  # it speaks of the core by its address
        self.due: float | None = None
        self.num_failed_starts = 0
        self.memory_bytes: int | None = None  # not of this machine
        self.taken_bytes = 0
        self.facts = ModelFacts(format=f"native at {options.address}")
        self.connect_options: Mapping[str, Any] = dict(msgspec.to_builtins(options))
        self._options = options
        self._wake = wake
        self._stamps = file_stamps(Path(options.folder))
        self._is_found = False
        self._is_closing = threading.Event()
        self._looking: threading.Thread | None = None

    @property
    def model_name(self) -> str:
        return self._options.name

    @property
    def is_current(self) -> bool:
        return self._stamps == file_stamps(Path(self._options.folder))

    @property
    def is_starting(self) -> bool:
        return not self._is_found and self.start_error is None

    def start(self) -> None:
        """Look for it, and return."""
        self.start_error, self._is_found = None, False
        self._is_closing = threading.Event()
        self._looking = threading.Thread(
            target=self._look, args=(self._is_closing,), name="core-look", daemon=True
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
                ready = self._shake_hands()
            except CoreRefusal as refusal:
                self.start_error = refusal.reason
                break
            except EngineStartError as problem:
                if time.monotonic() - logged_at >= LOG_SECONDS:
                    logged_at = time.monotonic()
                    logger.warning("core not found yet", problem=problem.reason)
                is_closing.wait(AGAIN_SECONDS)
                continue
            self.facts = msgspec.structs.replace(self.facts, context_length=ready.max_model_len)
            self._is_found = True
            break
        self._wake()

    def _shake_hands(self) -> Ready:
        """Raises `EngineStartError`."""
        far = self._options.far
        assert far is not None
        link = open_link(self._options.address, far)
        try:
            return link.handshake(HANDSHAKE_SECONDS)
        finally:
            link.close()
