"""The core process: `python -m engine.core`. It owns the model; many clients share it.

    stdin   the `EngineConfig` as one line of JSON; then nothing, until the parent dies: EOF ends us
    stdout  one line of JSON: {"ready": true, ...} or {"ready": false, "error": "one line"}
    stderr  the log, without a word of a user's

One round of the step loop: receive, schedule, forward and sample, receive aborts again, update,
send. A request's fault ends that request; a fault of the step itself ends the process, which says
so first and never limps on.
"""

import gc
import json
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

import msgspec

from engine.block_manager import BlockManager
from engine.checkpoint import check_folder
from engine.config import EngineConfig
from engine.core_io import ClientGone, InboxItem, IoThread, Shutdown
from engine.core_log import configure_log
from engine.core_metrics import CoreMetrics
from engine.ipc import (
    Abort,
    AddRequest,
    ClientMessage,
    CoreMessage,
    Ping,
    Pong,
    Ready,
    StepOutputs,
    Utility,
    UtilityReply,
)
from engine.scheduler import Scheduler
from engine.sequence import Execute

logger = logging.getLogger("engine.core")

PARENT_GRACE_SECONDS = 5.0  # for a step in progress when the parent dies
# Between two operations torch's threads wait awake, by default for milliseconds. On a machine whose
# cores we share with the web workers that stops the others, and made steps 25 times as long.
SPIN_COUNT = "1000"
ONE_THREAD_PARAMETERS = 20_000_000  # below it, a step is over before a second thread has helped


class EngineCore:
    """The step loop, without sockets and tensors: queues in, `execute` between, `send` out.

    `now` is a monotonic clock, replaced in tests.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        execute: Execute,
        metrics: CoreMetrics,
        *,
        epoch: int = 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.metrics = metrics
        self.epoch = epoch
        self.inbox: SimpleQueue[InboxItem] = SimpleQueue()
        self.aborts: deque[tuple[str, Abort]] = deque()
        self.send: Callable[[str, CoreMessage], None] = lambda client_id, message: None
        self._execute = execute
        self._now = now
        self._is_stopping = False
        self._round_started: float | None = None  # None: idle
        self._utilities: dict[str, Callable[..., Any]] = {
            "metrics": lambda: metrics.snapshot(scheduler),
            "check_integrity": scheduler.check_integrity,
            "reset_prefix_cache": scheduler.blocks.reset_cache,
            "num_unfinished": lambda: len(scheduler.sequences),
        }

    def run(self) -> None:
        """Step until a `Shutdown` arrives. An exception of a step is not caught here."""
        while not self._is_stopping:
            if not self.step() and not self._is_stopping:
                self.wait()

    def step(self) -> bool:
        """One round; False if there was nothing to compute."""
        self._round_started = self._now()
        self._receive_aborts()
        while not self.inbox.empty():
            self._handle(self.inbox.get_nowait())
        scheduled = self.scheduler.schedule(self._now())
        self._send_outputs()  # who was let in and who waits, before the forward pass
        if not scheduled:
            self._check_idle()
            return False
        metrics = self.metrics
        is_decode = all(item.sequence.is_decoding for item in scheduled)
        tokens = self._execute(scheduled)
        self._receive_aborts()
        self.scheduler.update(scheduled, tokens, self._now())
        self._send_outputs()
        seconds = self._now() - self._round_started
        if is_decode:
            metrics.decode_steps.observe(seconds)
        else:
            metrics.other_steps.observe(seconds)
            num_tokens = sum(item.num_tokens for item in scheduled)
            self.scheduler.prompt_budget.observe(num_tokens, seconds)
        return True

    def wait(self) -> None:
        """Sleep until a message comes or the next token of a paced answer is due."""
        due = self.scheduler.next_due()
        timeout = None if due is None else max(0.0, due - self._now())
        self._round_started = None
        try:
            self._handle(self.inbox.get(timeout=timeout))
        except Empty:
            pass

    def pong(self, ping: Ping) -> Pong:
        """The answer to a ping, also while a step runs; called by the IO thread."""
        started = self._round_started
        age = 0.0 if started is None else self._now() - started
        return Pong(ping.number, self.epoch, age, self.scheduler.stats())

    def _handle(self, item: InboxItem) -> None:
        match item:
            case Shutdown():
                self._is_stopping = True
            case ClientGone(client_id):
                self.scheduler.drop_client(client_id)
            case (client_id, message):
                self._handle_message(client_id, message)

    def _handle_message(self, client_id: str, message: ClientMessage) -> None:
        match message:
            case AddRequest():
                if self.scheduler.add(client_id, message, self._now()) is None:
                    logger.error("request %s is here already, ignored", message.request_id)
            case Abort():
                self.scheduler.abort(client_id, message.request_ids, message.reason)
            case Utility():
                self.send(client_id, self._call(message))

    def _call(self, utility: Utility) -> UtilityReply:
        function = self._utilities.get(utility.name)
        if function is None:
            return UtilityReply(utility.call_id, error=f"there is no utility {utility.name!r}")
        try:
            return UtilityReply(utility.call_id, function(*utility.args))
        except Exception as error:  # an answer, whatever it is: the step loop goes on
            logger.exception("utility %s failed", utility.name)
            return UtilityReply(utility.call_id, error=f"{type(error).__name__}: {error}")

    def _receive_aborts(self) -> None:
        """What has come since; each is in the inbox as well, where it is mostly ignored then."""
        while self.aborts:
            client_id, message = self.aborts.popleft()
            self.scheduler.abort(client_id, message.request_ids, message.reason)

    def _send_outputs(self) -> None:
        outputs = self.scheduler.take_outputs()
        if not outputs:
            return
        stats, step = self.scheduler.stats(), self.metrics.num_steps
        for client_id, of_client in outputs.items():
            self.send(client_id, StepOutputs(self.epoch, step, of_client, stats))

    def _check_idle(self) -> None:
        """With nothing running all blocks must be free, and the head of the queue must fit."""
        scheduler = self.scheduler
        if scheduler.running:
            return
        if scheduler.blocks.num_free != scheduler.blocks.num_blocks:
            logger.error("idle, but %s", scheduler.stats())
        if scheduler.waiting:
            head = scheduler.waiting[0]
            logger.error("nothing runs, but %r was not let in: %s", head, scheduler.stats())
            scheduler.finish(head, "error", error=("engine_error", "it could not be scheduled"))
            self._send_outputs()


def main() -> int:
    """Serve until told to stop. The exit status is not 0 if the core failed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it will stop us
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    report_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints goes to the log
    config = msgspec.json.decode(_read_line(0), type=EngineConfig)
    configure_log(config.log_level, config.log_format)
    watch = ParentWatch()
    try:
        core, ready = load_core(config)
        io = IoThread(config.address, ready, core.pong)
    except Exception as error:
        if not isinstance(error, ValueError):  # those are written for people
            logger.exception("the core could not start")
        _report(report_to, {"ready": False, "error": f"{error}".strip() or type(error).__name__})
        return 1
    core.inbox, core.aborts, core.send = io.inbox, io.aborts, io.send
    watch.inbox = io.inbox
    signal.signal(signal.SIGTERM, lambda *_: io.inbox.put(Shutdown()))
    io.start()
    _report(report_to, {"ready": True, "pid": os.getpid(), "epoch": ready.epoch})
    try:
        core.run()
    except Exception as error:
        logger.exception("the step loop failed")
        io.close(f"{type(error).__name__} in the step loop")
        return 1
    io.close("the engine core was stopped")
    return 0


