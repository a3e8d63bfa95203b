"""Blocks as a GPU sees them: steps run in the order of their starts, ahead of what is known here.

The model of these tests has a memory of tokens in place of keys and values. Its next token follows
from everything that a sequence finds there, so one wrong slot changes the answer from what plain
arithmetic says. Steps run here when they are started, as on one stream of a GPU: that blocks wait
for a step to end, test_running_ahead.py shows.
"""

import random
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest

from engine.config import EngineConfig
from engine.core.metrics import CoreMetrics
from engine.core.scheduling.block_manager import BlockManager
from engine.core.scheduling.scheduler import Scheduler
from engine.core.scheduling.sequence import SampledToken, ScheduledSequence, Tokens
from engine.core.step_loop import EngineCore
from engine.ipc import Abort, CoreMessage, StepOutputs
from tests.engine.helpers.fakes import EOS, make_request

VOCAB_SIZE = 50
UNIT = 4
MAX_STEPS = 5000


def next_token(context: list[int]) -> int:
    """Any token; every 12th or so ends the text."""
    number = crc32(bytes(context))
    return EOS if number % 12 == 0 else 1 + number % (VOCAB_SIZE - 1)


def answer_of(prompt: list[int], max_tokens: int, ignore_eos: bool) -> list[int]:
    """What plain arithmetic says."""
    text = prompt.copy()
    while len(text) - len(prompt) < max_tokens:
        text.append(next_token(text))
        if text[-1] == EOS and not ignore_eos:
            break
    return text[len(prompt) :]


class MemoryModel:
    """Writes tokens to slots, and reads what it finds there, when a step is started."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._blocks = [[0] * block_size for _ in range(num_blocks)]
        self._block_size = block_size
        self._chosen: list[int] = []

    def launch(self, scheduled: list[ScheduledSequence]) -> Callable[[], Tokens]:
        for item in scheduled:
            assert not (item.sequence.waits_for_tokens and item.sequence.num_unknown)
            self._write(item)
        tokens: Tokens = [
            SampledToken(next_token(self._read(item))) if item.is_sampled else None
            for item in scheduled
        ]
        self._chosen = [token.token_id for token in tokens if token is not None]
        return lambda: tokens

    def _write(self, item: ScheduledSequence) -> None:
        sequence, size = item.sequence, self._block_size
        if sequence.copied_from is not None:
            source, count = sequence.copied_from
            target = sequence.block_table[item.start // size]
            self._blocks[target][:count] = self._blocks[source][:count]
        for place in range(item.start, item.end):
            token = sequence.token_ids[place]
            if sequence.num_unknown and place == item.end - 1:
                token = self._chosen[sequence.unknown_row]
            self._blocks[sequence.block_table[place // size]][place % size] = token

    def _read(self, item: ScheduledSequence) -> list[int]:
        table, size = item.sequence.block_table, self._block_size
        return [self._blocks[table[place // size]][place % size] for place in range(item.end)]


class Workload:
    """Requests that come and are aborted at random; many of them begin alike."""

    def __init__(self, rng: random.Random, runs_ahead: bool) -> None:
        self.rng = rng
        block_size = rng.choice([UNIT, 2 * UNIT, 4 * UNIT])
        num_blocks = rng.randrange(80, 130) // block_size
        config = EngineConfig(
            model="",
            address="",
            served_model_name="",
            max_model_len=80,
            block_size=block_size,
            max_num_batched_tokens=rng.choice([1, 3, 7, 20, 64]),
            max_num_seqs=rng.choice([2, 5, 9]),
            long_prefill_token_threshold=rng.choice([0, 0, 5]),
        )
        self.blocks = BlockManager(num_blocks, block_size, unit_size=UNIT)
        self.scheduler = Scheduler(config, self.blocks, VOCAB_SIZE, [EOS])
        self.model = MemoryModel(num_blocks, block_size)
        metrics = CoreMetrics("memory", "none")
        self.core = EngineCore(
            self.scheduler, self.model.launch, metrics, runs_ahead=runs_ahead, now=lambda: 0.0
        )
        self.core.send = self._receive
        self.beginnings = [[rng.randrange(1, 9) for _ in range(30)] for _ in range(3)]
        self.requests: dict[str, dict[str, Any]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, str] = {}

    def come(self) -> None:
        rng, name = self.rng, str(len(self.requests))
        shared = rng.choice(self.beginnings)[: rng.randrange(1, 31)]
        prompt = [*shared, *(rng.randrange(1, 9) for _ in range(rng.randrange(12)))]
        fields: dict[str, Any] = {"max_tokens": rng.randrange(1, 35)}
        fields["ignore_eos"] = rng.random() < 0.5
        self.requests[name] = {"prompt": prompt, **fields}
        salt = rng.choice(["", "", "other"])
        penalty = 0.5 if rng.random() < 0.1 else 0.0  # such answers are waited for
        request = make_request(
            name, prompt=prompt, cache_salt=salt, presence_penalty=penalty, **fields
        )
        self.core.inbox.put(("me", request))

    def go(self) -> None:
        message = Abort([self.rng.choice(list(self.requests))])
        self.core.aborts.append(("me", message))

    def run(self) -> None:
        while len(self.requests) < 40:
            chance = self.rng.random()
            if chance < 0.5:
                self.come()
            elif chance < 0.56 and self.requests:
                self.go()
            self.core.step()
        for _ in range(MAX_STEPS):
            if not self.core.step() and self.core.inbox.empty():
                break

    def check(self) -> None:
        self.scheduler.check_idle()
        for name, request in self.requests.items():
            expected, found = answer_of(**request), self.tokens[name]
            if self.ends[name] == "abort":
                expected = expected[: len(found)]
            assert found == expected, name

    def _receive(self, client_id: str, message: CoreMessage) -> None:
        assert isinstance(message, StepOutputs)
        for output in message.outputs:
            self.tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.finish_reason is not None:
                self.ends[output.request_id] = output.finish_reason


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_every_answer_is_what_arithmetic_says(seed: int, runs_ahead: bool) -> None:
    workload = Workload(random.Random(seed), runs_ahead)
    workload.run()
    workload.check()


def test_the_workloads_are_worth_it() -> None:
    """They preempt, share, copy beginnings, and end early."""
    workloads = [Workload(random.Random(seed), runs_ahead=True) for seed in range(40)]
    for workload in workloads:
        workload.run()
    assert sum(each.scheduler.totals.preemptions for each in workloads) > 50
    assert sum(each.blocks.num_hit_tokens for each in workloads) > 5000
    assert sum(end == "abort" for each in workloads for end in each.ends.values()) > 20
