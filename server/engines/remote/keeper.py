"""An engine at an address, for the supervisor, which neither starts nor ends it."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from engine import DownloadError, demo_model
from engine.client.download import resolve_model
from engine.client.text.tokenizer import Tokenizer
from engine.client.text.tokenizer_folder import try_chat_template
from server.engines.client import RetryableRequestError, ValidationError
from server.engines.elsewhere import EngineElsewhere, NotThere
from server.engines.managed import EngineSetupError
from server.engines.native.preparation import name_of
from server.engines.remote.checkpoint import Checkpoint, check_agreement, read_checkpoint
from server.engines.remote.dialects.dialect import Dialect, RemoteFacts
from server.engines.remote.options import RemoteOptions
from server.engines.remote.wire.exchange import asking
from server.engines.remote.wire.problems import BadStatus, Misfit, RemoteProblem

if TYPE_CHECKING:
    from server.config.engines import EngineEntry
    from server.config.models import ModelSource
    from server.config.settings import Settings

DialectMaker = Callable[[Tokenizer, "str | None", str], Dialect]

REPLY_SECONDS = 5.0


def manage(
    kind: str,
    dialect: DialectMaker,
    settings: "Settings",
    model: "ModelSource",
    entry: "EngineEntry",
    wake: Callable[[], None],
    on_progress: Callable[[float], None] | None = None,
) -> EngineElsewhere:
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
    return EngineElsewhere(
        options.name,
        folder,
        f"{kind} at {options.url}",
        dict(msgspec.to_builtins(options)),
        find=partial(find, dialect, options, checkpoint),
        wake=wake,
    )


def find(make_dialect: DialectMaker, options: RemoteOptions, checkpoint: Checkpoint) -> int:
    """Ask it what it is. Raises `NotThere`, and `EngineSetupError` for one that does not fit."""
    try:
        dialect = make_dialect(checkpoint.tokenizer, options.model, options.name)
        facts = asyncio.run(_probe(dialect, options, checkpoint))
    except Misfit as problem:
        raise EngineSetupError(f"the engine at {options.url}: {problem}") from None
    except RemoteProblem as problem:
        raise NotThere(str(problem)) from None
    return min(facts.max_model_len, options.max_model_len or facts.max_model_len)


async def _probe(dialect: Dialect, options: RemoteOptions, checkpoint: Checkpoint) -> RemoteFacts:
    """Raises `RemoteProblem`."""
    ask = asking(options.address, REPLY_SECONDS)
    try:
        facts = await dialect.probe(ask)
        await check_agreement(dialect, ask, checkpoint)
    except BadStatus as problem:
        if problem.status in (401, 403):
            raise Misfit(f"it refuses our key: {problem}") from None
        raise
    return facts
