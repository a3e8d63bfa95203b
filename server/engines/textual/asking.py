"""`Asking`: one request, from what it asks to its last output, over as many calls as it takes.

A call that breaks off is made again, after the text that has come: the engine goes on with it, or
the answer ends here. Whatever comes is shown in the turn in which it comes.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
import structlog

from engine.outputs import (
    CompletionOutput,
    FinishReason,
    OutputError,
    RequestMetrics,
    RequestOutput,
    RequestProgress,
    TokenCounts,
)
from server.engines.client import CANNOT_CONTINUE, DeltaCallback, SamplingParams
from server.engines.remote.wire.problems import BadStatus, Broken, RemoteProblem
from server.engines.textual.answers import AnswerText, Chunk, Delta, Seam, Usage, clipped, length_of
from server.engines.textual.conversation import Conversation
from server.engines.textual.facts import Facts
from server.engines.textual.ids import encode_answer
from server.engines.textual.line import Line
from server.engines.textual.requests import chat_request
from sessions.background import start

logger = structlog.get_logger("server")

MAX_IN_VAIN = 3  # calls in a row that break off without a new character
GAP_SECONDS = 60.0  # for which an answer waits for an engine that is away, or busy
BUSY_SECONDS = 0.25  # until one that is busy is asked again; twice as long each time
MAX_BUSY_SECONDS = 5.0
REFUSING = (400, 404, 405, 413, 414, 422)  # by these it takes no such request
MAX_EVENT_BYTES = 1024  # of one token, on average: what is longer is no answer
SPARE_BYTES = 1_000_000  # of events that are no token's
MAX_TOKEN_LENGTH = 256  # characters of one token, on average: hardly any is as long
MAX_PROMPT_TOKENS = 4  # that an engine may count for one number of a prompt, and a few more
MORE_PROMPT_TOKENS = 4096
UNSAID_TOKENS = 1 << 17  # of an answer whose length nobody has limited
FILTERED = "content_filter"
SAID = (FILTERED, "invalid_request")  # errors by which the engine itself has ended an answer
REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "length": "length",
}


class Asked(Protocol):
    """What a request needs of its engine."""

    @property
    def line(self) -> Line: ...

    @property
    def facts(self) -> Facts: ...

    async def wait_ready(self, timeout: float | None = None) -> None: ...

    async def look(self) -> None:
        """Find out now whether it is there."""


class Asking:
    """`run` it once. `abort` and `fail` end it from another task."""

    def __init__(
        self,
        request_id: str,
        engine: Asked,
        prompt_token_ids: list[int],
        conversation: Conversation,
        params: SamplingParams,
        *,
        begun: str,
        num_begun: int,
        is_marked: bool,
        on_delta: DeltaCallback | None,
        on_progress: Callable[[RequestProgress], None] | None,
    ) -> None:
        self.has_begun = False  # the engine has said something
        self._request_id = request_id
        self._engine = engine
        self._prompt_token_ids = prompt_token_ids
        self._conversation = conversation
        self._params = params
        self._answer = AnswerText(begun, is_marked=is_marked)
        self._on_delta = on_delta
        self._on_progress = on_progress
        self._text = ""  # that nobody was given yet, and its numbers
        self._token_ids: list[int] = []
        # Tokens before this call: of another run by their numbers, of another call as it counted.
        self._num_before = num_begun
        self._num_pieces = 0  # of this call; few engines put several tokens into one
        self._num_in_vain = 0  # calls in a row that broke off without a character
        self._busy_since: float | None = None
        self._busy_seconds = BUSY_SECONDS
        self._length_left = MAX_TOKEN_LENGTH * self._most_tokens(params)
        self._seam = Seam("")
        self._usage: Usage | None = None  # of this call, as far as the engine has said
        self._has_ended = False
        self._reason: FinishReason | None = None  # none of ours: it was filtered
        self._stop_reason: str | int | None = None
        self._metrics = RequestMetrics(arrival_time=time.time(), queued_ts=time.monotonic())
        self._task: asyncio.Task[RequestOutput] | None = None
        self._is_aborted = False
        self._failure: Exception | None = None

    async def run(self) -> RequestOutput:
        """The last output. Raises what `fail` was given."""
        self._task = start(self._produce())
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if self._failure is not None:
                raise self._failure from None
            if self._is_aborted and self._task.done():
                return self._last("abort")
            raise

    @property
    def has_called(self) -> bool:
        return self._metrics.scheduled_ts > 0

    def abort(self) -> None:
        """End it now: the stream is closed, by which servers see that nobody reads any more."""
        self._is_aborted = True
        if self._task is not None:
            self._task.cancel()

    def fail(self, failure: Exception) -> None:
        self._failure = failure
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Nobody reads it any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # ---- calls ----------------------------------------------------------------------------------

    async def _produce(self) -> RequestOutput:
        while True:
            try:
                problem = self._cannot_go_on()
                if problem is None:
                    await self._engine.wait_ready(GAP_SECONDS)
                    problem = self._cannot_go_on()  # it may be another server by now
                if problem is not None:
                    return self._last("error", OutputError(CANNOT_CONTINUE, problem))
                await self._call()
                self._emit(self._answer.finish())
                return self._end()
            except TimeoutError:
                return self._last("error", OutputError("engine_error", "the engine is away"))
            except RemoteProblem as problem:
                error = self._error_of(problem)
                if error is not None:
                    return self._last("error", error)
                await self._recover(problem)

    def _error_of(self, problem: RemoteProblem) -> OutputError | None:
        """What the request ends with for that; None: it is asked again."""
        if isinstance(problem, BadStatus) and problem.is_busy:
            self._busy_since = self._busy_since or time.monotonic()
            is_over = time.monotonic() - self._busy_since > GAP_SECONDS
            return OutputError("engine_error", "the engine is busy") if is_over else None
        if isinstance(problem, BadStatus) and problem.status in REFUSING:
            return OutputError("invalid_request", problem.message or str(problem))
        logger.warning("engine's answer broke off", id=self._request_id, reason=str(problem))
        is_further = self._num_pieces > 0 and not self._is_spare
        self._num_in_vain = 1 if is_further else self._num_in_vain + 1
        if self._num_in_vain >= MAX_IN_VAIN:
            return OutputError("engine_error", str(problem))
        return None

    async def _recover(self, problem: RemoteProblem) -> None:
        """Until the next call may be made."""
        if isinstance(problem, BadStatus) and problem.is_busy:
            await asyncio.sleep(self._busy_seconds)
            self._busy_seconds = min(2 * self._busy_seconds, MAX_BUSY_SECONDS)
            return
        self._busy_since, self._busy_seconds = None, BUSY_SECONDS
        self._metrics.num_resubmits += 1
        self._num_before += self._num_written  # the next call has it in its prompt
        self._num_pieces, self._usage = 0, None
        await self._engine.look()

    def _end(self) -> RequestOutput:
        """The last output of an answer that the engine has ended."""
        if self._reason is not None:
            return self._last(self._reason)
        error = OutputError(FILTERED, "the engine has filtered the answer")
        return self._last("error", error)

    def _cannot_go_on(self) -> str | None:
        """Why the engine cannot be asked for the rest; None if it can, or for all of it."""
        if not self._answer.text and not self._conversation.answer:
            return None
        if not self._engine.facts.can_continue:
            return "this engine goes on with no answer"
        if not self._answer.is_plain:
            return "an answer with thoughts or calls cannot go on at this engine"
        if self._params.structured_outputs is not None:
            return "an answer in a form cannot go on at this engine"
        return None

    async def _call(self) -> None:
        """Read one stream to its end, into the answer. Raises `RemoteProblem`."""
        params, facts = self._remaining(), self._engine.facts
        self._seam = Seam(self._conversation.answer + self._answer.text)
        self._metrics.scheduled_ts = self._metrics.scheduled_ts or time.monotonic()
        body = chat_request(facts, self._conversation, params, self._seam.sent)
        max_bytes = MAX_EVENT_BYTES * self._most_tokens(params) + SPARE_BYTES
        await self._engine.line.chat(body, self._take, max_bytes)
        if not self._has_ended:
            raise Broken("its answer breaks off")
        self._take_text(Delta(self._seam.finish()))

    def _is_possible(self, usage: Usage) -> bool:
        most = MAX_PROMPT_TOKENS * (len(self._prompt_token_ids) + self._num_before)
        return usage.is_possible(most + MORE_PROMPT_TOKENS, self._most_tokens(self._remaining()))

    def _most_tokens(self, params: SamplingParams) -> int:
        """That may come: of who says none, as many as any prompt leaves room for."""
        return params.max_tokens or self._engine.facts.context or UNSAID_TOKENS

    @property
    def _num_written(self) -> int:
        """Tokens of this call."""
        return self._num_pieces if self._usage is None else self._usage.num_output

    @property
    def _is_spare(self) -> bool:
        """Whether this call asks for more than was asked for, so that it may say an end."""
        limit = self._params.max_tokens
        return limit is not None and 0 < limit <= self._num_before

    def _remaining(self) -> SamplingParams:
        """With as many tokens as are left, and one at least."""
        if self._params.max_tokens is None or not self._num_before:
            return self._params
        left = max(1, self._params.max_tokens - self._num_before)
        return msgspec.structs.replace(self._params, max_tokens=left)

    def _take(self, chunk: Chunk) -> bool:
        """True: the answer has ended."""
        if chunk.usage is not None and self._is_possible(chunk.usage):
            self._usage = chunk.usage
        choice = chunk.choice
        if choice is None or self._has_ended:
            return self._has_ended
        if choice.delta is not None and self._take_delta(choice.delta):
            logger.warning("engine says more than it was asked for", id=self._request_id)
            self._has_ended, self._reason = True, "length"
            return True
        if not choice.finish_reason:  # some say that there is none by an empty text
            return False
        if choice.finish_reason not in (*REASONS, FILTERED):
            raise Broken(f"it ends an answer by {choice.finish_reason}")
        self._has_ended = True
        self._reason = REASONS.get(choice.finish_reason)
        if self._reason == "stop":
            self._stop_reason = choice.stop_reason
        return True

    def _take_delta(self, delta: Delta) -> bool:
        """True: it is more than so many tokens can say, and what is too much was left out."""
        length = length_of(delta)
        is_too_much = length > self._length_left
        if is_too_much:
            delta = clipped(delta, self._length_left)
        self._length_left -= length
        if delta.content:
            content = self._seam.feed(delta.content)
            delta = Delta(content, delta.reasoning_content, delta.reasoning, delta.tool_calls)
        self._take_text(delta)
        return is_too_much

    def _take_text(self, delta: Delta) -> None:
        text = self._answer.feed(delta)
        if text and not self.has_begun:
            self._note_first()
        self._emit(text)

    def _note_first(self) -> None:
        self.has_begun = True
        self._metrics.first_token_ts = time.monotonic()
        if self._on_progress is not None and not self._is_aborted:
            num_prompt = len(self._prompt_token_ids)
            self._on_progress(RequestProgress(None, num_prompt, 0, num_prompt, scheduled=True))

    def _emit(self, text: str) -> None:
        if not text:
            return
        token_ids = encode_answer(text)
        self._num_pieces += 1
        self._metrics.num_generation_tokens += len(token_ids)
        self._metrics.last_token_ts = time.monotonic()
        if self._on_delta is not None:
            self._on_delta(text, token_ids, None)
        else:
            self._text += text
            self._token_ids += token_ids

    def _last(self, reason: FinishReason, error: OutputError | None = None) -> RequestOutput:
        is_over_there = reason in ("stop", "length") or (error is not None and error.code in SAID)
        self._metrics.core_confirmed = is_over_there or not self.has_called
        answer = CompletionOutput(
            index=0,
            text=self._text,
            token_ids=self._token_ids,
            finish_reason=reason,
            stop_reason=self._stop_reason,
        )
        usage = self._usage
        return RequestOutput(
            self._request_id,
            None,
            self._prompt_token_ids,
            None,
            [answer],
            finished=True,
            metrics=self._metrics,
            num_cached_tokens=None if usage is None else usage.num_cached,
            error=error,
            counts=self._counts() if self.has_called else None,
        )

    def _counts(self) -> TokenCounts:
        """The engine's figures, or about so many if it did not come to say them.

        What an earlier call has written is a part of the last prompt.
        """
        num_prompt, num_cached = len(self._prompt_token_ids), 0
        if self._usage is not None:
            num_prompt = max(1, self._usage.num_prompt - self._num_before)
            num_cached = min(self._usage.num_cached, num_prompt)
        return TokenCounts(num_prompt, num_cached, self._num_before + self._num_written)
