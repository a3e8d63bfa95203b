"""`HookedCore`: a stepped core in which something may come at each point of a step.

Its model has no weights, but a KV cache: what a step reads there must be what a step before wrote
for the same text, even after stops, moves and evictions. It pools prompts, applies
logits processors and keeps to forms with the engine's own code; grammars are those of `forms.py`.
What it answers is in `expected.py`.
"""

import enum
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any

import torch

from engine.config import EngineConfig
from engine.core.io_thread import GrammarsReady
from engine.core.sampling.classifier_head import ClassifierHead
from engine.core.sampling.logits_processors import NONE_LEFT, LogitsProcessors, process_rows
from engine.core.sampling.pooler import pool_prompts
from engine.core.sampling.sampler import _fenced
from engine.core.scheduling.sequence import SampledToken, ScheduledSequence, Sequence, Tokens
from engine.core.sleep import TAGS
from engine.core.structured.masks import Fences, Masks, StepMasks
from engine.lora import LoRARequest
from tests.engine.helpers.fakes import EOS, VOCAB_SIZE, FakeModel, SteppedCore
from tests.engine.helpers.interleavings.expected import (
    CLASS_WEIGHTS,
    candidates,
    hidden_state,
    successor,
)
from tests.engine.helpers.interleavings.forms import Forms, length_of

PROCESSORS = [f"tests.engine.core.sampling.row_processors:{name}" for name in ("Follow", "Faulty")]
# All at once, which no checkpoint has.
ACTIVATIONS = {"classify": "softmax", "score": "sigmoid"}
ALL_TASKS = ("generate", "embed", *ACTIVATIONS)


class Hook(enum.Enum):
    """The points of a step at which something may come."""

    BEFORE_SCHEDULE = "before schedule"
    BEFORE_EXECUTE = "between schedule and execute"
    DURING_EXECUTE = "during execute"
    BEFORE_UPDATE = "between execute and update"
    AFTER_UPDATE = "after"


class Shelf:
    """Has every adapter but those of `gone`; for some there is no room, now and then."""

    def __init__(self) -> None:
        self.gone: set[int] = set()
        self.num_full = 0  # how many that are not in use find no room

    def take(self, request: LoRARequest, in_use: Collection[int]) -> str | None:
        if request.lora_int_id in self.gone:
            raise ValueError(f"/{request.lora_int_id}: cannot be read")
        if self.num_full and in_use and request.lora_int_id not in in_use:
            self.num_full -= 1
            return None
        return f"adapter {request.lora_int_id}"