def load_core(config: EngineConfig) -> tuple[EngineCore, Ready]:
    """Load the model and build everything around it. Raises ValueError with one clear line."""
    check_folder(Path(config.model), needs_weights=config.load_format != "dummy")
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    import torch  # after these settings; and tests of the step loop need no torch

    from engine import ops
    from engine.loader import load_model
    from engine.model_runner import ModelRunner

    if config.threads:
        torch.set_num_threads(config.threads)
    chosen = ops.choose(config.attn_backend)
    runner = ModelRunner(load_model(config, chosen), config)
    config, loaded = runner.config, runner.loaded
    if not config.threads and loaded.num_parameters < ONE_THREAD_PARAMETERS:
        torch.set_num_threads(1)
    assert config.num_blocks is not None and config.max_model_len is not None
    blocks = BlockManager(config.num_blocks, config.block_size, config.enable_prefix_caching)
    scheduler = Scheduler(config, blocks, loaded.vocab_size, loaded.eos_token_ids)
    ready = Ready(
        epoch=secrets.randbits(48),
        pid=os.getpid(),
        max_model_len=config.max_model_len,
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        vocab_size=loaded.vocab_size,
        eos_token_ids=loaded.eos_token_ids,
        max_num_seqs=config.max_num_seqs,
        dtype=str(loaded.dtype).removeprefix("torch."),
        attn_backend=chosen.name,
        pace=config.pace,
    )
    metrics = CoreMetrics(config.served_model_name, chosen.name)
    gc.collect()
    gc.freeze()  # the model is not garbage: do not look at it again
    return EngineCore(scheduler, runner.execute, metrics, epoch=ready.epoch), ready


class ParentWatch(threading.Thread):
    """Ends the process when stdin does: the parent is gone. Before there is an inbox, at once."""

    def __init__(self) -> None:
        super().__init__(name="parent-watch", daemon=True)
        self.inbox: SimpleQueue[InboxItem] | None = None
        self.start()

    def run(self) -> NoReturn:
        while os.read(0, 65536):
            pass
        if self.inbox is not None:
            self.inbox.put(Shutdown())
            time.sleep(PARENT_GRACE_SECONDS)
        os._exit(1)


def _read_line(fd: int) -> bytes:
    """One line, byte by byte, so that nothing behind it is taken from the pipe."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(fd, 1)):
        line += byte
    return line


def _report(stream: Any, line: dict[str, object]) -> None:
    try:
        print(json.dumps(line), file=stream, flush=True)
        stream.close()
    except OSError:
        logger.warning("nobody reads our report")


if __name__ == "__main__":
    sys.exit(main())
