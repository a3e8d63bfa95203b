"""`RemoteLink`: the way to an engine at an address, as `CoreLink` has it: joined, watched, asked.

Each answer is one streamed reply. One that breaks off while the engine is well is asked for again,
from the next token on, a few times. When the engine is gone, or fails again and again, the link
says that its core has died: then `Resubmission` does what it does for any core, and here the engine
is looked for, ever less often, until it answers.
"""

import asyncio
import contextlib
import random
import secrets
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from engine.client.requests.core_client import ABORT_CONFIRM_SECONDS
from engine.client.requests.core_link import CANNOT_CONTINUE, CoreListener, CoreState, Exactness
from engine.config import EngineConfig
from engine.errors import EngineDeadError, EngineGenerateError
from engine.ipc import AddRequest, ClientMessage, Ready, SchedulerStats, SequenceOutput
from engine.sampling_params import SamplingParams
from server.engines.remote.answer import MAX_TRIES_IN_VAIN, OpenAnswer
from server.engines.remote.checkpoint import Checkpoint, check_agreement
from server.engines.remote.dialect import Dialect, RemoteFacts, RemoteLoad
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
BLOCK_SIZE = 16  # in which the tokens of a cache are told
MAX_ERROR_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Patience:
    """How long what is waited for, in seconds."""

    look: float = 1.0  # between two looks at an engine that is well
    reply: float = 5.0  # for a look, a probe, an abort
    stalled: float = 5.0  # without a sign of life: it counts as stalled
    dead: float = 20.0  # likewise: as dead
    first_byte: float = 600.0  # of an answer: it may wait its turn, and have a long prompt
    next_byte: float = 60.0  # of an answer that has begun
    again: tuple[float, float] = (0.1, 5.0)  # before it is looked for again: at first, at most
    breaker: float = 1.0  # before one that failed again and again is joined again, at first
    busy: float = 0.5  # before one that has too much to do is asked again

    @classmethod
    def of(cls, stillness: float) -> "Patience":
        """With so many seconds for an answer that stands still."""
        return cls(first_byte=10 * stillness, next_byte=stillness)


MAX_FAILURES = 5  # tries in a row, of any answers, without a token: it is of no use at present
MAX_BUSY_TRIES = 8  # of one answer