class CachedModel(FakeModel):
    """`content` is what its KV cache holds: of each slot, a hash of the text up to there."""

    def __init__(self, block_size: int, forms: Forms) -> None:
        super().__init__(self._next_token)
        self.forms = forms
        # `Forms` has all that they use of `Grammars`.
        # Stands for the real ones, whose processes the machine plays itself.
        self._masks = Masks(forms)  # type: ignore[arg-type]
        self.content: dict[tuple[int, int], int] = {}  # (block, place within it)
        self._block_size = block_size
        weights = torch.tensor(CLASS_WEIGHTS, dtype=torch.float64)
        self._head = ClassifierHead(weights, ACTIVATIONS)

    def execute(self, scheduled: list[ScheduledSequence]) -> Tokens:
        for item in scheduled:
            if not item.sequence.is_finished:  # else its blocks are free soon
                self._read_and_write(item)
        sampled = [item for item in scheduled if item.is_sampled]
        fences = self._fences(scheduled)
        tokens = super().execute(scheduled)
        if fences is not None:
            fenced = _fenced([it for it in tokens if it is not None], fences)
            for row, error in fences.problems.items():
                fenced[row] = SampledToken(-1, error=error)
            for row, item in enumerate(sampled):
                self._check_form(fences, row, item.sequence)
            self._chosen = [token.token_id for token in fenced]
            left = iter(fenced)
            tokens = [None if token is None else next(left) for token in tokens]
        hidden = [
            hidden_state(item.sequence.token_ids[place])
            for item in scheduled
            for place in item.pooled_places
        ]
        if any(item.sequence.pooling is not None for item in scheduled):
            rows = torch.tensor(hidden) if hidden else None
            pool_prompts(scheduled, rows, tokens, self._head)
        return tokens

    def begin_masks(self, scheduled: list[ScheduledSequence]) -> StepMasks | None:
        """Of the rows that are sampled, as the runner does before the model's work."""
        return self._masks.begin([item.sequence for item in scheduled if item.is_sampled])

    def _fences(self, scheduled: list[ScheduledSequence]) -> Fences | None:
        masks = self.begin_masks(scheduled)
        return None if masks is None else masks.wait()

    def _check_form(self, fences: Fences, row: int, sequence: Sequence) -> None:
        """A mask is of the answer as it is, and there is one if the answer goes on in its form."""
        if sequence.matcher is None:
            return
        answer = sequence.token_ids[sequence.num_prompt_tokens :]
        if row in fences.masked:
            assert self.forms.has_text(sequence, answer), f"{sequence}: a mask of another text"
        else:
            assert row in fences.postponed or row in fences.problems

    def _read_and_write(self, item: ScheduledSequence) -> None:
        sequence, size = item.sequence, self._block_size
        ids = sequence.token_ids.copy()
        if sequence.num_unknown:
            ids[-1] = self._chosen[sequence.unknown_row]
        text = hash(sequence.cache_root)
        for place, token in enumerate(ids[: item.end]):
            text = hash((text, token))
            slot = (sequence.block_table[place // size], place % size)
            if place < item.start:
                assert self.content.get(slot) == text, f"{sequence}: another text at {place}"
            else:
                self.content[slot] = text

    def _next_token(self, sequence: Sequence) -> SampledToken:
        last, params = sequence.token_ids[-1], sequence.params
        if sequence.matcher is not None:
            assert not sequence.num_unknown  # its mask is of tokens that are known
            num_tokens = sequence.num_output_tokens
            is_end = num_tokens >= length_of(sequence.matcher.source.text)
            return SampledToken(EOS if is_end else successor(last, ignore_eos=True))
        if params.logprobs is not None:
            scores = candidates(last, params.logprobs)
            return SampledToken(scores[0][0], logprobs=scores)
        token = successor(last, params.ignore_eos)
        if not sequence.logits_processors:
            return SampledToken(token)
        logits = torch.zeros(1, VOCAB_SIZE)
        logits[0, token] = 1
        failures: dict[int, tuple[str, str]] = {}
        process_rows(logits, [(0, sequence)], failures, is_last=False)
        if logits.max() == -torch.inf:
            failures.setdefault(0, NONE_LEFT)
        if failures:
            return SampledToken(-1, error=failures[0])
        return SampledToken(int(logits[0].argmax()))


class Taking(Future[None]):
    """What the other thread has been asked to do. It is done when the test says, or waited for."""

    def __init__(self, work: Callable[[list[str]], None], tags: list[str]) -> None:
        super().__init__()
        self._work = (work, tags)

    def do(self) -> None:
        if self.done():
            return
        work, tags = self._work
        try:
            work(tags)
        except MemoryError as error:
            self.set_exception(error)
        else:
            self.set_result(None)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.do()
        return super().exception(timeout)


class Memory:
    """The memory of a core, and the thread that takes it again, in one."""

    def __init__(self) -> None:
        self.core: HookedCore | None = None
        self.held = set(TAGS)
        self.is_short = False  # so that nothing is to be had
        self.is_in_use = False  # whether what a step reads was given back
        self._taking: Taking | None = None

    def give_back(self, level: int) -> None:
        assert self.core is not None
        # An exception would only be the answer to the call.
        self.is_in_use |= self.core.core._in_flight is not None or bool(self.core.scheduler.running)
        self.held -= {"kv_cache"} if level == 1 else set(TAGS)
        self.core.model.content.clear()

    def take_again(self, tag: str) -> None:
        if self.is_short:
            raise MemoryError("short")
        self.held.add(tag)

    def submit(self, work: Callable[[list[str]], None], tags: list[str]) -> Taking:
        assert self._taking is None or self._taking.done(), "two take memory at once"
        self._taking = Taking(work, tags)
        return self._taking

    def come(self) -> None:
        """What is being taken is here."""
        if self._taking is not None:
            self._taking.do()


class HookedCore(SteppedCore):
    """A core that calls `at` at every hook point of its steps."""

    model: CachedModel

    def __init__(self, at: Callable[[Hook], None], **settings: Any) -> None:
        self.shelf, self.memory = Shelf(), Memory()
        self.forms = Forms(lambda: self.core.inbox.put(GrammarsReady()))
        super().__init__(
            CachedModel(4, self.forms),
            adapter_source=self.shelf,
            memory=self.memory,
            tasks=ALL_TASKS,
            **settings,
        )
        self.memory.core = self
        # It has a thread's one method and runs when a test says so; the field is typed as a thread.
        self.core._calls._parts._thread = self.memory  # type: ignore[assignment]
        self.core._prepare = lambda it: PROCESSORS_OF_ALL.prepare(it) or self.forms.prepare(it)
        self.core._ready_grammars = self.forms.take_ready
        self.fails_next = 0  # how many tries to execute find no memory
        self._written: set[tuple[int, int]] = set()  # by the last step
        launch, update = self.model.launch, self.scheduler.update
        schedule = self.scheduler.schedule

        def hooked_schedule(now: float) -> list[ScheduledSequence]:
            at(Hook.BEFORE_SCHEDULE)
            return schedule(now)

        def hooked_launch(scheduled: list[ScheduledSequence]) -> Callable[[], Tokens]:
            at(Hook.BEFORE_EXECUTE)
            if self.fails_next:
                self.fails_next -= 1
                self.model.begin_masks(scheduled)
                raise MemoryError
            self._check(scheduled)
            wait = launch(scheduled)
            at(Hook.DURING_EXECUTE)
            return wait

        def hooked_update(scheduled: list[ScheduledSequence], tokens: Tokens, now: float) -> None:
            at(Hook.BEFORE_UPDATE)
            update(scheduled, tokens, now)
            at(Hook.AFTER_UPDATE)

        self.core._launch = hooked_launch
        # Of this one scheduler, so that the hooks run within the core's own code: mypy allows no
        # method to be replaced.
        self.scheduler.schedule = hooked_schedule  # type: ignore[method-assign]
        self.scheduler.update = hooked_update  # type: ignore[method-assign]

    @property
    def is_frozen(self) -> bool:
        """Whether it is paused or asleep, and computes nothing."""
        return self.core._calls.is_frozen

    @property
    def has_no_step(self) -> bool:
        """Whether nothing will be computed until something comes."""
        is_idle = not self.scheduler.sequences and self.core.inbox.empty()
        return self.is_frozen or is_idle

    def step(self) -> bool:
        """One round, and what the loop does before it waits. False if it would wait."""
        if self.core.step():
            return True
        if self.core.inbox.empty() and not self.is_frozen:
            self.core._next_due()  # falls asleep, if that is due
        return False

    def _check(self, scheduled: list[ScheduledSequence]) -> None:
        """What a real model would rely on: every token has a slot that is its own."""
        assert self.memory.held == set(TAGS) and not self.is_frozen
        block_size = self.scheduler.config.block_size
        adapters = {item.sequence.lora for item in scheduled} - {None}
        assert len(adapters) <= self.scheduler.config.max_loras
        # Also those of a step that is still in flight.
        before = set() if self.core._in_flight is None else self._written
        self._written = set()
        for item in scheduled:
            sequence = item.sequence
            if sequence.is_finished:
                continue  # an abort came after `schedule`: its slots are read, and free soon
            assert 0 < item.num_tokens <= sequence.num_uncomputed_tokens
            number = sequence.lora and sequence.lora.lora_int_id
            assert sequence.adapter == (number and f"adapter {number}")
            for place in range(item.start, item.end):
                slot = (sequence.block_table[place // block_size], place % block_size)
                assert slot not in self._written and slot not in before
                self._written.add(slot)


def _load_processors() -> LogitsProcessors:
    config = EngineConfig(model="", address="", served_model_name="", logits_processors=PROCESSORS)
    return LogitsProcessors.load(config, torch.device("cpu"))


PROCESSORS_OF_ALL = _load_processors()
