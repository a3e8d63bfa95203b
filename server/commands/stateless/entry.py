"""`Entry`: lets a call in of which nothing is stored, and counts it as long as it lasts.

It counts like any other: among its user's answers at a time, and in the tokens of their day.
"""

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

from server.commands.admission import Admission
from server.engines.client import (
    EngineClient,
    EngineDeadError,
    ModelLoadError,
    ServedModel,
)
from server.engines.models import Models
from server.protocol.errors import ApiError
from server.runs.quotas.active_limit import ActiveLimit
from server.runs.quotas.group_tokens import give_back
from sessions.background import Background
from sessions.model.ids import new_response_id, new_session_id
from sessions.model.quotas import Budget
from sessions.store.store import SessionStore

ENGINE_WAIT_SECONDS = 60.0  # for a core that restarts, or a model that is loaded


@dataclass(frozen=True, slots=True)
class Entered:
    """A call that was let in."""

    id: str
    uid: str
    model: ServedModel
    engine: EngineClient
    budget: Budget | None  # what is left of the user's tokens; None: they are not counted
    group: str | None = None  # whose quotas its user shares


class Entry:
    """Of one worker."""

    def __init__(
        self,
        store: SessionStore,
        models: Models,
        admission: Admission,
        limit: ActiveLimit,
    ) -> None:
        self._store = store
        self._models = models
        self._admission = admission
        self._limit = limit
        self._inside: dict[str, str] = {}  # id of each call → its user
        self._empty = asyncio.Event()
        self._empty.set()
        self._held: dict[str, str] = {}  # id of a call → the group that holds tokens for it
        self._background = Background()

    def slots(self) -> list[tuple[str, str]]:
        """User and id of each call that lasts."""
        return [(uid, call_id) for call_id, uid in self._inside.items()]

    async def enter(self, uid: str, name: str, leave: AsyncExitStack) -> Entered:
        """`name` is the model's. Raises `ApiError` and the store's errors.

        The caller closes `leave` at the end, also if this raises.
        """
        model = self._models.chosen(name)
        if model is None:
            raise ApiError("model_not_found", "this server has no such model", param="model")
        leave.enter_context(self._models.using(model.name))
        budget = await self._admission.check(uid, model.name)
        with self._admission.beginning():
            engine = await self._engine(model)
        call_id = new_response_id(new_session_id())
        # First, since a client may leave while the store counts.
        leave.callback(self._limit.free, uid, call_id)
        await self._limit.take(uid, call_id)
        group = (await self._store.allowances.of(uid)).group
        self._inside[call_id] = uid
        self._empty.clear()
        leave.callback(self._leave, call_id)
        return Entered(call_id, uid, model, engine, budget, group)

    async def hold(self, entered: Entered, *, wanted: int, least: int) -> int | None:
        """How many tokens the call may use; None for any number. At most as many as are wanted.

        What the user's group holds for it is given back at the end. Raises `QuotaExceeded`.
        """
        own = None if entered.budget is None else entered.budget.own_left
        if entered.group is None:
            return own
        self._held[entered.id] = entered.group
        held = await self._store.budgets.hold(entered.group, entered.id, wanted=wanted, least=least)
        return held if own is None else min(own, held)

    def charge(self, entered: Entered, num_tokens: int) -> None:
        """What the call has cost its user, once."""
        group = self._held.pop(entered.id, None)
        if num_tokens or group is not None:
            self._background.spawn(self._charge(entered, num_tokens, group))

    async def wait_empty(self, seconds: float) -> None:
        """Return when no call lasts any more, or after so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._empty.wait()

    async def close(self) -> None:
        await self._background.close()

    async def _engine(self, model: ServedModel) -> EngineClient:
        engine = self._models.engine(model.name)
        if engine.is_ready:
            return engine
        try:
            await engine.wait_ready(ENGINE_WAIT_SECONDS)
        except ModelLoadError as error:
            raise ApiError("model_unavailable", str(error), param="model") from error
        except (TimeoutError, EngineDeadError) as error:
            raise ApiError("engine_unavailable", "the engine is away; try again shortly") from error
        return engine

    def _leave(self, call_id: str) -> None:
        del self._inside[call_id]
        if (group := self._held.pop(call_id, None)) is not None:  # it has failed before it began
            self._background.spawn(give_back(self._store.budgets, group, call_id))
        if not self._inside:
            self._empty.set()

    async def _charge(self, entered: Entered, num_tokens: int, group: str | None) -> None:
        now_ms = await self._store.client.now_ms()
        await self._store.budgets.charge(entered.uid, entered.id, num_tokens, now_ms, group=group)
