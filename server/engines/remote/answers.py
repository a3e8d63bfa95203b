"""`OpenAnswers`: the answers of one link, each of which is asked for until it has ended.

One that breaks off while the engine is well is asked for again, from the next token on, a few
times. Where the engine, and not a reply alone, is what failed, the link hears of it.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog

from engine.client.requests.core_client import ABORT_CONFIRM_SECONDS
from engine.client.requests.core_link import CANNOT_CONTINUE
from engine.ipc import AddRequest, Ready, SequenceOutput
from server.engines.remote.answer import MAX_TRIES_IN_VAIN, OpenAnswer
from server.engines.remote.dialects.dialect import Ask, Dialect
from server.engines.remote.patience import MAX_FAILURES, Failures, Patience
from server.engines.remote.reply import StreamedReply
from server.engines.remote.wire import exchange
from server.engines.remote.wire.address import RemoteAddress
from server.engines.remote.wire.exchange import Call
from server.engines.remote.wire.problems import (
    BadStatus,
    Broken,
    Lie,
    Misfit,
    RemoteProblem,
    Unreachable,
)
from sessions.background import Background, start

logger = structlog.get_logger("server")

PIECE_TOKENS = 8  # of a reply that comes as a whole, where a stream left tokens out
MAX_ERROR_CHARACTERS = 300
MAX_BUSY_TRIES = 8  # of one answer, without a new token


class Way(Protocol):
    """What answers need of their link."""

    @property
    def ready(self) -> Ready | None:
        """What the engine is; None while it is lost."""

    def beat(self) -> None:
        """The engine lives."""

    def lose(self, reason: str) -> None:
        """It does not."""

    def emit(self, output: SequenceOutput) -> None:
        """Who listens hears this of an answer."""

    def emit_silence(self, request_id: str) -> None:
        """Nobody says how that answer ends."""

    def announce(self) -> None:
        """An answer has ended."""


class OpenAnswers:
    """`ask` makes a call that has one short reply."""

    def __init__(
        self, way: Way, address: RemoteAddress, dialect: Dialect, patience: Patience, ask: Ask
    ) -> None:
        self.failures = Failures(patience)
        self.num_requests = self.num_aborts = 0
        self.num_prompt_tokens = self.num_cached_tokens = self.num_generation_tokens = 0
        self._way = way
        self._address = address
        self._dialect = dialect
        self._patience = patience
        self._ask = ask
        self._answers: dict[str, OpenAnswer] = {}  # by internal id
        self._trying: dict[str, asyncio.Task[None]] = {}  # likewise
        self._background = Background()

    def __len__(self) -> int:
        return len(self._answers)

    def send(self, message: AddRequest, ready: Ready) -> None:
        """Ask for one more. Raises `ValidationError` for what the engine cannot do."""
        answer = OpenAnswer(
            message,
            stop_ids=ready.eos_token_ids,
            vocab_size=ready.vocab_size,
            max_model_len=ready.max_model_len,
        )
        self._dialect.call(message, "")  # which refuses by name what it cannot do
        self.num_requests += 1
        self.num_prompt_tokens += len(message.prompt_token_ids)
        self._answers[message.request_id] = answer
        if (reason := answer.end_of_resumed()) is not None:
            _soon(self._end, answer, reason)
        elif answer.is_held_to_form and message.resume_token_ids:
            _soon(self._refuse_to_continue, answer)
        else:
            task = start(self._try_to_carry_out(answer))
            self._trying[message.request_id] = task
            task.add_done_callback(lambda done: self._trying.pop(message.request_id, None))

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            answer = self._answers.get(request_id)
            if answer is not None and not answer.is_aborting:
                answer.is_aborting = True
                self.num_aborts += 1
                self._background.spawn(self._abort(answer))

    def drop(self) -> None:
        """Forget all of them: the engine is lost, and who listens knows it."""
        answers, self._answers = list(self._answers.values()), {}
        for answer in answers:
            self._end_try(answer)

    def close(self) -> None:
        """End all that is under way, without a word."""
        for answer in list(self._answers.values()):
            if answer.name and not answer.is_aborting and answer.exchange is not None:
                answer.exchange.close()
        self._answers.clear()
        self._background.cancel()
        for task in list(self._trying.values()):
            task.cancel()

    # ---- an answer ------------------------------------------------------------------------------

    async def _try_to_carry_out(self, answer: OpenAnswer) -> None:
        """It has an end, whatever goes wrong."""
        try:
            await self._carry_out(answer)
        except Exception as error:
            logger.exception("answer cannot be asked for", url=self._address.url)
            self._fail(answer, "engine_error", f"it cannot be asked for: {type(error).__name__}")

    async def _carry_out(self, answer: OpenAnswer) -> None:
        """Ask for it until it has ended, or cannot be had."""
        num_busy, num_tokens, is_gap = 0, 0, False
        failed: RemoteProblem = Broken("nothing of it has come")
        while self._is_open(answer) and not answer.is_aborting:
            if answer.num_tries_in_vain >= MAX_TRIES_IN_VAIN:
                problem = f"{MAX_TRIES_IN_VAIN} tries without another token: {failed}"
                self._fail(answer, "engine_error", problem)
                return
            try:
                is_gap = await self._try(answer, is_gap=is_gap)
                if is_gap and answer.is_held_to_form and answer.rest.resume_token_ids:
                    self._refuse_to_continue(answer)
                continue
            except BadStatus as problem:
                if len(answer.token_ids) > num_tokens:  # it has gone on since
                    num_busy, num_tokens = 0, len(answer.token_ids)
                if problem.is_busy and num_busy < MAX_BUSY_TRIES:
                    num_busy += 1
                    answer.num_tries_in_vain -= 1
                    await asyncio.sleep(self._patience.busy * num_busy)
                    continue
                if problem.is_busy:
                    code = "engine_error" if answer.token_ids else "queue_full"
                    self._fail(answer, code, f"the engine has too much to do: {problem}")
                    return
                if problem.is_ours:
                    self._fail(answer, "invalid_request", f"the engine refuses: {problem.message}")
                    return
                failed = problem
            except Lie as problem:
                self._fail(answer, "engine_error", f"the engine is not to be believed: {problem}")
                return
            except RemoteProblem as problem:
                failed = problem
            if not self._is_open(answer) or answer.is_aborting:
                return
            if await self._is_gone(answer, failed):
                return
            if answer.is_held_to_form and answer.token_ids:
                self._refuse_to_continue(answer)
                return
            await asyncio.sleep(self._patience.again[0] * answer.num_tries_in_vain)

    async def _try(self, answer: OpenAnswer, *, is_gap: bool) -> bool:
        """One reply, to its end. True: tokens are missing that only a whole reply would name."""
        name = secrets.token_hex(12)  # of one length: no name is the beginning of another
        request = answer.begin_try(name)
        call = self._dialect.call(request, name)
        if is_gap:
            num_tokens = min(PIECE_TOKENS, answer.num_remaining)
            call = self._dialect.piece(request, name, num_tokens) or call
        reader = self._dialect.reader(request)
        reply = StreamedReply(
            reader, lambda step: self._take(answer, step), self._way.beat, is_whole=is_gap
        )
        answer.exchange = tried = exchange.Exchange(self._address, call, reply)
        try:
            await tried.send()
            await reply.wait(self._patience.first_byte, self._patience.next_byte)
        except BadStatus:  # it computes nothing of that
            answer.exchange = None
            raise
        finally:
            tried.close()
            answer.end_try()
        return reply.has_gap

    def _take(self, answer: OpenAnswer, step: Any) -> bool:
        """Hand on what an event says, in the turn in which it came. True: that was its last."""
        if not self._is_open(answer):
            return True
        if answer.is_aborting:
            return step.finish_reason is not None
        output = answer.take(step)
        if output.new_token_ids:
            self.failures.forget()
            self.num_generation_tokens += len(output.new_token_ids)
        if output.finish_reason is not None:
            self.num_cached_tokens += output.num_cached_tokens
            self._forget(answer)
            if step.finish_reason is None and (call := self._dialect.abort(answer.name)):
                self._background.spawn(self._tell(call))  # it would go on
        self._way.emit(output)
        return output.finish_reason is not None

    async def _is_gone(self, answer: OpenAnswer, failed: RemoteProblem) -> bool:
        """Whether the engine, and not this reply alone, is what failed; then it is lost."""
        self.failures.note(answer.began_at)
        if self._way.ready is None:
            return True
        if isinstance(failed, Unreachable):
            self._way.lose(str(failed))
            return True
        if self.failures.are_too_many:
            self._way.lose(f"{MAX_FAILURES} tries in a row have failed: {failed}")
            return True
        try:
            await self._dialect.look(self._ask)
        except (Unreachable, Broken, Misfit) as problem:
            if self._way.ready is not None:
                self._way.lose(f"{failed}; {problem}")
        except RemoteProblem:
            pass  # it lives, and is slow: the answer tries again, and the next look decides
        return self._way.ready is None

    async def _abort(self, answer: OpenAnswer) -> None:
        """End an answer there. It ends here when the engine has said that it knows."""
        task, call = self._trying.get(answer.request.request_id), self._dialect.abort(answer.name)
        is_confirmed = not answer.was_sent
        if not is_confirmed and call is not None and await self._tell(call) and task is not None:
            await asyncio.wait([task], timeout=ABORT_CONFIRM_SECONDS)  # its stream ends
            is_confirmed = task.done()
        if not self._is_open(answer):
            return
        self._end_try(answer)
        self._forget(answer)
        if is_confirmed:
            self._way.emit(SequenceOutput(answer.request.request_id, finish_reason="abort"))
        else:
            self._way.emit_silence(answer.request.request_id)

    async def _tell(self, call: Call) -> bool:
        """Whether it has said that it knows."""
        try:
            await self._ask(call)
        except RemoteProblem:
            return False
        return True

    # ---- ends -----------------------------------------------------------------------------------

    def _is_open(self, answer: OpenAnswer) -> bool:
        return self._answers.get(answer.request.request_id) is answer

    def _end(self, answer: OpenAnswer, reason: str) -> None:
        if self._is_open(answer):
            self._forget(answer)
            self._way.emit(SequenceOutput(answer.request.request_id, finish_reason=reason))

    def _fail(self, answer: OpenAnswer, code: str, message: str) -> None:
        if not self._is_open(answer):
            return
        self._forget(answer)
        message = self._address.without_key(message)
        logger.warning("answer failed", url=self._address.url, code=code, problem=message)
        error = (code, message[:MAX_ERROR_CHARACTERS])
        request_id = answer.request.request_id
        self._way.emit(SequenceOutput(request_id, finish_reason="error", error=error))

    def _refuse_to_continue(self, answer: OpenAnswer) -> None:
        message = "what holds it to its form would begin anew there"
        self._fail(answer, CANNOT_CONTINUE, message)

    def _forget(self, answer: OpenAnswer) -> None:
        self._answers.pop(answer.request.request_id, None)
        self._way.announce()

    def _end_try(self, answer: OpenAnswer) -> None:
        """Close its connection, by which the engine hears that nobody listens."""
        task = self._trying.pop(answer.request.request_id, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        if answer.exchange is not None:
            answer.exchange.close()


def _soon(what: Callable[..., None], *args: Any) -> None:
    asyncio.get_running_loop().call_soon(what, *args)
