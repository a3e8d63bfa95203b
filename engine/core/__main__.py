"""The core process: `python -m engine.core`. It owns the model; many clients share it.

    stdin   the `EngineConfig` as one line of JSON; then nothing, until the parent dies: EOF ends us
    stdout  one line of JSON: {"ready": true, ...} or {"ready": false, "error": "one line"}
    stderr  the log, without a word of a user's

With `--standby BYTES` it loads the model if there is so much memory, says {"standby": true}, and
serves only when another line comes in on stdin. Its cache takes no memory until then.

The step loop is `engine/core/step_loop.py`. A fault that leaves it ends the process, which says so
first and never limps on.
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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn

import msgspec

from engine.config import EngineConfig
from engine.core.io_thread import GrammarsReady, InboxItem, IoThread, Shutdown
from engine.core.metrics import CoreMetrics
from engine.core.models.checkpoint import check_folder, file_stamps
from engine.core.runner.system_memory import require as require_memory
from engine.core.scheduling.block_manager import BlockManager
from engine.core.scheduling.scheduler import Scheduler
from engine.core.scheduling.sequence import Launch, ScheduledSequence, Tokens
from engine.core.step_loop import EngineCore
from engine.errors import UnsupportedModelError
from engine.ipc import STOPPED, Ready
from engine.log import configure_log

logger = logging.getLogger("engine.core")

PARENT_GRACE_SECONDS = 5.0  # for a step in progress when the parent dies
# Between two operations torch's threads wait awake, by default for milliseconds. On a machine whose
# cores we share with the web workers that stops the others, and made steps 25 times as long.
SPIN_COUNT = "1000"
CPU_OUT_OF_MEMORY = "can't allocate memory"  # in the text of torch's RuntimeError
ONE_THREAD_PARAMETERS = 20_000_000  # below it, a step is over before a second thread has helped


def main() -> int:
    """Serve until asked to stop. The exit status is not 0 if the core failed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it will stop us
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    report_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints goes to the log
    config = msgspec.json.decode(_read_line(0), type=EngineConfig)
    configure_log(config.log_level, config.log_format)
    watch = ParentWatch()
    standby_bytes = _standby_bytes(sys.argv[1:])
    try:
        if standby_bytes is not None:
            require_memory(standby_bytes)
        core, ready = load_core(config)
        if standby_bytes is not None:
            _report(report_to, {"standby": True})
            watch.called.wait()
        io = IoThread(config.address, ready, core.pong, far=config.far)
    except Exception as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # we are on our way out
        if not isinstance(error, ValueError):  # those are written for people
            logger.exception("the core could not start")
        problem = f"{error}".strip() or type(error).__name__
        is_refusal = isinstance(error, UnsupportedModelError)
        _report(report_to, {"ready": False, "error": problem, "is_refusal": is_refusal})
        report_to.close()
        return 1
    core.inbox, core.aborts, core.send = io.inbox, io.aborts, io.send
    watch.inbox = io.inbox
    signal.signal(signal.SIGTERM, lambda *_: io.inbox.put(Shutdown()))
    io.start()
    of_standby = {"num_blocks": ready.num_blocks, "standby_bytes": core.standby_bytes}
    _report(report_to, {"ready": True, "pid": os.getpid(), "epoch": ready.epoch, **of_standby})
    report_to.close()
    try:
        core.run()
    except Exception as error:
        logger.exception("the step loop failed")
        io.close(f"{type(error).__name__} in the step loop")
        return 1
    io.close(STOPPED)
    if core.is_waking:  # Python's end would unwind a thread amid torch's code
        logging.shutdown()
        os._exit(0)
    return 0


