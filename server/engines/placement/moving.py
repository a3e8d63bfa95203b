"""`MovingAnswers`: the answers of several engines, each of which goes on at another where it must.

Its engine dies, or fails, or is to give it up: then the next one goes on after the last token.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Protocol

import structlog

from server.engines.client import (
    CANNOT_CONTINUE,
    CompletionOutput,
    EngineClient,
    EngineDeadError,
    RequestOutput,
    RetryableRequestError,
    ValidationError,
)
from server.engines.placement.answer import ENGINE_ERROR, PlacedAnswer
from server.engines.placement.member import Member
from server.engines.placement.placement import Placement
from sessions.background import Background

logger = structlog.get_logger("server")

MAX_GAP_SECONDS = 60.0  # that an answer waits for an engine that goes on with it


class Engines(Protocol):
    """What answers need of their group."""

    @property
    def members(self) -> list[Member]:
        """The engines that it has now."""

    @property
    def is_closed(self) -> bool:
        """It is no group any more."""

    @property
    def text_engine(self) -> EngineClient:
        """One that is ready, where there is one."""

    def look(self) -> None:
        """Something is another way."""

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Return when something holds."""

    async def wait_for_news(self) -> None:
        """Or for a moment."""


class MovingAnswers:
    """Of one worker. `placement` says which engine an answer goes to."""

    def __init__(self, engines: Engines, placement: Placement) -> None:
        self._engines = engines
        self._placement = placement
        self._answers: dict[str, PlacedAnswer] = {}
        self._background = Background()

    @contextlib.contextmanager
    def having(self, answer: PlacedAnswer) -> Iterator[None]:
        """While somebody reads it. Raises `ValidationError` for an id that another one has."""
        if answer.request_id in self._answers:
            raise ValidationError(f"the request id {answer.request_id} is in use", "request_id")
        self._answers[answer.request_id] = answer
        try:
            yield
        finally:
            del self._answers[answer.request_id]
            self._engines.look()

    def at(self, member: Member) -> list[PlacedAnswer]:
        """Those that it writes."""
        return [answer for answer in self._answers.values() if answer.member is member]

    async def outputs(self, answer: PlacedAnswer) -> AsyncGenerator[RequestOutput, None]:
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
            except (EngineDeadError, RetryableRequestError, ValidationError) as error:
                is_refusal = isinstance(error, ValidationError)
                if is_refusal and not answer.token_ids and not answer.has_begun:
                    raise  # it is its own fault
                self._avoid(answer, avoided)
                if not is_refusal:
                    member.breaker.fail(asyncio.get_running_loop().time())
                if not self._can_follow(answer, avoided):
                    raise
                logger.warning("engine failed", engine=member.name, error=str(error))
            finally:
                answer.leave()
                self._engines.look()
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
        others = [member for member in self._engines.members if member not in avoided]
        if answer.has_begun:  # it waits for one
            return answer.can_move and any(not member.status.is_draining for member in others)
        return any(member.takes_new for member in others)

    def _last_words(self, answer: PlacedAnswer, output: RequestOutput) -> RequestOutput:
        """What is new of an engine that another one follows. `finished` if none can."""
        rest = answer.take_last(output, self._engines.text_engine)
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
        may_wait = answer.is_suspect
        if may_wait:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MAX_GAP_SECONDS):
                    await self._engines.until(
                        lambda: answer.is_stopped or not self._are_others_first(answer)
                    )
            may_wait = not self._are_others_first(answer)  # else it has waited long enough
        member = self._choose(answer, avoided)
        if member is None and not answer.has_begun and not answer.is_stopped:
            raise none_ready()
        try:
            async with asyncio.timeout(MAX_GAP_SECONDS):
                while member is None and not answer.is_stopped and not self._engines.is_closed:
                    await self._engines.wait_for_news()
                    if not (may_wait and self._are_others_first(answer)):
                        member = self._choose(answer, avoided)
        except TimeoutError:
            raise EngineDeadError(f"no engine for {MAX_GAP_SECONDS:g} s") from None
        if self._engines.is_closed:
            raise EngineDeadError("the engines were shut down")
        return None if answer.is_stopped else member

    def _choose(self, answer: PlacedAnswer, avoided: Sequence[Member]) -> Member | None:
        members = [
            member
            for member in self._engines.members
            if member not in avoided and answer.fits(member)
        ]
        return self._placement.choose(answer.session_id, members)

    def _are_others_first(self, suspect: PlacedAnswer) -> bool:
        """An answer that may be deadly goes to its next engine alone, when others have shown that
        they are not, so that it ends no other.
        """
        others = [answer for answer in self._answers.values() if answer is not suspect]
        return any(
            answer.is_on_trial or (answer.is_moving and not answer.is_suspect) for answer in others
        )

    def move_all(self, member: Member) -> bool:
        """Have its answers go on elsewhere, if they can; False if there is no place for them."""
        answers = [answer for answer in self.at(member) if answer.may_be_moved]
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
        return [other for other in self._engines.members if other is not member and other.takes_new]

    def _tell_to_end(self, answer: PlacedAnswer) -> None:
        assert answer.member is not None
        self._background.spawn(answer.member.engine.abort(answer.request_id))

    def note_loss(self, member: Member, *, is_meant: bool) -> None:
        """An engine has died, or has ended as it was told to.

        One that cannot move stays with it, whose client sees what it has.
        """
        for answer in self.at(member):
            if not answer.is_moving and answer.can_move and self._leaves(answer, member):
                answer.note_loss(is_meant=is_meant)
            if answer.problem is not None:  # also where it would wait for the next core
                self._tell_to_end(answer)

    async def abort(self, request_id: str) -> None:
        answer = self._answers.get(request_id)
        if answer is None:
            return
        answer.is_stopped = True
        if answer.member is not None:
            await answer.member.engine.abort(request_id)
        else:
            self._engines.look()


def none_ready() -> RetryableRequestError:
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
