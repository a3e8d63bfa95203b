"""Decodes, prompts and whole chats on an engine that is stepped in this process."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.gpu.cases import TOKEN, Figure, Sizes
from bench.gpu.device import Device
from bench.peers.models import Checkpoint
from engine.core.scheduling.sequence import SampledToken, ScheduledSequence, Tokens
from tests.engine.helpers.stepped_engine import SteppedEngine


class Engine:
    """The engine of one shape, stepped here as its core steps it."""

    def __init__(self, model: Checkpoint, sizes: Sizes, on: Device) -> None:
        self._on = on
        self._sizes = sizes
        self._model = model
        self._engine = SteppedEngine(
            model.folder,
            runs_ahead=on.device.type == "cuda",
            load_format="dummy",
            dtype="bfloat16",
            device=on.device.type,
            max_num_seqs=max(sizes.batches),
            max_step_seconds=0.0,
            enable_prefix_caching=False,
            batch_invariant=False,
        )
        self.attention = self._engine.runner.loaded.attn_backend

    def decode(self, batch: int, context: int) -> Figure:
        case, steps = f"decode {batch} x {context}", self._sizes.steps
        scheduler = self._engine.scheduler
        # While the last prompts are read, the first answers go on.
        longest = steps + 8 + batch + batch * context // scheduler.config.max_num_batched_tokens
        per_chat = scheduler.blocks.num_blocks_for(context + longest) + 1
        if batch * per_chat > scheduler.blocks.num_blocks:
            return Figure(self._model.name, case, None, "tok/s", note="does not fit")
        names = [f"{case}/{number}" for number in range(batch)]
        with self._reading_nothing():
            for name in names:
                self._engine.add(name, [TOKEN] * context, max_tokens=longest)
            while not all(self._engine.tokens.get(name) for name in names):
                self._engine.step()
        self._step(3)
        before = self._num_tokens(names)
        seconds = self._timed(lambda: self._step(steps)) / steps
        assert self._num_tokens(names) - before == batch * steps, "not all of them ran"
        seen = context + (before + batch * steps // 2) // batch  # on average
        scheduler.abort("me", names)
        self._engine.run()
        floor = self._on.decode_seconds(self._model, batch, seen)
        return Figure(self._model.name, case, batch / seconds, "tok/s", floor / seconds)

    def _num_tokens(self, names: list[str]) -> int:
        return sum(len(self._engine.tokens[name]) for name in names)

    def _step(self, count: int) -> None:
        for _ in range(count):
            self._engine.step()

    def prefill(self) -> Figure:
        count = self._sizes.prompt
        floor = self._on.prefill_seconds(self._model, count)
        seconds = [self._whole(1, count, 1) for _ in range(4)][1:]  # the first makes room
        rate, share = count / statistics.median(seconds), floor / statistics.median(seconds)
        return Figure(self._model.name, f"prefill {count}", rate, "tok/s", share)

    def batch(self) -> Figure:
        """Tokens/s of chats from the first to the last, their prompts included."""
        chats, (length, answer) = self._sizes.chats, self._sizes.chat
        self._whole(chats, length, answer)  # makes room
        rate = chats * answer / self._whole(chats, length, answer)
        note = f"attention: {self.attention}"
        return Figure(self._model.name, f"{chats} x {length} + {answer}", rate, "tok/s", note=note)

    def _whole(self, chats: int, length: int, answer: int) -> float:
        for number in range(chats):
            name = f"{time.monotonic()}/{number}"
            self._engine.add(name, [TOKEN + number] * length, max_tokens=answer, temperature=0)
        return self._timed(self._engine.run)

    def _timed(self, run: Callable[[], object]) -> float:
        self._on.wait()
        started = time.perf_counter()
        run()
        self._on.wait()
        return time.perf_counter() - started

    @contextlib.contextmanager
    def _reading_nothing(self) -> Iterator[None]:
        """Prompts cost nothing meanwhile: their keys and values stay what they are, zeros."""

        def skip(scheduled: list[ScheduledSequence]) -> Callable[[], Tokens]:
            tokens: Tokens = [SampledToken(TOKEN) if x.is_sampled else None for x in scheduled]
            return lambda: tokens

        runner: Any = self._engine.runner
        launch, runner.launch = runner.launch, skip
        yield
        runner.launch = launch