def num_threads(config: EngineConfig, num_chosen: int) -> int:
    """Of torch, which has chosen so many: for one core, unless somebody has told it."""
    if config.threads:
        return config.threads
    is_told = "OMP_NUM_THREADS" in os.environ
    return num_chosen if is_told else max(1, num_chosen // config.num_sharing)


def load_core(config: EngineConfig) -> tuple[EngineCore, Ready]:
    """Load the model and build everything around it. Raises ValueError with one clear line."""
    checkpoint = check_folder(Path(config.model), needs_weights=config.load_format != "dummy")
    stamps = file_stamps(checkpoint)
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    gc.disable()  # what is imported stays: looking for garbage meanwhile takes a fifth of the time
    import torch  # after these settings; and tests of the step loop need no torch

    from engine.core.attention.backends import UNIT_TOKENS
    from engine.core.models.loader import choose_device, load_model
    from engine.core.models.lora.shelf import AdapterShelf
    from engine.core.ops import library as ops
    from engine.core.runner.machine import describe_machine
    from engine.core.runner.memory import RunnerMemory, return_free_memory
    from engine.core.runner.model_runner import ModelRunner
    from engine.core.sampling.logits_processors import LogitsProcessors
    from engine.core.structured.grammars import Grammars
    from engine.core.structured.masks import Masks
    from engine.core.worker import Worker

    gc.freeze()  # no look for garbage in what was imported: it takes long and finds little
    gc.enable()
    torch.set_num_threads(num_threads(config, torch.get_num_threads()))
    device = choose_device(config.device)
    chosen = ops.choose(config.attn_backend, device)
    processors = LogitsProcessors.load(config, device)
    try:
        loaded = load_model(config, chosen)
        if not config.threads and loaded.num_parameters < ONE_THREAD_PARAMETERS:
            torch.set_num_threads(1)  # before the runner probes what the kernels do
        folder, ends = Path(config.tokenizer or config.model), loaded.eos_token_ids
        grammars = Grammars(folder, loaded.vocab_size, ends, config.max_num_seqs)
        runner = ModelRunner(loaded, config, Masks(grammars))
    except torch.OutOfMemoryError as error:
        raise ValueError(f"the GPU has no memory for it: {str(error).splitlines()[0]}") from None
    memory = RunnerMemory(runner, partial(load_model, config, chosen), checkpoint, stamps)
    config = runner.config
    assert config.num_blocks is not None and config.max_model_len is not None
    blocks = BlockManager(
        config.num_blocks, config.block_size, config.enable_prefix_caching, UNIT_TOKENS
    )
    adapters = None
    if loaded.adapters is not None:
        adapters = AdapterShelf(
            loaded.adapters,
            max_rank=config.max_lora_rank,
            max_adapters=config.max_cpu_loras or config.max_loras,
        )
    scheduler = Scheduler(
        config,
        blocks,
        loaded.vocab_size,
        loaded.eos_token_ids,
        tasks=loaded.tasks,
        adapters=adapters,
    )
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
        attn_backend=loaded.attn_backend,
        pace=config.pace,
        config=config,
        embedding_size=runner.embedding_size,
        tasks=list(loaded.tasks),
        computes=describe_machine(device, loaded.attn_backend, loaded.dtype),
    )
    metrics = CoreMetrics(
        config.served_model_name,
        loaded.attn_backend,
        row_multiple=runner.invariance.row_multiple,
        is_batch_invariant=runner.invariance.is_proven,
        is_text_only=loaded.is_half,
    )
    gc.collect()
    gc.freeze()  # the model is not garbage: do not look at it again
    return_free_memory(device)  # which loading has needed in small pieces
    core = EngineCore(
        scheduler,
        translate_out_of_memory(runner.launch),
        metrics,
        epoch=ready.epoch,
        runs_ahead=runner.runs_ahead,
        worker=Worker(runner, adapters),
        memory=memory,
        prepare=lambda sequence: processors.prepare(sequence) or grammars.prepare(sequence),
        adapters=adapters,
        ready_grammars=grammars.take_ready,
        on_run=lambda: memory.start_warming(lambda: core.is_idle),
    )
    grammars.on_ready = lambda: core.inbox.put(GrammarsReady())
    core.standby_bytes = memory.bytes_of_another()
    return core, ready


def translate_out_of_memory(launch: Launch) -> Launch:
    """Raise MemoryError for what torch raises when memory is short: the step loop knows no torch.

    On a GPU that is a separate error; on a CPU only its text distinguishes it from any other.
    """
    from torch import OutOfMemoryError

    def translated(scheduled: list[ScheduledSequence]) -> Callable[[], Tokens]:
        try:
            return launch(scheduled)
        except RuntimeError as error:
            if isinstance(error, OutOfMemoryError) or CPU_OUT_OF_MEMORY in str(error):
                raise MemoryError(str(error).splitlines()[0]) from None
            raise

    return translated


class ParentWatch(threading.Thread):
    """Ends the process when stdin does: the parent is gone. Before there is an inbox, at once.

    `called` is set by a line after the first one.
    """

    def __init__(self) -> None:
        super().__init__(name="parent-watch", daemon=True)
        self.inbox: SimpleQueue[InboxItem] | None = None
        self.called = threading.Event()
        self.start()

    def run(self) -> NoReturn:
        while os.read(0, 65536):
            self.called.set()
        if self.inbox is not None:
            self.inbox.put(Shutdown())
            time.sleep(PARENT_GRACE_SECONDS)
        os._exit(1)


def _read_line(fd: int) -> bytes:
    """Read one line, byte by byte, so that nothing after it is taken from the pipe."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(fd, 1)):
        line += byte
    return line


def _standby_bytes(arguments: list[str]) -> int | None:
    """The memory that a standby core needs; None: we are none."""
    return int(arguments[1]) if arguments[:1] == ["--standby"] else None


def _report(stream: Any, line: dict[str, object]) -> None:
    try:
        print(json.dumps(line), file=stream, flush=True)
    except OSError:
        logger.warning("nobody reads our report")


if __name__ == "__main__":
    sys.exit(main())
