"""`TextEngine`: an engine that takes texts and gives texts, as a worker has it.

Any server with OpenAI's `/chat/completions` is one. Of its tokens nothing is known here but their
number, which it says at the end. An answer that breaks off goes on after its text where the engine
can be asked for that; where it cannot, it ends with the error `CANNOT_CONTINUE`.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from server.engines.client import (
    CoreState,
    DeltaCallback,
    EngineDeadError,
    EngineLoad,
    EngineTokenizer,
    Exactness,
    Grammar,
    LoRARequest,
    Marks,
    PoolingParams,
    PoolingRequestOutput,
    QueueOverflowError,
    RequestOutput,
    RequestProgress,
    RetryableRequestError,
    SamplingParams,
    StructuredOutputsParams,
    TokensPrompt,
    ValidationError,
)
from server.engines.remote.wire.problems import (
    BadStatus,
    Broken,
    Misfit,
    RemoteProblem,
    Unreachable,
)
from server.engines.textual.answers import GRAMMAR, plain
from server.engines.textual.asking import Asking
from server.engines.textual.conversation import TextTokenizer, read_prompt
from server.engines.textual.facts import DEFAULT_CONTEXT, Facts, read_facts
from server.engines.textual.ids import decode
from server.engines.textual.line import Line
from server.engines.textual.requests import CallForm, check_params
from sessions.background import start

if TYPE_CHECKING:
    from server.engines.tracing import Tracing

logger = structlog.get_logger("server")

LOOK_SECONDS = 5.0  # between two looks at an engine that is there
FIRST_RETRY_SECONDS = 0.2  # after it has gone; twice as long each time
LAST_RETRY_SECONDS = 10.0
MISSED_LOOKS = 3  # in a row, without an answer, of one that counts as dead then

OnCoreState = Callable[[CoreState, str], None]


@dataclass(frozen=True, slots=True)
class TextModel:
    """What is known of its size: an estimate, since prompts are counted by their bytes."""

    max_model_len: int


@dataclass(frozen=True, slots=True)
class TextLoad:
    """What this worker asks of it; others are not known, nor is its memory."""

    num_running: int
    num_waiting: int = 0
    num_blocks_total: int = 0
    num_blocks_free: int = 0
    is_sleeping: bool = False


class TextEngine:
    """One engine of an address. `name` is that of the model here, `given` what it is called there.

    `context` is the most that an operator wants of the model's.
    """

    def __init__(
        self,
        line: Line,
        *,
        name: str,
        given: str | None = None,
        context: int | None = None,
        max_num_queued_reqs: int | None = None,
        on_core_state: OnCoreState = lambda state, reason: None,
        tracing: "Tracing | None" = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self.core_state = CoreState.CONNECTING
        self._line = line
        self._name, self._given, self._context = name, given, context
        self._max_num_queued_reqs = max_num_queued_reqs
        self._on_core_state = on_core_state
        self._look_seconds = look_seconds
        self._tokenizer = TextTokenizer()
        self._facts: Facts | None = None
        self._open: dict[str, Asking] = {}
        self._watching: asyncio.Task[None] | None = None
        self._look_now = asyncio.Event()
        self._looked = asyncio.Event()  # set, and replaced, after each look
        self._news = asyncio.Event()  # set, and replaced, when the state has changed
        self._is_closed = False
        self._counts = {"requests_total": 0, "generation_tokens_total": 0, "prompt_tokens_total": 0}
        with contextlib.suppress(RuntimeError):  # no event loop yet
            self._attach()

    # ---- whether it is there --------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        return self.core_state is CoreState.READY

    @property
    def exactness(self) -> Exactness:
        return Exactness.NONE if self._facts is None else self._facts.exactness

    @property
    def model_config(self) -> TextModel:
        if self._facts is None:
            raise RetryableRequestError("the engine has not said yet what it is")
        known = self._facts.context or self._context or DEFAULT_CONTEXT
        return TextModel(min(known, self._context or known))

    async def wait_ready(self, timeout: float | None = None) -> None:
        self._attach()
        async with asyncio.timeout(timeout):
            while not self.is_ready:
                if self._is_closed:
                    raise EngineDeadError("the engine was shut down")
                await self._news.wait()

    def _attach(self) -> None:
        if self._watching is None and not self._is_closed:
            self._watching = start(self._watch())

    async def _watch(self) -> None:
        """Look at it again and again: what it is, and whether it is there, whatever goes wrong."""
        num_missed = 0
        while True:
            try:
                num_missed = await self._look_once(num_missed)
            except Exception as error:  # of a list that nobody has thought of, or of a listener
                logger.exception("engine cannot be looked at", model=self._name)
                num_missed += 1
                problem = Broken(f"it cannot be looked at: {type(error).__name__}")
                asyncio.get_running_loop().call_soon(self._miss, problem, num_missed)
            seconds = retry_seconds(num_missed) if num_missed else self._look_seconds
            self._look_now.clear()
            looked, self._looked = self._looked, asyncio.Event()
            looked.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._look_now.wait()

    async def _look_once(self, num_missed: int) -> int:
        """How many looks in a row it has missed by now."""
        try:
            body = await self._line.models()
            self._facts = read_facts(body, self._name, self._given)
        except RemoteProblem as problem:
            if isinstance(problem, BadStatus) and problem.is_busy:
                return 0  # it is there, and says so
            self._miss(problem, num_missed + 1)
            return num_missed + 1
        self._enter(CoreState.READY, "")
        return 0

    def _miss(self, problem: RemoteProblem, num_missed: int) -> None:
        """It does not answer, or cannot be used; one that is only slow is not dead at once."""
        is_over = (
            isinstance(problem, Unreachable | Misfit | BadStatus) or num_missed >= MISSED_LOOKS
        )
        is_here = self.core_state in (CoreState.READY, CoreState.STALLED)
        state = CoreState.STALLED if is_here and not is_over else CoreState.DEAD
        self._enter(state, str(problem))

    def _enter(self, state: CoreState, reason: str) -> None:
        if state is self.core_state:
            return
        self.core_state = state
        news, self._news = self._news, asyncio.Event()
        news.set()
        if state is not CoreState.READY and not self._is_closed:
            logger.warning("engine is away", model=self._name, reason=reason)
        self._on_core_state(state, reason)

    # ---- texts ----------------------------------------------------------------------------------

    def get_tokenizer(self) -> EngineTokenizer:
        return self._tokenizer

    @property
    def answer_grammar(self) -> Grammar:
        """The engine itself tells thoughts and calls from text."""
        return GRAMMAR

    def prompt_end(self, prompt_token_ids: Sequence[int], marks: Marks) -> str:
        """A conversation begins no answer that is to be read."""
        return ""

    def call_form(
        self,
        tools: Mapping[str, Mapping[str, Any]],
        name: str | None = None,
        prompt_token_ids: Sequence[int] = (),
    ) -> StructuredOutputsParams:
        return CallForm(json_object=True, tool=name)

    def thought_tokens(self, prompt_token_ids: Sequence[int]) -> object:
        problem = "this engine's thoughts cannot be ended"
        raise ValidationError(problem, "thinking_token_budget")

    def resumed_text(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        resume_token_ids: Sequence[int],
        marks: Marks | None = None,
    ) -> str:
        text = decode(resume_token_ids)
        return plain(text) if marks is None else text

    # ---- requests -------------------------------------------------------------------------------

    @property
    def stats(self) -> EngineLoad | None:
        return TextLoad(len(self._open))

    @property
    def heard_at(self) -> None:
        """Its host is asked now and then: what came of that is in `core_state`."""

    @property
    def incarnation(self) -> None:
        """Its host starts it, and says nothing of that."""

    async def metrics(self) -> dict[str, Any]:
        return {"running": len(self._open), **self._counts}

    def check_admission(self, n: int = 1) -> None:
        if self._is_closed:
            raise EngineDeadError("the engine was shut down")
        if not self.is_ready:
            raise RetryableRequestError("the engine is away")
        num_waiting = sum(not each.has_begun for each in self._open.values())
        limit = self._max_num_queued_reqs
        if limit is not None and num_waiting + n > limit:
            raise QueueOverflowError("too many requests are waiting")

    def check_params(self, params: SamplingParams) -> None:
        """Raise `ValidationError`, with the parameter, for what it cannot be asked for."""
        if self._facts is not None:
            check_params(self._facts, params)

    async def generate(
        self,
        prompt: TokensPrompt,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        on_progress: Callable[[RequestProgress], None] | None = None,
        on_delta: DeltaCallback | None = None,
        resume_token_ids: Sequence[int] = (),
        priority: int = 0,
        is_admitted: bool = False,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        marks: Marks | None = None,
        session_id: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        if self._facts is None or self._is_closed:
            raise RetryableRequestError("the engine is away")
        if lora_request is not None:
            raise ValidationError("this engine has no adapters of ours", "lora_request")
        if request_id in self._open:
            raise ValidationError(f"request_id {request_id} is in use", "request_id", request_id)
        check_params(self._facts, sampling_params)
        asking = Asking(
            request_id,
            self,
            list(prompt["prompt_token_ids"]),
            read_prompt(prompt["prompt_token_ids"]),
            sampling_params,
            begun=decode(resume_token_ids),
            num_begun=len(resume_token_ids),
            is_marked=marks is not None,
            on_delta=on_delta,
            on_progress=on_progress,
        )
        self._open[request_id] = asking
        self._counts["requests_total"] += 1
        try:
            output = await asking.run()
        finally:
            del self._open[request_id]
            await asking.close()
        if output.counts is not None:
            self._counts["generation_tokens_total"] += output.counts.num_output
            self._counts["prompt_tokens_total"] += output.counts.num_prompt
        yield output

    async def abort(self, request_id: str) -> None:
        asking = self._open.get(request_id)
        if asking is not None:
            asking.abort()

    async def encode(
        self,
        prompt: TokensPrompt,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        for nothing in list[PoolingRequestOutput]():
            yield nothing
        raise ValidationError("this engine makes no embeddings here", "model")

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        raise ValidationError("this engine has no adapters of ours", "lora_request")

    async def remove_lora(self, lora_id: int) -> bool:
        return False

    def shutdown(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for asking in self._open.values():
            asking.fail(EngineDeadError("the engine was shut down"))
        if self._watching is not None:
            self._watching.cancel()
        self._enter(CoreState.DEAD, "the engine was shut down")

    # ---- for a request -------------------------------------------------------------------------

    @property
    def line(self) -> Line:
        return self._line

    @property
    def facts(self) -> Facts:
        assert self._facts is not None  # nothing is asked before
        return self._facts

    async def look(self) -> None:
        """Find out now whether it is there: something is wrong with an answer."""
        looked = self._looked
        self._look_now.set()
        await looked.wait()


def retry_seconds(num_missed: int) -> float:
    """Until the next look, after so many in a row in vain, which may be any number."""
    return min(FIRST_RETRY_SECONDS * 2.0 ** min(num_missed - 1, 10), LAST_RETRY_SECONDS)
