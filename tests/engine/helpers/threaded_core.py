"""A whole core without a model: the real step loop and the real socket, in threads of the test."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

from engine.client.async_llm import AsyncLLM
from engine.client.launcher import PrivateDirectory
from engine.core.io_thread import IoThread, Shutdown
from engine.core.metrics import CoreMetrics
from engine.core.step_loop import EngineCore
from engine.ipc import Ready
from tests.engine.helpers.fakes import EOS, VOCAB_SIZE, FakeModel, make_scheduler
from tests.helpers.patience import PATIENCE


class ThreadedCore:
    """`model` and `settings` as for `SteppedCore`. `hold` keeps the next step from ending."""

    def __init__(
        self,
        model: FakeModel | None = None,
        *,
        worker: object = None,
        epoch: int = 1,
        io: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.model = model or FakeModel()
        self.model.during_step = self._pass_gate
        self.scheduler = make_scheduler(**settings)
        self._gate = threading.Event()
        self._gate.set()
        self._holds_again = False  # after the step that is released next
        self.is_in_step = threading.Event()
        self._directory = PrivateDirectory()
        self.address = self._directory.address
        config = self.scheduler.config
        ready = Ready(
            epoch=epoch,
            pid=os.getpid(),
            max_model_len=self.scheduler.max_model_len,
            num_blocks=self.scheduler.blocks.num_blocks,
            block_size=config.block_size,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=[EOS],
            max_num_seqs=config.max_num_seqs,
            dtype="float32",
            attn_backend="none",
            pace=config.pace,
            config=config,
            embedding_size=2,
        )
        metrics = CoreMetrics("fake", "none")
        core = EngineCore(self.scheduler, self.model.launch, metrics, epoch=epoch, worker=worker)
        self._io = IoThread(self.address, ready, core.pong, far=config.far, **(io or {}))
        core.inbox, core.aborts, core.send = self._io.inbox, self._io.aborts, self._io.send
        self._io.start()
        self._thread = threading.Thread(target=core.run, name="threaded-core")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()
        self._io.inbox.put(Shutdown())
        self._thread.join()
        self._io.close("the test has ended")
        self._directory.remove()

    def hold(self) -> None:
        """From now on no step ends; `is_in_step` is set when one has begun."""
        self.is_in_step.clear()
        self._gate.clear()

    def release(self) -> None:
        self._gate.set()

    async def next_step(self) -> None:
        """Let the step that is held end, and hold the one after it."""
        self.is_in_step.clear()
        self._holds_again = True
        self._gate.set()
        await asyncio.to_thread(self.is_in_step.wait)

    async def release_after_message(self, count: int = 1) -> None:
        """Let the step end when so many messages are here for the next one to find."""
        async with asyncio.timeout(PATIENCE):
            while self._io.inbox.qsize() < count:  # noqa: ASYNC110  (no task can await a thread's queue)
                await asyncio.sleep(0.001)
        self.release()

    def _pass_gate(self) -> None:
        self.is_in_step.set()
        self._gate.wait()
        if self._holds_again:
            self._holds_again = False
            self._gate.clear()


@contextlib.asynccontextmanager
async def connected(core: ThreadedCore, folder: Path, **options: Any) -> AsyncIterator[AsyncLLM]:
    """An engine that has joined this core; it must end without an open request."""
    engine = AsyncLLM.connect(core.address, model=str(folder), **options)
    await engine.wait_ready(PATIENCE)
    yield engine
    left = engine.output_processor
    assert not left.request_states and not left.parent_requests
    await engine.wait_for_requests_to_drain(10)
    engine.shutdown()
