"""`EngineGroup`: several engines as one, as a worker has them.

A new answer goes to one of those that take new ones (`placement.py`). When its engine dies, or is
to give it up, another one goes on after the last token (`moving.py`); where there is none, it stays
with its own, which waits for its next core as an engine that is alone does. To the rest of the
server it is an engine like every other.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from server.config.models import EngineStatus
from server.engines.client import (
    STOPPED,
    Computing,
    CoreState,
    DeltaCallback,
    EngineClient,
    EngineDeadError,
    EngineError,
    EngineLoad,
    EngineModel,
    Exactness,
    LoRARequest,
    PoolingParams,
    PoolingRequestOutput,
    RequestOutput,
    RequestProgress,
    RetryableRequestError,
    SamplingParams,
    TokensPrompt,
)
from server.engines.placement.answer import PlacedAnswer
from server.engines.placement.figures import EngineFigures
from server.engines.placement.member import Member
from server.engines.placement.moving import MovingAnswers, none_ready
from server.engines.placement.placement import Placement
from server.engines.placement.roster import Connect, OnCoreState, Roster
from server.engines.placement.sums import GroupLoad, SmallestModel, room_for, sum_of
from server.engines.text_of_another import TextOfAnother

LOOK_SECONDS = 0.5


class EngineGroup(TextOfAnother):
    """`connect` joins an engine; `on_core_state` hears how all of them are together.

    All of it but the making belongs to the worker's event loop.
    """

    def __init__(self, connect: Connect, on_core_state: OnCoreState) -> None:
        self._on_core_state = on_core_state
        self._state = CoreState.CONNECTING
        self._placement = Placement()
        self._roster = Roster(
            connect,
            on_state=self._take_state,
            on_removal=self._placement.forget,
            until=self.until,
        )
        self._next_look: asyncio.TimerHandle | None = None  # of answers that wait to move
        self.answers = MovingAnswers(self, self._placement)
        self._exactness = Exactness.EXACT
        self._news = asyncio.Event()  # set, and replaced, when anything has changed
        self.is_closed = False

    # ---- which engines there are ----------------------------------------------------------------

    @property
    def members(self) -> list[Member]:
        return self._roster.members

    def take(self, statuses: Sequence[EngineStatus]) -> None:
        """The supervisor's word of all of them. Raises `UnsupportedModelError`."""
        if not self.is_closed:
            self._roster.take(statuses)
            self.look()

    def figures(self) -> list[EngineFigures]:
        """Of all of them, for those who operate them."""
        return self._roster.figures()

    # ---- how they are ---------------------------------------------------------------------------

    def _take_state(self, member: Member, state: CoreState, reason: str) -> None:
        if state is CoreState.DEAD:
            self.answers.note_loss(member, is_meant=reason == STOPPED)
        self.look(reason)

    def look(self, reason: str = "") -> None:
        """Something is another way: who waits looks, and answers leave an engine that they must
        leave, as soon as another one takes them.
        """
        news, self._news = self._news, asyncio.Event()
        news.set()
        left = [each for each in (*self.members, *self._roster.parting) if each.gives_up]
        are_waiting = [member for member in left if not self.answers.move_all(member)]
        if are_waiting and self._next_look is None and not self.is_closed:
            # The pause of an engine ends without a word.
            self._next_look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_again)
        state = self.core_state
        if state is not self._state:
            self._state = state
            self._on_core_state(state, reason)

    def _look_again(self) -> None:
        self._next_look = None
        self.look()

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self.wait_for_news()

    async def wait_for_news(self) -> None:
        """Or for a moment: an engine that was asked nothing for a while says nothing then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await self._news.wait()

    @property
    def _open(self) -> list[Member]:
        return [member for member in self.members if member.takes_new]

    @property
    def core_state(self) -> CoreState:
        """Of the best of those that take new answers: they come as long as one of them does."""
        taking = [member for member in self.members if not member.status.is_draining]
        states = {member.engine.core_state for member in taking or self.members}
        order = (CoreState.READY, CoreState.STALLED, CoreState.CONNECTING, CoreState.DEAD)
        return next((state for state in order if state in states), CoreState.CONNECTING)

    @property
    def is_ready(self) -> bool:
        return bool(self._open)

    async def wait_ready(self, timeout: float | None = None) -> None:
        async with asyncio.timeout(timeout):
            await self.until(lambda: self.is_ready or self.is_closed)
        if self.is_closed:
            raise EngineDeadError("the engines were shut down")

    @property
    def exactness(self) -> Exactness:
        """Of the worst of them: any may have to go on with an answer of another.

        Cores of ours on unlike machines go on with other words than would have come.
        """
        order = list(Exactness)
        engines = [member.engine for member in self.members]
        known = [engine.exactness for engine in engines]
        ways = {engine.computes for engine in engines if isinstance(engine, Computing)}
        if len(ways - {None}) > 1:
            known.append(Exactness.TOKENS)
        self._exactness = max(known, key=order.index, default=self._exactness)
        return self._exactness

    @property
    def stats(self) -> EngineLoad | None:
        known = [stats for member in self.members if (stats := member.engine.stats) is not None]
        return GroupLoad.of(known) if known else None

    @property
    def heard_at(self) -> float | None:
        """The last word of any."""
        heard = [at for member in self.members if (at := member.engine.heard_at) is not None]
        return max(heard, default=None)

    @property
    def incarnation(self) -> None:
        """Each of them has its own."""

    async def metrics(self) -> dict[str, Any]:
        asked = [member.engine.metrics() for member in self.members if member.engine.is_ready]
        found = await asyncio.gather(*asked, return_exceptions=True)
        known = [values for values in found if isinstance(values, dict)]
        if not known:
            raise EngineDeadError("no engine is ready")
        return sum_of(known)

    def check_admission(self, n: int = 1) -> None:
        left, refusal = n, self._refusal
        for member in self._open:
            room, refused = room_for(member.engine, left)
            left -= room
            refusal = refused or refusal
            if left <= 0:
                return
        raise refusal

    def check_params(self, params: SamplingParams) -> None:
        """What one of them cannot do, none is asked for: any may have to go on with an answer."""
        for member in self.members:
            member.engine.check_params(params)

    @property
    def _refusal(self) -> EngineError:
        """Of a new answer, where none takes one."""
        closed = EngineDeadError("the engines were shut down")
        return closed if self.is_closed else none_ready()

    # ---- what all of them know alike ------------------------------------------------------------

    @property
    def text_engine(self) -> EngineClient:
        """One that is ready, where there is one: they have the same model."""
        ready = [member.engine for member in self.members if member.engine.is_ready]
        if not self.members:
            raise none_ready()
        return ready[0] if ready else self.members[0].engine

    @property
    def model_config(self) -> EngineModel:
        """With the shortest context, so that each can go on with what another has begun."""
        lengths = []
        for member in self.members:
            with contextlib.suppress(RetryableRequestError):
                lengths.append(member.engine.model_config.max_model_len)
        if not lengths:
            raise none_ready()
        return SmallestModel(min(lengths))

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """In all that are ready; one that comes later reads it when it is asked with it."""
        ready = [member.engine for member in self.members if member.engine.is_ready]
        if not ready:
            raise none_ready()
        return all([await engine.add_lora(lora_request) for engine in ready])

    async def remove_lora(self, lora_id: int) -> bool:
        ready = [member.engine for member in self.members if member.engine.is_ready]
        return any([await engine.remove_lora(lora_id) for engine in ready])

    # ---- answers --------------------------------------------------------------------------------

    def place_of(self, session_id: str) -> str | None:
        member = self._placement.place_of(session_id)
        return None if member is None else member.name

    def know_place(self, session_id: str, name: str) -> None:
        member = next((each for each in self.members if each.name == name), None)
        if member is not None:
            self._placement.know(session_id, member)

    async def generate(
        self,
        prompt: TokensPrompt,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        on_progress: Callable[[RequestProgress], None] | None = None,
        on_delta: DeltaCallback | None = None,
        resume_token_ids: Sequence[int] = (),
        session_id: str | None = None,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        answer = PlacedAnswer(
            request_id,
            prompt,
            sampling_params,
            options,
            resume_token_ids=resume_token_ids,
            session_id=session_id,
            on_delta=on_delta,
            on_progress=on_progress,
            on_token=self.look,
        )
        with self.answers.having(answer):
            async with contextlib.aclosing(self.answers.outputs(answer)) as outputs:
                async for output in outputs:
                    yield output

    async def abort(self, request_id: str) -> None:
        await self.answers.abort(request_id)

    async def encode(
        self,
        prompt: TokensPrompt,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        avoided: list[Member] = []
        while True:
            members = [member for member in self.members if member not in avoided]
            member = self._placement.choose(None, members)
            if member is None:
                raise none_ready()
            outputs = member.engine.encode(
                prompt, pooling_params, request_id, lora_request=lora_request
            )
            try:
                async with contextlib.aclosing(outputs):
                    async for output in outputs:
                        yield output
                return
            except (EngineDeadError, RetryableRequestError):
                avoided.append(member)

    def shutdown(self) -> None:
        self.is_closed = True
        self._roster.close()
        self.look()
