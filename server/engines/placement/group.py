"""`EngineGroup`: several engines as one, as a worker has them.

A new answer goes to one of those that take new ones (`placement.py`). When its engine dies, or is
to give it up, another one goes on after the last token; where there is none, it stays with its own,
which waits for its next core as an engine that is alone does. To the rest of the server it is an
engine like every other.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import structlog

from server.config.models import EngineStatus
from server.engines.client import (
    CANNOT_CONTINUE,
    CompletionOutput,
    Computing,
    CoreState,
    DeltaCallback,
    EngineClient,
    EngineDeadError,
    EngineError,
    EngineLoad,
    EngineModel,
    EngineTokenizer,
    Exactness,
    Grammar,
    LoRARequest,
    Marks,
    PoolingParams,
    PoolingRequestOutput,
    RequestOutput,
    RequestProgress,
    RetryableRequestError,
    SamplingParams,
    StructuredOutputsParams,
    TokensPrompt,
    ValidationError,
)
from server.engines.placement.answer import ENGINE_ERROR, PlacedAnswer
from server.engines.placement.figures import EngineFigures
from server.engines.placement.member import Member
from server.engines.placement.placement import Placement
from server.engines.placement.roster import Connect, OnCoreState, Roster
from server.engines.placement.sums import GroupLoad, SmallestModel, room_for, sum_of
from sessions.background import Background

logger = structlog.get_logger("server")

LOOK_SECONDS = 0.5
MAX_GAP_SECONDS = 60.0  # that an answer waits for an engine that goes on with it


class EngineGroup:
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
            until=self._until,
        )
        self._next_look: asyncio.TimerHandle | None = None  # of answers that wait to move
        self._answers: dict[str, PlacedAnswer] = {}
        self._exactness = Exactness.EXACT
        self._background = Background()
        self._news = asyncio.Event()  # set, and replaced, when anything has changed
        self._is_closed = False

    # ---- which engines there are ----------------------------------------------------------------

    @property
    def members(self) -> list[Member]:
        return self._roster.members

    def take(self, statuses: Sequence[EngineStatus]) -> None:
        """The supervisor's word of all of them. Raises `UnsupportedModelError`."""
        if not self._is_closed:
            self._roster.take(statuses)
            self._look()

    def figures(self) -> list[EngineFigures]:
        """Of all of them, for those who operate them."""
        return self._roster.figures()

    # ---- how they are ---------------------------------------------------------------------------

    def _take_state(self, member: Member, state: CoreState, reason: str) -> None:
        if state is CoreState.DEAD:
            # One that cannot move stays with its engine, whose client sees what it has.
            for answer in self.answers_at(member):
                if not answer.is_moving and answer.can_move and self._leaves(answer, member):
                    answer.note_loss()
                if answer.problem is not None:  # also where it would wait for the next core
                    self._tell_to_end(answer)
        self._look(reason)

    def _look(self, reason: str = "") -> None:
        """Something is another way: who waits looks, and answers leave an engine that they must
        leave, as soon as another one takes them.
        """
        news, self._news = self._news, asyncio.Event()
        news.set()
        left = [each for each in (*self.members, *self._roster.parting) if each.gives_up]
        are_waiting = [member for member in left if not self._move_all(member)]
        if are_waiting and self._next_look is None and not self._is_closed:
            # The pause of an engine ends without a word.
            self._next_look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_again)
        state = self.core_state
        if state is not self._state:
            self._state = state
            self._on_core_state(state, reason)

    def _look_again(self) -> None:
        self._next_look = None
        self._look()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self._wait_for_news()

    async def _wait_for_news(self) -> None:
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
            await self._until(lambda: self.is_ready or self._is_closed)
        if self._is_closed:
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
        return closed if self._is_closed else _none_ready()

    # ---- what all of them know alike ------------------------------------------------------------

    @property
    def _any(self) -> EngineClient:
        """One that is ready, where there is one: they have the same model."""
        ready = [member.engine for member in self.members if member.engine.is_ready]
        if not self.members:
            raise _none_ready()
        return ready[0] if ready else self.members[0].engine

    @property
    def model_config(self) -> EngineModel:
        """With the shortest context, so that each can go on with what another has begun."""
        lengths = []
        for member in self.members:
            with contextlib.suppress(RetryableRequestError):
                lengths.append(member.engine.model_config.max_model_len)
        if not lengths:
            raise _none_ready()
        return SmallestModel(min(lengths))

    def get_tokenizer(self) -> EngineTokenizer:
        return self._any.get_tokenizer()

    @property
    def answer_grammar(self) -> Grammar:
        return self._any.answer_grammar

    def prompt_end(self, prompt_token_ids: Sequence[int], marks: Marks) -> str:
        return self._any.prompt_end(prompt_token_ids, marks)

    def call_form(
        self,
        tools: Mapping[str, Mapping[str, Any]],
        name: str | None = None,
        prompt_token_ids: Sequence[int] = (),
    ) -> StructuredOutputsParams:
        return self._any.call_form(tools, name, prompt_token_ids)

    def thought_tokens(self, prompt_token_ids: Sequence[int]) -> object:
        return self._any.thought_tokens(prompt_token_ids)

    def resumed_text(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        resume_token_ids: Sequence[int],
        marks: Marks | None = None,
    ) -> str:
        return self._any.resumed_text(prompt_token_ids, params, resume_token_ids, marks)

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """In all that are ready; one that comes later reads it when it is asked with it."""
        ready = [member.engine for member in self.members if member.engine.is_ready]
        if not ready:
            raise _none_ready()
        return all([await engine.add_lora(lora_request) for engine in ready])

    async def remove_lora(self, lora_id: int) -> bool:
        ready = [member.engine for member in self.members if member.engine.is_ready]
        return any([await engine.remove_lora(lora_id) for engine in ready])

    # ---- answers --------------------------------------------------------------------------------

    def answers_at(self, member: Member) -> list[PlacedAnswer]:
        """Those that it writes."""
        return [answer for answer in self._answers.values() if answer.member is member]

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
        if request_id in self._answers:
            raise ValidationError(f"the request id {request_id} is in use", "request_id")
        answer = PlacedAnswer(
            request_id,
            prompt,
            sampling_params,
            options,
            resume_token_ids=resume_token_ids,
            session_id=session_id,
            on_delta=on_delta,
            on_progress=on_progress,
            on_token=self._look,
        )
        self._answers[request_id] = answer
        try:
            async with contextlib.aclosing(self._outputs(answer)) as outputs:
                async for output in outputs:
                    yield output
        finally:
            del self._answers[request_id]
            self._look()

    async def _outputs(self, answer: PlacedAnswer) -> AsyncGenerator[RequestOutput, None]:
        avoided: list[Member] = []  # that could not go on with it
        while (member := await self._place(answer, avoided)) is not None:
            answer.begin(member)
            last: RequestOutput | None = None  # which is none: another engine goes on
            try:
                async with contextlib.aclosing(answer.ask()) as outputs:
                    async for output in outputs:
                        if output.finished and self._goes_on(answer, output, avoided):
                            last = output
                            break
                        yield answer.take(output)
                if last is None:
                    member.breaker.succeed()
                    return
                rest = self._last_words(answer, last)
                yield rest
                if rest.finished:
                    return
            except (EngineDeadError, RetryableRequestError) as error:
                self._avoid(answer, avoided)
                member.breaker.fail(asyncio.get_running_loop().time())
                if not self._can_follow(answer, avoided):
                    raise
                logger.warning("engine failed", engine=member.name, error=str(error))
            finally:
                answer.leave()
                self._look()
            answer.num_moves += 1
            member.num_moved += 1
            logger.info("answer moves", engine=member.name, response_id=answer.request_id)
        yield answer.take(_aborted(answer))

    def _goes_on(self, answer: PlacedAnswer, output: RequestOutput, avoided: list[Member]) -> bool:
        """Whether this end is none: another engine goes on, and `avoided` has who could not."""
        member = answer.member
        assert member is not None
        if answer.is_stopped or answer.problem is not None or not answer.can_move:
            return False
        if answer.is_moving and output.outputs[0].finish_reason == "abort":
            return True
        code = None if output.error is None else output.error.code
        if code not in (ENGINE_ERROR, CANNOT_CONTINUE):
            return False
        self._avoid(answer, avoided)
        if code == ENGINE_ERROR:
            member.breaker.fail(asyncio.get_running_loop().time())
            if not answer.note_failure():
                return False
        return self._can_follow(answer, avoided)

    def _avoid(self, answer: PlacedAnswer, avoided: list[Member]) -> None:
        """Its engine is not asked again, unless it has a token of another one by then."""
        assert answer.member is not None
        if answer.has_new_tokens:
            avoided.clear()
        avoided.append(answer.member)

    def _can_follow(self, answer: PlacedAnswer, avoided: Sequence[Member]) -> bool:
        others = [member for member in self.members if member not in avoided]
        if answer.has_begun:  # it waits for one
            return answer.can_move and any(not member.status.is_draining for member in others)
        return any(member.takes_new for member in others)

    def _last_words(self, answer: PlacedAnswer, output: RequestOutput) -> RequestOutput:
        """What is new of an engine that another one follows. `finished` if none can."""
        rest = answer.take_last(output, self._any)
        if rest is not None:
            return rest
        logger.error("tokens do not spell the text", response_id=answer.request_id)
        answer.problem = "another engine would say another text"
        return answer.take(output)

    async def _place(self, answer: PlacedAnswer, avoided: Sequence[Member]) -> Member | None:
        """Who writes it, or goes on with it; None: it was stopped meanwhile.

        Raises `RetryableRequestError` if none takes a new answer, and `EngineDeadError` if none
        comes for one that has begun.
        """
        if answer.is_suspect:
            await self._until(lambda: answer.is_stopped or not self._are_others_first(answer))
        member = self._choose(answer, avoided)
        if member is None and not answer.has_begun and not answer.is_stopped:
            raise _none_ready()
        try:
            async with asyncio.timeout(MAX_GAP_SECONDS):
                while member is None and not answer.is_stopped and not self._is_closed:
                    await self._wait_for_news()
                    if not (answer.is_suspect and self._are_others_first(answer)):
                        member = self._choose(answer, avoided)
        except TimeoutError:
            raise EngineDeadError(f"no engine for {MAX_GAP_SECONDS:g} s") from None
        if self._is_closed:
            raise EngineDeadError("the engines were shut down")
        return None if answer.is_stopped else member

    def _choose(self, answer: PlacedAnswer, avoided: Sequence[Member]) -> Member | None:
        members = [member for member in self.members if member not in avoided]
        return self._placement.choose(answer.session_id, members)

    def _are_others_first(self, suspect: PlacedAnswer) -> bool:
        """An answer that may be deadly goes to its next engine alone, when others have shown that
        they are not, so that it ends no other.
        """
        others = [answer for answer in self._answers.values() if answer is not suspect]
        return any(
            answer.is_on_trial or (answer.is_moving and not answer.is_suspect) for answer in others
        )

    def _move_all(self, member: Member) -> bool:
        """Have its answers go on elsewhere, if they can; False if there is no place for them."""
        answers = [answer for answer in self.answers_at(member) if answer.may_be_moved]
        has_others = any(self._others(member))
        for answer in answers if has_others else ():
            if self._leaves(answer, member):
                answer.is_moving = True
                self._tell_to_end(answer)
        return has_others or not answers

    def _leaves(self, answer: PlacedAnswer, member: Member) -> bool:
        """Whether it is better off elsewhere. What no other could go on with ends where it is."""
        others = self._others(member)
        return member.has_lost_all or any(answer.can_go_on_at(other) for other in others)

    def _others(self, member: Member) -> list[Member]:
        """That would take its answers now."""
        return [other for other in self.members if other is not member and other.takes_new]

    def _tell_to_end(self, answer: PlacedAnswer) -> None:
        assert answer.member is not None
        self._background.spawn(answer.member.engine.abort(answer.request_id))

    async def abort(self, request_id: str) -> None:
        answer = self._answers.get(request_id)
        if answer is None:
            return
        answer.is_stopped = True
        if answer.member is not None:
            await answer.member.engine.abort(request_id)
        else:
            self._look()

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
                raise _none_ready()
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
        self._is_closed = True
        self._roster.close()
        self._look()


def _none_ready() -> RetryableRequestError:
    return RetryableRequestError("no engine is ready")


def _aborted(answer: PlacedAnswer) -> RequestOutput:
    """The end of one that no engine writes any more."""
    end = CompletionOutput(index=0, text="", token_ids=[], finish_reason="abort")
    return RequestOutput(
        request_id=answer.request_id,
        prompt=None,
        prompt_token_ids=answer.prompt["prompt_token_ids"],
        prompt_logprobs=None,
        outputs=[end],
        finished=True,
        metrics=answer.last_metrics,  # which say whether that engine has confirmed its end
        num_cached_tokens=None,
    )
