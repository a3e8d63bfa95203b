"""An engine core whose steps take as long as recorded ones, and whose model only counts.

Everything but the forward pass is the real core: IPC, scheduler, step loop. With `REPLAY_SCHEDULE`
a step sleeps for the next of the durations in that file and every answer counts on like the
oracle model; with `REPLAY_RECORD` the model runs, and the durations of its steps are written there.
`REPLAY_LOG` names a file that gets, for each request, when each of its tokens left the core.
"""

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.core import __main__ as core
from engine.core.io_thread import IoThread
from engine.core.scheduling.sequence import Launch, SampledToken, ScheduledSequence, Tokens
from engine.core.step_loop import EngineCore
from engine.ipc import CoreMessage, Ready, StepOutputs


def replaying(durations_ms: list[float], vocab_size: int) -> Launch:
    """A forward pass that takes the recorded time, over and over."""
    steps = cycle(durations_ms)

    def launch(scheduled: list[ScheduledSequence]) -> Callable[[], Tokens]:
        until = time.monotonic() + next(steps) / 1000
        tokens: Tokens = [
            SampledToken((item.sequence.token_ids[-1] + 1) % vocab_size)
            if item.is_sampled
            else None
            for item in scheduled
        ]
        # The recorded time itself is what is replayed: no event stands for it.
        time.sleep(max(0.0, until - time.monotonic()))
        return lambda: tokens

    return launch


def recording(launch: Launch, path: Path) -> Launch:
    """The real forward pass; the file holds the milliseconds of each step that only decodes."""
    durations: list[float] = []

    def record(scheduled: list[ScheduledSequence]) -> Callable[[], Tokens]:
        started = time.monotonic()
        tokens = launch(scheduled)()
        if all(item.is_decode for item in scheduled):
            durations.append(round((time.monotonic() - started) * 1000, 2))
        if len(durations) % 100 == 0:
            path.write_text(json.dumps(durations))
        return lambda: tokens

    return record


def load_core(config: EngineConfig) -> tuple[EngineCore, Ready]:
    core, ready = _load_core(config)
    loop: Any = core
    if schedule := os.environ.get("REPLAY_SCHEDULE"):
        loop._launch = replaying(json.loads(Path(schedule).read_text()), ready.vocab_size)
    else:
        loop._launch = recording(loop._launch, Path(os.environ["REPLAY_RECORD"]))
    return core, ready


class TimedIo(IoThread):
    """Notes when each token is handed to the thread that sends it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._times: defaultdict[str, list[float]] = defaultdict(list)
        self._log = open(os.environ["REPLAY_LOG"], "a")  # as long as the process

    def send(self, client_id: str, message: CoreMessage) -> None:
        super().send(client_id, message)
        if isinstance(message, StepOutputs):
            self._note(message, time.monotonic())

    def _note(self, message: StepOutputs, now: float) -> None:
        for output in message.outputs:
            self._times[output.request_id] += [now] * len(output.new_token_ids)
            if output.finish_reason is not None:
                times = self._times.pop(output.request_id)
                print(json.dumps([output.request_id, times]), file=self._log)
        if not self._times:
            self._log.flush()


if __name__ == "__main__":
    _load_core = core.load_core
    vars(core).update(load_core=load_core, IoThread=TimedIo)
    sys.exit(core.main())
