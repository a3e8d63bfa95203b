"""`RemoteLink`: the way to an engine at an address, as `CoreLink` has it: joined, watched, asked.

Each answer is one streamed reply (`answers.py`). When the engine is gone, or fails again and again,
the link says that its core has died: then `Resubmission` does what it does for any core, and here
the engine is looked for, ever less often, until it answers.
"""

import asyncio
import contextlib
import random
import secrets
import time
import weakref
from collections.abc import Awaitable, Sequence
from typing import Any

import structlog

from engine.client.requests.core_link import CoreListener, CoreState, Exactness
from engine.config import EngineConfig
from engine.errors import EngineDeadError, EngineGenerateError
from engine.ipc import AddRequest, ClientMessage, Ready, SchedulerStats, SequenceOutput
from engine.sampling_params import SamplingParams
from server.engines.remote.answers import OpenAnswers
from server.engines.remote.checkpoint import Checkpoint, check_agreement
from server.engines.remote.dialects.dialect import MAX_COUNT, Dialect, RemoteFacts, RemoteLoad
from server.engines.remote.patience import Patience
from server.engines.remote.wire import exchange
from server.engines.remote.wire.address import RemoteAddress
from server.engines.remote.wire.problems import (
    Broken,
    Misfit,
    RemoteProblem,
    Unreachable,
)
from sessions.background import start

logger = structlog.get_logger("server")

BLOCK_SIZE = 16  # in which the tokens of a cache are told


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
        self._answers = OpenAnswers(self, address, dialect, self._patience, self._ask)
        self._listener: weakref.ref[CoreListener] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        self._last_beat = 0.0  # time.monotonic() of its last sign of life
        self._look_now = asyncio.Event()
        self._changed = asyncio.Event()  # set, and replaced, with each state, and each answer's end
        self._is_closed = False

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
        if isinstance(message, AddRequest):  # hellos and pings are a socket's; the rest is called
            self._answers.send(message, self.ready)
        return True

    def check(self, params: SamplingParams) -> None:
        if self.ready is not None:  # before, nobody knows what it can do
            self._dialect.call(AddRequest("", [0], params, 0.0), "")

    def abort(self, request_ids: Sequence[str], reason: str = "abort") -> None:
        self._answers.abort(request_ids)

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
                asyncio.get_running_loop().call_soon(
                    self._lose_if_joined, problem
                )  # whoever hears of it may fail again
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
        if self._answers.failures.are_too_many:
            await asyncio.sleep(self._answers.failures.next_pause())

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
                self.lose(str(problem))
        except RemoteProblem as problem:
            silent = time.monotonic() - self._last_beat
            if self.ready is None:
                return
            if silent > self._patience.dead:
                self.lose(f"no sign of life for {silent:.0f} s: {problem}")
            elif silent > self._patience.stalled and self.state is CoreState.READY:
                self._set_state(CoreState.STALLED, f"no sign of life for {silent:.0f} s: {problem}")
        else:
            if self.ready is not None:
                self.beat()
                self.stats = self._stats_of(load)

    def _ready_of(self, facts: RemoteFacts) -> Ready:
        checkpoint = self._checkpoint
        limits = (facts.max_model_len, checkpoint.max_model_len)
        max_model_len = min(limit for limit in limits if limit is not None)
        # Each answer has room in it. What no cache has would be too large for a reply in JSON.
        kv_tokens = max(min(facts.num_kv_tokens or 0, MAX_COUNT), max_model_len)
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
            num_running=min(running, MAX_COUNT),
            num_waiting=min(load.num_waiting or 0, MAX_COUNT),
            num_waiting_tokens=0,
            num_blocks_total=total,
            num_blocks_free=total - round(total * min(1.0, max(0.0, load.kv_usage or 0.0))),
        )

    def beat(self) -> None:
        self._last_beat = time.monotonic()
        if self.state is CoreState.STALLED:
            self._set_state(CoreState.READY, "")

    def _note_problem(self, problem: str) -> None:
        if problem != self.problem:
            logger.warning("engine not joined", url=self._address.url, problem=problem)
            self.problem = problem
            if self.state is CoreState.CONNECTING:
                self._set_state(self.state, problem)

    # ---- its end ---------------------------------------------------------------------------------

    def lose(self, reason: str) -> None:
        """The core has died, as far as its client is concerned."""
        self._answers.drop()
        self.ready = self.stats = None
        reason = self._address.without_key(reason)
        self._look_now.set()
        logger.warning("engine lost", url=self._address.url, reason=reason)
        self._set_state(CoreState.DEAD, reason)

    def _lose_if_joined(self, reason: str) -> None:
        if self.ready is not None:
            self.lose(reason)

    def _let_go(self) -> None:
        self._answers.close()
        if self._watching is not None:
            self._watching.cancel()
        self.announce()

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
        stats, answers = self.stats, self._answers
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
            "requests_total": answers.num_requests,
            "prompt_tokens_total": answers.num_prompt_tokens,
            "generation_tokens_total": answers.num_generation_tokens,
            "aborts_total": answers.num_aborts,
            "prefix_cache_queries_total": answers.num_prompt_tokens,
            "prefix_cache_hits_total": answers.num_cached_tokens,
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

    def emit(self, output: SequenceOutput) -> None:
        if (listener := self._hearing) is not None:
            listener.on_core_outputs([output])

    def emit_silence(self, request_id: str) -> None:
        if (listener := self._hearing) is not None:
            listener.on_core_silent([request_id])

    def _set_state(self, state: CoreState, reason: str) -> None:
        self.state = state
        self.announce()
        if (listener := self._hearing) is not None:
            listener.on_core_state(state, reason)

    def announce(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