class RemoteLink:
    """One worker's way to one engine. It belongs to the event loop that it is first attached to."""

    exactness = Exactness.TOKENS

    def __init__(
        self,
        address: RemoteAddress,
        dialect: Dialect,
        checkpoint: Checkpoint,
        *,
        served_model_name: str,
        patience: Patience | None = None,
    ) -> None:
        self.state = CoreState.CONNECTING
        self.ready: Ready | None = None
        self.stats: SchedulerStats | None = None
        self.heard_at: float | None = None  # it is asked now and then: `state` tells what of that
        self.problem: str | None = None  # why it is not joined
        self._address = address
        self._dialect = dialect
        self._checkpoint = checkpoint
        self._served_model_name = served_model_name
        self._patience = patience or Patience()
        self._ask = exchange.asking(address, self._patience.reply)
        self._listener: weakref.ref[CoreListener] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        self._background = Background()
        self._answers: dict[str, OpenAnswer] = {}  # by internal id
        self._trying: dict[str, asyncio.Task[None]] = {}  # likewise
        self._num_failures = 0  # tries in a row, of any answers
        self._failed_at = 0.0  # the last of them
        self._breaker_seconds = self._patience.breaker
        self._last_beat = 0.0  # time.monotonic() of its last sign of life
        self._look_now = asyncio.Event()
        self._changed = asyncio.Event()  # set, and replaced, with each state, and each answer's end
        self._is_closed = False
        self._num_requests = self._num_aborts = 0
        self._num_prompt_tokens = self._num_cached_tokens = self._num_generation_tokens = 0

    # ---- what a client does with a link ---------------------------------------------------------

    def listen(self, listener: CoreListener) -> None:
        self._listener = weakref.ref(listener)

    def attach(self) -> None:
        loop = asyncio.get_running_loop()
        if self._is_closed or loop is self._loop:
            return
        if self._loop is not None:
            raise RuntimeError("a link belongs to one event loop")
        self._loop = loop
        self._watching = start(self._watch())

    def send(self, message: ClientMessage) -> bool:
        if self.ready is None or self._is_closed:
            return False
        if not isinstance(message, AddRequest):
            return True  # hellos and pings are a socket's; aborts and calls come as such
        answer = OpenAnswer(
            message,
            stop_ids=self.ready.eos_token_ids,
            vocab_size=self.ready.vocab_size,
            max_model_len=self.ready.max_model_len,
        )
        self._dialect.call(message, "")  # which refuses by name what it cannot do
        self._num_requests += 1
        self._num_prompt_tokens += len(message.prompt_token_ids)
        self._answers[message.request_id] = answer
        if (reason := answer.end_of_resumed()) is not None:
            self._soon(self._end, answer, reason)
        elif answer.is_held_to_form and message.resume_token_ids:
            self._soon(self._refuse_to_continue, answer)
        else:
            task = start(self._try_to_carry_out(answer))
            self._trying[message.request_id] = task
            task.add_done_callback(lambda done: self._trying.pop(message.request_id, None))
        return True

    def check(self, params: SamplingParams) -> None:
        if self.ready is not None:  # before, nobody knows what it can do
            self._dialect.call(AddRequest("", [0], params, 0.0), "")

    def abort(self, request_ids: Sequence[str], reason: str = "abort") -> None:
        for request_id in request_ids:
            answer = self._answers.get(request_id)
            if answer is not None and not answer.is_aborting:
                answer.is_aborting = True
                self._num_aborts += 1
                self._background.spawn(self._abort(answer))

    def call(self, name: str, *args: Any) -> Awaitable[Any]:
        self.attach()
        match name:
            case "num_unfinished":
                return self._ask_for_number()
            case "metrics":
                return self._metrics()
            case "drain":
                return self._drain()
            case "is_paused" | "is_sleeping":
                return self._false()
        return self._no_such(name)

    async def wait_ready(self) -> None:
        self.attach()
        while self.state is not CoreState.READY:
            if self._is_closed:
                raise EngineDeadError("the engine was shut down")
            await self._changed.wait()

    def core_has_exited(self) -> bool:
        return self.state is CoreState.DEAD

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self.ready, self.state = None, CoreState.DEAD
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        try:
            is_here = asyncio.get_running_loop() is loop
        except RuntimeError:
            is_here = False
        if is_here:
            self._let_go()
        else:
            loop.call_soon_threadsafe(self._let_go)

    # ---- joining and watching -------------------------------------------------------------------

    async def _watch(self) -> None:
        """For ever: look for the engine, and at it, whatever goes wrong."""
        first, most = self._patience.again
        delay = first
        while True:
            problem = None
            try:
                await self._join()
                delay = first
                await self._look_on()
            except RemoteProblem as known:
                problem = str(known)
            except Exception as error:  # of a reply that nobody has thought of, or of a listener
                logger.exception("engine cannot be watched", url=self._address.url)
                problem = f"it cannot be watched: {type(error).__name__}"
                self._soon(self._lose_if_joined, problem)  # whoever hears of it may fail again
            if problem is not None:
                self._note_problem(problem)
                await asyncio.sleep(delay * random.uniform(0.8, 1.2))
                delay = min(2 * delay, most)

    async def _look_on(self) -> None:
        """Until it is lost; and for a while after that, if it lives, and has answered nothing."""
        while self.ready is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience.look):
                    await self._look_now.wait()
            self._look_now.clear()
            if self.ready is not None:
                await self._look()
        if self._num_failures >= MAX_FAILURES:
            await asyncio.sleep(self._breaker_seconds * random.uniform(0.8, 1.2))
            self._breaker_seconds = min(2 * self._breaker_seconds, 6 * self._patience.again[1])
            self._num_failures = 0

    async def _join(self) -> None:
        facts = await self._dialect.probe(self._ask)
        await check_agreement(self._dialect, self._ask, self._checkpoint)
        self._last_beat = time.monotonic()
        self.problem = None
        self.ready = self._ready_of(facts)
        self.stats = self._stats_of(RemoteLoad())
        logger.info("engine joined", url=self._address.url, kind=self._dialect.name)
        self._set_state(CoreState.READY, "")

    async def _look(self) -> None:
        """One that takes no connection is dead; one that says nothing is, after a while."""
        try:
            load = await self._dialect.look(self._ask)
        except (Unreachable, Broken, Misfit) as problem:
            if self.ready is not None:
                self._lose(str(problem))
        except RemoteProblem as problem:
            silent = time.monotonic() - self._last_beat
            if self.ready is None:
                return
            if silent > self._patience.dead:
                self._lose(f"no sign of life for {silent:.0f} s: {problem}")
            elif silent > self._patience.stalled and self.state is CoreState.READY:
                self._set_state(CoreState.STALLED, f"no sign of life for {silent:.0f} s: {problem}")
        else:
            if self.ready is not None:
                self._beat()
                self.stats = self._stats_of(load)

    def _ready_of(self, facts: RemoteFacts) -> Ready:
        checkpoint = self._checkpoint
        limits = (facts.max_model_len, checkpoint.max_model_len)
        max_model_len = min(limit for limit in limits if limit is not None)
        kv_tokens = max(facts.num_kv_tokens or 0, max_model_len)  # each answer has room in it
        return Ready(
            epoch=secrets.randbits(53),
            pid=0,
            max_model_len=max_model_len,
            num_blocks=-(-kv_tokens // BLOCK_SIZE),
            block_size=BLOCK_SIZE,
            vocab_size=facts.vocab_size or checkpoint.vocab_size,
            eos_token_ids=list(checkpoint.eos_token_ids),
            max_num_seqs=facts.max_num_seqs,
            dtype="",
            attn_backend=self._dialect.name,
            pace=0.0,
            config=EngineConfig(
                model=str(checkpoint.folder),
                address=self._address.url,
                served_model_name=self._served_model_name,
            ),
            tasks=["generate"],
        )

    def _stats_of(self, load: RemoteLoad) -> SchedulerStats:
        assert self.ready is not None
        total = self.ready.num_blocks
        running = len(self._answers) if load.num_running is None else load.num_running
        return SchedulerStats(
            num_running=running,
            num_waiting=load.num_waiting or 0,
            num_waiting_tokens=0,
            num_blocks_total=total,
            num_blocks_free=total - round(total * min(1.0, max(0.0, load.kv_usage or 0.0))),
        )

    def _beat(self) -> None:
        self._last_beat = time.monotonic()
        if self.state is CoreState.STALLED:
            self._set_state(CoreState.READY, "")

    def _note_problem(self, problem: str) -> None:
        if problem != self.problem:
            logger.warning("engine not joined", url=self._address.url, problem=problem)
            self.problem = problem
            if self.state is CoreState.CONNECTING:
                self._set_state(self.state, problem)

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
        num_busy, is_gap = 0, False
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
            reader, lambda step: self._take(answer, step), self._beat, is_whole=is_gap
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
            self._num_failures = 0
            self._breaker_seconds = self._patience.breaker
            self._num_generation_tokens += len(output.new_token_ids)
        if output.finish_reason is not None:
            self._num_cached_tokens += output.num_cached_tokens
            self._forget(answer)
            if step.finish_reason is None and (call := self._dialect.abort(answer.name)):
                self._background.spawn(self._tell(call))  # it would go on
        self._emit(output)
        return output.finish_reason is not None

    async def _is_gone(self, answer: OpenAnswer, failed: RemoteProblem) -> bool:
        """Whether the engine, and not this reply alone, is what failed; then it is lost."""
        if answer.began_at > self._failed_at:  # what broke at the same time has failed once
            self._num_failures += 1
            self._failed_at = time.monotonic()
        if self.ready is None:
            return True
        if isinstance(failed, Unreachable):
            self._lose(str(failed))
            return True
        if self._num_failures >= MAX_FAILURES:
            self._lose(f"{MAX_FAILURES} tries in a row have failed: {failed}")
            return True
        try:
            await self._dialect.look(self._ask)
        except (Unreachable, Broken, Misfit) as problem:
            if self.ready is not None:
                self._lose(f"{failed}; {problem}")
        except RemoteProblem:
            pass  # it lives, and is slow: the answer tries again, and the next look decides
        return self.ready is None

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
            self._emit(SequenceOutput(answer.request.request_id, finish_reason="abort"))
        elif (listener := self._hearing) is not None:
            listener.on_core_silent([answer.request.request_id])

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
            self._emit(SequenceOutput(answer.request.request_id, finish_reason=reason))

    def _fail(self, answer: OpenAnswer, code: str, message: str) -> None:
        if not self._is_open(answer):
            return
        self._forget(answer)
        message = self._address.without_key(message)
        logger.warning("answer failed", url=self._address.url, code=code, problem=message)
        error = (code, message[:MAX_ERROR_CHARACTERS])
        request_id = answer.request.request_id
        self._emit(SequenceOutput(request_id, finish_reason="error", error=error))

    def _refuse_to_continue(self, answer: OpenAnswer) -> None:
        message = "what holds it to its form would begin anew there"
        self._fail(answer, CANNOT_CONTINUE, message)

    def _forget(self, answer: OpenAnswer) -> None:
        self._answers.pop(answer.request.request_id, None)
        self._announce()

    def _end_try(self, answer: OpenAnswer) -> None:
        """Close its connection, by which the engine hears that nobody listens."""
        task = self._trying.pop(answer.request.request_id, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        if answer.exchange is not None:
            answer.exchange.close()

    def _lose(self, reason: str) -> None:
        """The core has died, as far as its client is concerned."""
        answers, self._answers = list(self._answers.values()), {}
        for answer in answers:
            self._end_try(answer)
        self.ready = self.stats = None
        reason = self._address.without_key(reason)
        self._look_now.set()
        logger.warning("engine lost", url=self._address.url, reason=reason)
        self._set_state(CoreState.DEAD, reason)

    def _lose_if_joined(self, reason: str) -> None:
        if self.ready is not None:
            self._lose(reason)

    def _let_go(self) -> None:
        for answer in list(self._answers.values()):
            if answer.name and not answer.is_aborting and answer.exchange is not None:
                answer.exchange.close()
        self._answers.clear()
        self._background.cancel()
        for task in list(self._trying.values()):
            task.cancel()
        if self._watching is not None:
            self._watching.cancel()
        self._announce()

    # ---- calls ----------------------------------------------------------------------------------

    async def _ask_for_number(self) -> int:
        """A round trip, by which somebody wants to know whether it is well."""
        self._raise_if_gone()
        try:
            await self._dialect.look(self._ask)
        except RemoteProblem as problem:
            raise EngineDeadError(str(problem)) from None
        return len(self._answers)

    async def _metrics(self) -> dict[str, Any]:
        """What is known here: the counts are those of this worker."""
        self._raise_if_gone()
        stats = self.stats
        assert stats is not None
        return {
            "model_name": self._served_model_name,
            "attn_backend": self._dialect.name,
            "sleeping": 0,
            "num_running": stats.num_running,
            "num_waiting": stats.num_waiting,
            "num_waiting_tokens": stats.num_waiting_tokens,
            "num_blocks_total": stats.num_blocks_total,
            "num_blocks_free": stats.num_blocks_free,
            "requests_total": self._num_requests,
            "prompt_tokens_total": self._num_prompt_tokens,
            "generation_tokens_total": self._num_generation_tokens,
            "aborts_total": self._num_aborts,
            "prefix_cache_queries_total": self._num_prompt_tokens,
            "prefix_cache_hits_total": self._num_cached_tokens,
        }

    async def _drain(self) -> None:
        while self._answers:
            self._raise_if_gone()
            await self._changed.wait()

    async def _false(self) -> bool:
        self._raise_if_gone()
        return False

    async def _no_such(self, name: str) -> Any:
        raise EngineGenerateError(f"engines of the kind {self._dialect.name} have no {name}")

    def _raise_if_gone(self) -> None:
        if self.ready is None:
            raise EngineDeadError(self.problem or "no engine is joined")

    # ---- helpers --------------------------------------------------------------------------------

    @property
    def _hearing(self) -> CoreListener | None:
        return None if self._listener is None or self._is_closed else self._listener()

    def _emit(self, output: SequenceOutput) -> None:
        if (listener := self._hearing) is not None:
            listener.on_core_outputs([output])

    def _set_state(self, state: CoreState, reason: str) -> None:
        self.state = state
        self._announce()
        if (listener := self._hearing) is not None:
            listener.on_core_state(state, reason)

    def _announce(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _soon(self, what: Callable[..., None], *args: Any) -> None:
        asyncio.get_running_loop().call_soon(what, *args)
