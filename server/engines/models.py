"""`Models`: what one worker serves, by name, and the engine of each.

The supervisor's word of them comes by `take`. Where there is one model alone, its engine is joined
as it is; of several, each is loaded when it is asked for.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from server.config.models import ModelState, ModelStatus
from server.engines.client import EngineClient, RetryableRequestError, ServedModel
from server.engines.managed import EngineRefused
from server.engines.on_demand import OnDemandEngine
from server.engines.placement.figures import EngineFigures
from server.engines.placement.group import EngineGroup

ASK_SECONDS = 10.0  # for the supervisor's word on a change of engines
UNKNOWN_CONTEXT = 4096  # tokens, of a model whose files are not here yet

Tell = Callable[[dict[str, Any]], None]


class Models:
    """One worker's. The first model is the default.

    `served` has those whose files are known, and what adapters make of them: it is shared with
    those who begin and take over answers. `tell` sends the supervisor a line; `on_change` hears
    that a model has come into another state. `tokenizers` has those that were read, for who joins.
    """

    def __init__(
        self,
        statuses: Sequence[ModelStatus],
        engines: Sequence[EngineClient],
        default: ServedModel,
        *,
        tell: Tell = lambda line: None,
        tokenizers: dict[str, Any] | None = None,
    ) -> None:
        self.default = default
        self.served: dict[str, ServedModel] = {default.name: default}
        self.on_change: Callable[[ModelStatus], None] = lambda status: None
        self._statuses = {status.name: status for status in statuses}
        self._engines = dict(zip(self._statuses, engines, strict=True))
        self._tell = tell
        self._tokenizers = {} if tokenizers is None else tokenizers
        self._used: list[str] = []
        self._asked: dict[int, asyncio.Future[str | None]] = {}  # of the supervisor, by number
        self._numbers = itertools.count(1)
        # Of which options files were read, or are being read.
        self._learnt = {status.name: status.options for status in statuses}

    @classmethod
    def of_one(cls, model: ServedModel, engine: EngineClient) -> "Models":
        """Of a server with one model, which is there as long as the server is."""
        status = ModelStatus(name=model.name, kind="native", state=ModelState.LOADED)
        return cls([status], [engine], model)

    # ---- what there is --------------------------------------------------------------------------

    @property
    def statuses(self) -> tuple[ModelStatus, ...]:
        """The default one first."""
        return tuple(self._statuses.values())

    @property
    def are_many(self) -> bool:
        return len(self._statuses) > 1

    @property
    def default_engine(self) -> EngineClient:
        return self._engines[self.default.name]

    def engine(self, name: str) -> EngineClient:
        """Of the model of this name; the default one's for an adapter, which is added to it."""
        return self._engines.get(name, self.default_engine)

    def status(self, name: str) -> ModelStatus | None:
        """Of one that comes and goes, or is adapted; None of one that is always there."""
        base = self._statuses[self.default.name]
        return self._statuses.get(name, base) if self.are_many else None

    def base(self, name: str) -> ServedModel:
        """The model whose engine that is, without its adapter."""
        return self.served.get(name, self.default) if name in self._statuses else self.default

    def bases(self) -> list[ServedModel]:
        """The models whose files are known, without adapters."""
        return [self.served[name] for name in self._statuses if name in self.served]

    def is_known(self, name: str) -> bool:
        """Whether it can be chosen, though its files may not be here yet."""
        return name in self._statuses or name in self.served

    def is_pending(self, name: str) -> bool:
        """Whether it is served here, and only its files are not looked at yet."""
        status = self._statuses.get(name)
        is_lost = status is None or status.state is ModelState.FAILED
        return not is_lost and name not in self.served

    def chosen(self, name: str) -> ServedModel | None:
        """None if there is none of this name. Of one that is pending it is the name alone."""
        served = self.served.get(name)
        if served is None and name in self._statuses:
            return ServedModel(name, "")
        return served

    def of_session(self, name: str | None) -> str:
        """Which model answers in a session that was begun with this one, and says nothing else."""
        return name if name is not None and name in self._statuses else self.default.name

    def can_prompt(self, name: str) -> bool:
        """Whether its engine was there by now, so that it knows how long a prompt may be."""
        engine = self.engine(name)
        return not isinstance(engine, OnDemandEngine) or engine.is_ready

    def context(self, name: str) -> int:
        """Tokens of a prompt and its answer together, as far as anybody knows.

        Raises `RetryableRequestError` of a model that is always there, and was not yet.
        """
        engine = self.engine(name)
        try:
            return engine.model_config.max_model_len
        except RetryableRequestError:
            if isinstance(engine, OnDemandEngine):  # it is being downloaded
                return UNKNOWN_CONTEXT
            raise

    # ---- loading --------------------------------------------------------------------------------

    async def call(self, name: str, seconds: float) -> None:
        """Have it loaded: see `OnDemandEngine.call`."""
        engine = self.engine(name)
        if isinstance(engine, OnDemandEngine):
            await engine.call(seconds)

    def using(self, name: str) -> AbstractContextManager[None]:
        """From the question to the end of its answer the model is not let go."""
        engine = self.engine(name)
        return engine.using() if isinstance(engine, OnDemandEngine) else nullcontext()

    def ask(self, name: str) -> None:
        """Have it loaded, and wait for nothing."""
        self._tell({"type": "load", "model": name})

    def ask_to_unload(self, name: str) -> None:
        """Have it let go as soon as nobody uses it."""
        self._tell({"type": "unload", "model": name})

    def note_use(self) -> None:
        """Tell the supervisor which models are used here, if others are than before."""
        used = [name for name, engine in self._engines.items() if _is_used(engine)]
        if used != self._used:
            self._used = used
            self._tell({"type": "uses", "models": used})

    def add(self, model: ServedModel, tokenizer: Any) -> None:
        """Its files are known by now, and its tokenizer is read, unless it cannot be."""
        self.served[model.name] = model
        self._tokenizers[model.name] = tokenizer

    def forget(self, name: str) -> None:
        """Its files could not be read: `take` names it again."""
        self._learnt.pop(name, None)

    def take(self, statuses: Sequence[ModelStatus]) -> list[ModelStatus]:
        """The supervisor's word of all; returns those whose files have become known by it."""
        new = []
        for status in statuses:
            before, engine = self._statuses[status.name], self._engines[status.name]
            if status == before:
                continue
            self._statuses[status.name] = status
            if status.options not in (None, self._learnt.get(status.name)):
                self._learnt[status.name] = status.options
                self._tokenizers.pop(status.name, None)  # of other files, if there is one
                new.append(status)
            if isinstance(engine, OnDemandEngine):
                engine.take(status)
            elif isinstance(engine, EngineGroup):
                engine.take(status.engines)
            self.on_change(status)
        return new

    def begin(self) -> None:
        """Join what is there. Needs the event loop."""
        for engine in self._engines.values():
            if isinstance(engine, OnDemandEngine):
                engine.begin()

    # ---- several engines ------------------------------------------------------------------------

    def groups(self) -> dict[str, EngineGroup]:
        """The engines of each model that has several, as far as they are joined."""
        found = {}
        for name, engine in self._engines.items():
            group = engine.group if isinstance(engine, OnDemandEngine) else engine
            if isinstance(group, EngineGroup):
                found[name] = group
        return found

    def engine_figures(self) -> dict[str, list[EngineFigures]]:
        """Of each model that has several engines, also while it is not loaded."""
        joined = self.groups()
        found = {}
        for status in self.statuses:
            if status.name in joined:
                found[status.name] = joined[status.name].figures()
            elif status.engines:
                found[status.name] = [EngineFigures.of_unloaded(one) for one in status.engines]
        return found

    async def drain(
        self, engine: str, model: str | None = None, *, is_draining: bool, must_move: bool = False
    ) -> None:
        """Have an engine take no new answers, and perhaps keep none; or take them again.

        That of one model, or all of this name. Raises `EngineRefused`, and `TimeoutError`, as the
        three that follow.
        """
        wish = {"model": model, "is_draining": is_draining, "must_move": must_move}
        await self._ask({"type": "drain_engine", "engine": engine, **wish})

    async def add_engine(self, entry: str) -> None:
        """Have one more engine, written as `PARLEY_ENGINES` has them."""
        await self._ask({"type": "add_engine", "engine": entry})

    async def remove_engine(self, engine: str, model: str | None = None) -> None:
        """Have one less, or all of this name."""
        await self._ask({"type": "remove_engine", "engine": engine, "model": model})

    async def restart_engine(self, engine: str, model: str | None = None) -> None:
        """Have one that is ours replaced; that of a model that has one alone has its name."""
        await self._ask({"type": "restart_engine", "engine": engine, "model": model})

    async def _ask(self, line: dict[str, Any]) -> None:
        """The supervisor decides: it alone knows what all workers have asked for."""
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._tell({**line, "number": number})
            async with asyncio.timeout(ASK_SECONDS):
                problem = await answer
        finally:
            del self._asked[number]
        if problem is not None:
            raise EngineRefused(problem)

    def hear(self, number: int, problem: str | None) -> None:
        """The supervisor's word on what was asked under this number; None: it is done."""
        answer = self._asked.get(number)
        if answer is not None and not answer.done():
            answer.set_result(problem)

    # ---- figures --------------------------------------------------------------------------------

    async def metrics(self) -> dict[str, dict[str, Any]]:
        """Counters of the engines that are there, by model."""
        names = [name for name, engine in self._engines.items() if engine.is_ready]
        found = await asyncio.gather(
            *(self._engines[name].metrics() for name in names), return_exceptions=True
        )
        pairs = zip(names, found, strict=True)
        return {name: values for name, values in pairs if isinstance(values, dict)}

    def shutdown(self) -> None:
        """Fail what is open, and close."""
        for engine in self._engines.values():
            engine.shutdown()


def _is_used(engine: EngineClient) -> bool:
    return isinstance(engine, OnDemandEngine) and engine.is_used
