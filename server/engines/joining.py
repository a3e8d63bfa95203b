"""How a worker joins the engines of the models that the supervisor names."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from server.config.models import ModelStatus
from server.engines.client import CoreState, EngineClient, ServedModel, ValidationError
from server.engines.kinds import KINDS
from server.engines.models import Models
from server.engines.on_demand import OnDemandEngine
from server.engines.placement.group import EngineGroup

if TYPE_CHECKING:
    from server.engines.tracing import Tracing

logger = structlog.get_logger("server")

OnCoreState = Callable[[CoreState, str], None]  # and of which model


def open_models(
    statuses: Sequence[ModelStatus],
    *,
    tell: Callable[[dict[str, Any]], None],
    on_core_state: OnCoreState,
    tracing: "Tracing | None",
    max_waiting: int,
) -> Models:
    """Join the engine of a model that is alone; of several, each when it is loaded.

    `max_waiting`: how many answers may wait here for one that is loaded; 0: any number.
    Raises `UnsupportedModelError` for a folder of the default model that cannot be served.
    """
    first = statuses[0]
    assert first.options is not None  # of the default one the files are here at the start
    default = KINDS[first.kind].served_model(first.options)
    if len(statuses) == 1:
        engine = KINDS[first.kind].connect(
            first.options,
            on_core_state=lambda state, _: on_core_state(state, first.name),
            tracing=tracing,
        )
        if isinstance(engine, EngineGroup):
            engine.take(first.engines)
        return Models(statuses, [engine], default, tell=tell)
    tokenizers: dict[str, Any] = {}
    models: Models | None = None

    def note_use() -> None:
        assert models is not None
        models.note_use()

    def on_demand(status: ModelStatus) -> EngineClient:
        def connect(
            options: Mapping[str, Any], take_state: Callable[[CoreState, str], None]
        ) -> EngineClient:
            return KINDS[status.kind].connect(
                options,
                on_core_state=take_state,
                tracing=tracing,
                tokenizer=tokenizers.get(status.name),
            )

        return OnDemandEngine(
            status,
            connect=connect,
            load=lambda: tell({"type": "load", "model": status.name}),
            on_use=note_use,
            on_core_state=lambda state, _: on_core_state(state, status.name),
            max_waiting=max_waiting,
        )

    engines = [on_demand(status) for status in statuses]
    models = Models(statuses, engines, default, tell=tell, tokenizers=tokenizers)
    return models


async def learn(models: Models, statuses: Sequence[ModelStatus]) -> None:
    """Read what a worker must know of models whose files are known: a few files of each, whole.

    A large tokenizer halts all threads of a process for half a second while it is read. So that is
    done once, when a model becomes known, and not whenever it is loaded and others stream. Files
    that have gone since, or are broken by now, are the business of whoever asks that model.
    """

    def read(status: ModelStatus) -> tuple[ServedModel, Any]:
        assert status.options is not None
        kind, tokenizer = KINDS[status.kind], None
        with contextlib.suppress(ValidationError):  # who joins it hears of that
            tokenizer = kind.read_tokenizer(status.options)
        return kind.served_model(status.options), tokenizer

    for status in statuses:
        try:
            models.add(*await asyncio.to_thread(partial(read, status)))
        except Exception as error:  # whatever it is, the others are served, and this worker starts
            logger.warning("model cannot be read", model=status.name, error=str(error))
            models.forget(status.name)
