"""A core on another machine, for the supervisor, which neither starts nor ends it.

One that is not to be used, or that does not trust our key, ends the start in one line.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from engine import DownloadError, EngineStartError, demo_model
from engine.client.download import resolve_model
from engine.client.far.connection import CoreRefusal
from engine.client.text.tokenizer_folder import try_chat_template
from engine.far.keys import KeysError, read_keys
from server.engines.client import RetryableRequestError, ValidationError
from server.engines.elsewhere import EngineElsewhere, NotThere
from server.engines.managed import EngineSetupError
from server.engines.native.connection import ConnectOptions
from server.engines.native.far.check import identity_of, open_link
from server.engines.native.far.options import FarOptions
from server.engines.native.fingerprint import has_weights
from server.engines.native.preparation import name_of

if TYPE_CHECKING:
    from server.config.engines import EngineEntry
    from server.config.models import ModelSource
    from server.config.settings import Settings

HANDSHAKE_SECONDS = 3.0


def manage(
    settings: "Settings",
    model: "ModelSource",
    entry: "EngineEntry",
    wake: Callable[[], None],
    on_progress: Callable[[float], None] | None = None,
) -> EngineElsewhere:
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
        restart_seconds=settings.intervals.restart,
        answer_format=settings.answer_format,
        far=far,
    )
    return EngineElsewhere(
        options.name,
        folder,
        f"native at {options.address}",
        dict(msgspec.to_builtins(options)),
        find=partial(find, options.address, far),
        wake=wake,
    )


def find(address: str, far: FarOptions) -> int:
    """Shake hands with it. Raises `NotThere`, and `EngineSetupError` where waiting is in vain."""
    link = open_link(address, far)
    try:
        return link.handshake(HANDSHAKE_SECONDS).max_model_len
    except CoreRefusal as refusal:
        raise EngineSetupError(refusal.reason) from None
    except EngineStartError as problem:
        raise NotThere(problem.reason) from None
    finally:
        link.close()
