"""Aborts by the thousand at random moments, on a real model: blocks return, others notice nothing.

Each state of a request by itself is in core/scheduling/test_scheduled_aborts.py, on a fake model.
"""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import (
    AsyncEngineArgs,
    AsyncLLM,
    BeamSearchParams,
    LoRARequest,
    PoolingParams,
    PoolingRequestOutput,
    RepetitionDetectionParams,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from engine.config import EngineConfig
from engine.core.io_thread import GrammarsReady
from engine.core.metrics import CoreMetrics
from engine.core.models.checkpoint import check_folder, file_stamps
from engine.core.models.loader import load_model
from engine.core.models.lora.shelf import AdapterShelf
from engine.core.ops import library as ops
from engine.core.runner.memory import RunnerMemory
from engine.core.runner.model_runner import ModelRunner
from engine.core.sampling.logits_processors import LogitsProcessors
from engine.core.scheduling.block_manager import BlockManager
from engine.core.scheduling.scheduler import Scheduler
from engine.core.scheduling.sequence import ScheduledSequence, Tokens
from engine.core.step_loop import EngineCore
from engine.core.structured.grammars import Grammars
from engine.core.structured.masks import Masks
from engine.ipc import (
    Abort,
    AddRequest,
    CoreMessage,
    SequenceOutput,
    StepOutputs,
    Utility,
    UtilityReply,
)
from engine.lora import hash_adapter
from tests.engine.helpers.fakes import make_request
from tests.engine.helpers.lora.adapters import build_adapter
from tests.helpers.tiny_model import build_tiny_model

NUM_ABORTS = 1000
NUM_BYSTANDERS = 40
NUM_VICTIMS_AT_ONCE = 10
STEPS_BETWEEN_NAPS = 60
PHASES = ("queued", "prefill", "decode", "last step", "siblings", "embedding")
KINDS = ("LAST", "MEAN", "CLS")
PROCESSORS = "tests.engine.core.sampling.row_processors:"
SETTINGS: dict[str, Any] = {
    "enable_lora": True,
    "max_loras": 2,
    "logits_processors": [PROCESSORS + name for name in ("Bias", "Follow")],
}
# What is asked of an answer beside its tokens, or ends it before its time.
ANSWERS: list[dict[str, Any]] = [
    {},
    {"prompt_logprobs": 2, "logprobs": 1},
    {"extra_args": {"follow": 1}},
    {"extra_args": {"bias": [(7, 9.0), (90, -30.0)]}},
    {
        "allowed_token_ids": [7, 8, 9],
        "repetition_detection": RepetitionDetectionParams(3, 1, 4),
    },
    {"structured_outputs": StructuredOutputsParams(regex="[a-z ]{3,40}z")},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def adapters(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[LoRARequest]:
    """More than may be computed at once, or be in memory."""
    place = tmp_path_factory.mktemp("adapters")
    folders = [build_adapter(place / f"{seed}", folder, seed=seed) for seed in range(1, 4)]
    return [
        LoRARequest(each.name, number, str(each), hash_adapter(each))
        for number, each in enumerate(folders, 1)
    ]


@pytest.fixture(scope="module")
def memory(folder: Path) -> Iterator[RunnerMemory]:
    """That of a runner: what it gives back in sleep, and takes again."""
    config = EngineConfig(
        model=str(folder),
        address="",
        served_model_name="",
        num_blocks=120,
        max_num_batched_tokens=48,
        max_step_seconds=0,
        max_num_seqs=12,
        **SETTINGS,
    )
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the core does for a model as small as this
    load = partial(load_model, config, ops.choose("auto"))
    checkpoint = check_folder(folder)
    loaded = load()
    grammars = Grammars(folder, loaded.vocab_size, loaded.eos_token_ids, config.max_num_seqs)
    runner = ModelRunner(loaded, config, Masks(grammars))
    memory = RunnerMemory(runner, load, checkpoint, file_stamps(checkpoint))
    yield memory
    memory.give_back(2)
    grammars.close()
    torch.set_num_threads(num_threads)


class Core:
    """A step loop on the real model. What happens during a step is up to `during_step`."""

    def __init__(self, memory: RunnerMemory, runs_ahead: bool = False) -> None:
        runner = memory._runner
        assert runner.config.num_blocks is not None
        blocks = BlockManager(runner.config.num_blocks, runner.config.block_size)
        assert runner.loaded.adapters is not None
        shelf = AdapterShelf(runner.loaded.adapters, max_rank=16, max_adapters=2)
        self.scheduler = Scheduler(runner.config, blocks, runner.loaded.vocab_size, adapters=shelf)
        processors = LogitsProcessors.load(runner.config, runner.loaded.device)
        assert runner.masks is not None
        grammars = runner.masks.grammars
        self.loop = EngineCore(
            self.scheduler,
            self._launch,
            CoreMetrics("tiny", "none"),
            runs_ahead=runs_ahead,
            memory=memory,
            prepare=lambda it: processors.prepare(it) or grammars.prepare(it),
            ready_grammars=grammars.take_ready,
        )
        grammars.on_ready = lambda: self.loop.inbox.put(GrammarsReady())
        self.loop.send = self._receive
        self.runner = runner
        self.num_steps = 0
        self.outputs: dict[str, list[SequenceOutput]] = {}
        self.ended_at: dict[str, int] = {}

    def during_step(self, scheduled: list[ScheduledSequence]) -> None:
        """Called at the end of each forward pass."""

    def add(self, request: AddRequest) -> None:
        self.loop.inbox.put(("me", request))

    def abort(self, *request_ids: str) -> None:
        message = Abort(list(request_ids))
        self.loop.aborts.append(("me", message))
        self.loop.inbox.put(("me", message))

    def call(self, name: str, *args: Any) -> None:
        self.loop.inbox.put(("me", Utility(1, name, list(args))))
        self.loop.step()
        while self.loop.is_waking:
            self.loop.wait()

    def result(self, request_id: str) -> list[Any]:
        """All that a request has given, but when."""
        outputs = self.outputs[request_id]
        return [
            [token for output in outputs for token in output.new_token_ids],
            [entries for output in outputs for entries in output.logprobs or ()],
            [entries for output in outputs for entries in output.prompt_logprobs or ()],
            outputs[-1].embedding,
            (outputs[-1].finish_reason, outputs[-1].stop_reason, outputs[-1].error),
        ]

    def run_out(self) -> None:
        """Step until nothing is left to do."""
        while self.loop.step() or self.waits_for_grammars:
            if self.waits_for_grammars and not self.scheduler.running:
                self.loop.wait()

    @property
    def waits_for_grammars(self) -> bool:
        return any(it.waits_for_grammar for it in self.scheduler.sequences.values())

    def _launch(self, scheduled: list[ScheduledSequence]) -> Callable[[], Tokens]:
        self.num_steps += 1
        wait = self.runner.launch(scheduled)
        self.during_step(scheduled)
        return wait

    def _receive(self, client_id: str, message: CoreMessage) -> None:
        if isinstance(message, UtilityReply):
            assert message.error is None
            return
        assert isinstance(message, StepOutputs)
        for output in message.outputs:
            assert output.request_id not in self.ended_at, "an output after the last one"
            self.outputs.setdefault(output.request_id, []).append(output)
            if output.finish_reason is not None:
                self.ended_at[output.request_id] = self.num_steps


class Aborts(Core):
    """Victims come and go at random, until a thousand of them were aborted."""

    def __init__(
        self,
        memory: RunnerMemory,
        adapters: list[LoRARequest],
        rng: random.Random,
        runs_ahead: bool,
    ) -> None:
        super().__init__(memory, runs_ahead)
        self.rng = rng
        self.adapters = [None, *adapters]
        self.phase_of: dict[str, str] = {}  # victims that are still to be aborted
        self.patience: dict[str, int] = {}  # tokens after which a victim is aborted
        self.aborted_at: dict[str, int] = {}
        self.phases: Counter[str] = Counter()
        self.num_naps = 0

    def add_victims(self) -> None:
        while len(self.phase_of) < NUM_VICTIMS_AT_ONCE:
            phase = self.rng.choice(PHASES)
            name = f"v{len(self.aborted_at) + len(self.phase_of)}-{self.rng.random()}"
            num_tokens = self.rng.randrange(1, 12)
            is_long = phase in ("prefill", "embedding")
            num_prompt = self.rng.randrange(60, 150) if is_long else num_tokens * 3
            prompt = random_prompt(self.rng, num_prompt)
            lora = self.rng.choice(self.adapters)
            siblings = [f"{name}.{i}" for i in range(3 if phase == "siblings" else 1)]
            for sibling in siblings:
                length = num_tokens if phase == "last step" else 200
                self.phase_of[sibling] = phase
                self.patience[sibling] = num_tokens
                self.add(
                    make_request(
                        sibling,
                        prompt=prompt,
                        max_tokens=length,
                        ignore_eos=True,
                        pooling=make_pooling(self.rng) if phase == "embedding" else None,
                        lora=lora,
                        **make_answer(self.rng) if phase != "embedding" else {},
                    )
                )
            if phase == "queued":
                self.strike(*siblings)

    def nap(self) -> None:
        """Sleep amid all answers, of which some are aborted meanwhile."""
        self.num_naps += 1
        level = 1 if self.num_naps % 9 else 2  # after which weights are read, which takes long
        self.call("sleep", level, "keep")
        num_victims = min(len(self.phase_of), NUM_VICTIMS_AT_ONCE // 2)
        victims = self.rng.sample(list(self.phase_of), num_victims)
        self.phase_of |= dict.fromkeys(victims, "asleep")
        self.strike(*victims)
        self.loop.step()
        self.call("wake_up")

    def strike(self, *names: str) -> None:
        self.abort(*names)
        for name in names:
            self.phases[self.phase_of.pop(name)] += 1
            self.aborted_at[name] = self.num_steps

    def during_step(self, scheduled: list[ScheduledSequence]) -> None:
        for item in scheduled:
            sequence, name = item.sequence, item.sequence.request_id
            match self.phase_of.get(name):
                case "embedding" if item.is_last or self.rng.random() < 0.5:
                    self.strike(name)
                case "prefill" if not item.is_sampled:
                    self.strike(name)
                case "last step" if sequence.num_tokens + 1 == sequence.max_num_tokens:
                    if item.is_sampled:
                        self.strike(name)
                case "decode" | "prefill" if sequence.num_output_tokens >= self.patience[name]:
                    self.strike(name)
                case "siblings" if sequence.num_output_tokens >= self.patience[name]:
                    family = name.split(".")[:-1]
                    self.strike(*(it for it in list(self.phase_of) if it.split(".")[:-1] == family))


def new_seed() -> int:
    """Printed, and repeated by `ABORTS_SEED`."""
    seed = int(os.environ.get("ABORTS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"ABORTS_SEED={seed}")
    return seed


def random_prompt(rng: random.Random, num_tokens: int) -> list[int]:
    return [rng.randrange(5, 380) for _ in range(num_tokens)]


def make_answer(rng: random.Random) -> dict[str, Any]:
    """What is asked of one that must not end by itself."""
    return rng.choice([each for each in ANSWERS if "repetition_detection" not in each])


def make_pooling(rng: random.Random) -> PoolingParams:
    return PoolingParams(pooling_type=rng.choice(KINDS))


def make_bystanders(rng: random.Random, adapters: list[LoRARequest]) -> list[AddRequest]:
    """Greedy and seeded requests of all sizes and kinds, some with adapters."""
    return [
        make_request(
            f"b{number}",
            prompt=random_prompt(rng, rng.randrange(1, 120)),
            max_tokens=rng.randrange(20, 80),
            temperature=0.0 if number % 2 else 1.0,
            seed=number,
            ignore_eos=True,
            pooling=None if number % 4 else make_pooling(rng),
            lora=[None, *adapters][number % 3 and number % (len(adapters) + 1)],
            **ANSWERS[number % len(ANSWERS)] if number % 4 else {},
        )
        for number in range(NUM_BYSTANDERS)
    ]


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_thousand_aborts_free_their_blocks_and_change_no_token_of_others(
    runs_ahead: bool, memory: RunnerMemory, adapters: list[LoRARequest]
) -> None:
    rng = random.Random(new_seed())
    bystanders = make_bystanders(rng, adapters)
    alone = Core(memory)
    for request in bystanders:
        alone.add(request)
        alone.run_out()

    core = Aborts(memory, adapters, rng, runs_ahead)
    pending = bystanders.copy()
    while len(core.aborted_at) < NUM_ABORTS or pending:
        core.add_victims()
        if pending and core.num_steps % 12 == 0:
            core.add(pending.pop())
        core.loop.step()
        if core.num_steps >= STEPS_BETWEEN_NAPS * (core.num_naps + 1):
            core.nap()
    core.strike(*list(core.phase_of))
    core.run_out()

    core.scheduler.check_idle()
    assert core.phases.keys() == {*PHASES, "asleep"}, core.phases
    assert min(core.phases.values()) > 30, core.phases
    for name in core.aborted_at:
        assert core.outputs[name][-1].finish_reason == "abort"
    late_by = [core.ended_at[name] - core.aborted_at[name] for name in core.aborted_at]
    assert set(late_by) == {0}  # no step was begun between an abort and its last output
    for request in bystanders:
        assert core.result(request.request_id) == alone.result(request.request_id)
        has_embedding = core.outputs[request.request_id][-1].embedding is not None
        assert has_embedding == (request.pooling is not None)
    reasons = Counter(core.outputs[each.request_id][-1].finish_reason for each in bystanders)
    assert reasons.keys() == {"length", "stop", "repetition"}
    print(f"{len(core.aborted_at)} aborts, {core.num_steps} steps, {core.num_naps} sleeps:")
    print(f"{dict(core.phases)}, the others: {dict(reasons)}")


@pytest.fixture
def engine(folder: Path) -> Iterator[AsyncLLM]:
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            str(folder),
            num_gpu_blocks_override=200,
            max_num_seqs=16,
            threads=1,
            pace=100,  # an answer of 300 tokens must not end before its abort
            **SETTINGS,
        )
    )
    yield engine
    engine.shutdown()


@pytest.mark.parametrize(
    "num_aborts", [100, pytest.param(NUM_ABORTS, marks=pytest.mark.slow)], ids=["short", "long"]
)
async def test_aborts_through_the_client_return_at_once(
    engine: AsyncLLM, adapters: list[LoRARequest], num_aborts: int
) -> None:
    rng = random.Random(new_seed())
    abort_seconds: list[float] = []
    abort_cpu_seconds: list[float] = []  # which a busy machine does not lengthen
    end_seconds: list[float] = []

    def make_params(**more: Any) -> SamplingParams:
        return SamplingParams(ignore_eos=True, output_kind=RequestOutputKind.DELTA, **more)

    async def bystander(number: int, name: str) -> list[Any]:
        wanted = ANSWERS[number % len(ANSWERS)]
        params = make_params(temperature=1.0, seed=number, max_tokens=100, **wanted)
        lora = adapters[number % 3] if number % 2 else None
        stream = engine.generate([number + 5] * 20, params, name, lora_request=lora)
        outputs = [output async for output in stream]
        return [
            [token for output in outputs for token in output.outputs[0].token_ids],
            outputs[0].prompt_logprobs,
            outputs[-1].outputs[0].finish_reason,
        ]

    async def searched_bystander(name: str) -> list[list[int]]:
        params = BeamSearchParams(beam_width=3, max_tokens=30, ignore_eos=True)
        search = engine.beam_search([9] * 20, name, params, adapters[0])
        (output,) = [output async for output in search]
        return [completion.token_ids for completion in output.outputs]

    async def nap(level: int) -> None:
        await engine.sleep(level, mode="keep")
        await asyncio.sleep(0)  # some are aborted meanwhile
        await engine.wake_up()

    async def embedding(name: str) -> list[float]:
        outputs = engine.encode([7] * 20, PoolingParams(pooling_type="MEAN"), name)
        return [number async for output in outputs for number in output.outputs.data]

    async def embedded_victim(number: int) -> None:
        """It may have its embedding before the abort comes."""
        name = f"v{number}"
        prompt, params = random_prompt(rng, rng.randrange(1, 200)), make_pooling(rng)
        stream = await engine.add_request(name, prompt, params)
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
        await engine.abort(name)
        (last,) = [output async for output in stream]
        assert isinstance(last, PoolingRequestOutput)
        assert (last.finish_reason == "abort") == (last.outputs.data == [])

    async def searched_victim(number: int) -> None:
        """Of a beam search that is aborted in one of its steps."""
        name, width = f"v{number}", rng.choice((1, 2, 4))
        params = BeamSearchParams(beam_width=width, max_tokens=300, ignore_eos=True)
        lora = rng.choice([None, *adapters[:2]])
        search = engine.beam_search(random_prompt(rng, rng.randrange(1, 60)), name, params, lora)
        output = asyncio.ensure_future(anext(search))
        for _ in range(rng.randrange(1, 40)):
            await asyncio.sleep(0)
        await engine.abort(name)
        assert (await output).finished
        await search.aclose()

    async def victim(number: int) -> None:
        num, num_scores = rng.choice((1, 1, 1, 3)), rng.choice((None, None, 2))
        wanted = rng.choice((None, None, {"follow": 1}))
        params = make_params(
            temperature=1.0,
            n=num,
            max_tokens=300,
            prompt_logprobs=num_scores,
            extra_args=wanted,
        )
        name = f"v{number}"
        lora = rng.choice([None, *adapters[:2]])
        stream = await engine.add_request(
            name, random_prompt(rng, rng.randrange(1, 200)), params, lora_request=lora
        )
        last: RequestOutput | None = None
        for _ in range(rng.randrange(4)):
            last = await stream.get()
        started, cpu_started = time.perf_counter(), time.thread_time()
        await engine.abort(name)
        abort_cpu_seconds.append(time.thread_time() - cpu_started)
        abort_seconds.append(time.perf_counter() - started)
        reasons = []
        async for output in stream:
            last = output
            reasons += [it.finish_reason for it in output.outputs if it.finish_reason]
        end_seconds.append(time.perf_counter() - started)
        assert last is not None and last.finished and set(reasons) == {"abort"}

    async def victims(numbers: range) -> None:
        for number in numbers:
            match number % 10:
                case 0 | 5:
                    await embedded_victim(number)
                case 7:
                    await searched_victim(number)
                case _:
                    await victim(number)
            if number % 25 == 24:
                await nap(rng.choice((1, 2)))

    vector = await embedding("alone")
    best = await searched_bystander("best")
    expected = [await bystander(number, f"alone-{number}") for number in range(6)]
    streams = [bystander(number % 6, f"b{number}") for number in range(18)]
    vectors = [embedding(f"e{number}") for number in range(20)]
    searches = [searched_bystander(f"s{number}") for number in range(3)]
    batches = [victims(range(start, num_aborts, 20)) for start in range(20)]
    results, found, searched, _ = await asyncio.gather(
        asyncio.gather(*streams),
        asyncio.gather(*vectors),
        asyncio.gather(*searches),
        asyncio.gather(*batches),
    )
    assert found == [vector] * 20
    assert searched == [best] * 3
    assert results == [expected[number % 6] for number in range(18)]
    metrics = await engine.metrics()
    assert metrics["num_blocks_free"] == metrics["num_blocks_total"]
    assert engine.get_num_unfinished_requests() == 0
    abort_p99, cpu_p99, end_p99 = (
        sorted(it)[len(it) * 99 // 100] for it in (abort_seconds, abort_cpu_seconds, end_seconds)
    )
    print(f"abort() p99 {abort_p99 * 1000:.2f} ms, last output p99 {end_p99 * 1000:.1f} ms")
    assert cpu_p99 < 0.005
