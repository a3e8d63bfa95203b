"""`Scheduler`: which sequences the next step computes, and the one place where a sequence ends.

A step has a budget of tokens, and for prompts one of seconds as well. Running decodes take one
token each; the prompts of running and of waiting sequences share the rest. Waiting ones are
admitted by (priority, what their user has already, turn of their user, arrival). Users take turns
at all of it; one cache salt is one user (`fair_share`, `seats`). Decodes that find no block take
one from the latest sequence of the user with the most.

`finish()` serves every end from every state: it alone frees blocks and forgets a sequence, and it
always emits one last output. A fault of one sequence ends that one. The scheduler knows no tensors
and never reads a clock.

A step may be scheduled while another runs: `anticipate` counts that one as done, except for the
tokens that it will choose. What a step computes for a sequence that has ended meanwhile is
discarded.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Concatenate, ParamSpec, TypeVar

import msgspec

from engine.config import EngineConfig
from engine.core.scheduling.adapter_seats import AdapterSource
from engine.core.scheduling.admission import find_congestion, find_problem
from engine.core.scheduling.block_manager import BlockManager
from engine.core.scheduling.deadlines import Deadlines
from engine.core.scheduling.fair_share import choose_for_step, find_majority
from engine.core.scheduling.prompt_room import PromptRoom
from engine.core.scheduling.seats import Seats
from engine.core.scheduling.sequence import (
    Problem,
    RequestKey,
    SampledToken,
    ScheduledSequence,
    Sequence,
    SequenceStatus,
    Tokens,
)
from engine.core.scheduling.step_budget import StepBudget
from engine.core.scheduling.waiting_queue import WaitingQueue
from engine.ipc import AddRequest, SchedulerStats, SequenceOutput
from engine.pooling import GENERATING_TASKS
from engine.repetition import REPETITION_DETECTED

logger = logging.getLogger(__name__)

NUM_PARTS = 4  # of the decodes of full seats, with a pace
MIN_PART = 16  # decodes: that few are computed in one step

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class SchedulerTotals:
    """Counts since the start of the core, for metrics."""

    prompt_tokens: int = 0  # computed, so without cached ones, again after a preemption
    generation_tokens: int = 0
    preemptions: int = 0
    requests: int = 0
    aborts: int = 0


class Scheduler:
    """`config` must be resolved: `max_model_len` is set and fits the model."""

    def __init__(
        self,
        config: EngineConfig,
        blocks: BlockManager,
        vocab_size: int,
        eos_token_ids: Iterable[int] = (),
        *,
        tasks: Iterable[str] = GENERATING_TASKS,
        adapters: AdapterSource | None = None,
    ) -> None:
        assert config.max_model_len is not None
        # Alone in the cache, every sequence fits: that is why the oldest always gets on.
        max_model_len = min(config.max_model_len, blocks.num_blocks * blocks.block_size)
        self.config = msgspec.structs.replace(config, max_model_len=max_model_len)
        self.blocks = blocks
        self.vocab_size = vocab_size
        self.eos_token_ids = frozenset(eos_token_ids)
        self.tasks = tuple(tasks)
        self.max_model_len = max_model_len
        self.totals = SchedulerTotals()
        self.max_step_tokens = config.max_num_batched_tokens  # less while memory is short
        self.prompt_budget = StepBudget(config.max_num_batched_tokens, config.max_step_seconds)
        self.sequences: dict[RequestKey, Sequence] = {}  # all that are not finished
        self.deadlines = Deadlines(self.config)
        self.waiting = WaitingQueue()
        self.seats = Seats(config.max_num_seqs, blocks, self.waiting, adapters, config.max_loras)
        self.running = self.seats.running
        self.is_sleeping = False  # as the core says, for the stats
        self._outputs: defaultdict[str, list[SequenceOutput]] = defaultdict(list)  # by client
        self._numbers = count()
        self._served = count(1)  # parts of steps
        self._was_of_others = False  # whether the last step left somebody out
        self._backed_up: frozenset[str] = frozenset()  # users whom the last step left waiting

    # ---- requests come and go -------------------------------------------------------------------

    def add(self, client_id: str, request: AddRequest, now: float) -> Sequence | None:
        """Queue a request, or end it at once with an error. None if its id is in use already."""
        sequence = Sequence(
            client_id,
            request.request_id,
            request.prompt_token_ids,
            request.params,
            resume_token_ids=request.resume_token_ids,
            arrival_time=request.arrival_time,
            cache_salt=request.cache_salt,
            pooling=request.pooling,
            lora=request.lora,
        )
        if sequence.key in self.sequences:
            return None
        priority = request.priority if self.config.scheduling_policy == "priority" else 0
        arrival_time = request.arrival_time if math.isfinite(request.arrival_time) else 0.0
        turn = self.waiting.next_turn(sequence.cache_salt)
        sequence.order = (priority, turn, arrival_time, next(self._numbers))
        sequence.queued_ts = now
        congestion = None if request.is_admitted else self._find_congestion(sequence)
        self.totals.requests += 1
        self.sequences[sequence.key] = sequence
        self.waiting.push(sequence)
        self._attempt(sequence, self._examine, congestion)
        return sequence

    def abort(self, client_id: str, request_ids: Iterable[str], reason: str = "abort") -> None:
        """End these requests of this client. Unknown and ended ids are ignored."""
        for request_id in request_ids:
            sequence = self.sequences.get((client_id, request_id))
            if sequence is not None:
                self.totals.aborts += reason == "abort"  # not what a stop string ended
                self.finish(sequence, reason)

    def drop_client(self, client_id: str) -> None:
        """End everything of a client that is gone; nobody is left to hear of it."""
        self.abort(client_id, [sequence.request_id for sequence in self._sequences_of(client_id)])
        self._outputs.pop(client_id, None)

    def fail_client(self, client_id: str, error: Problem) -> None:
        """End everything of a client with an error, for which it is to blame."""
        for sequence in self._sequences_of(client_id):
            self.finish(sequence, "error", error=error)

    def finish(
        self,
        sequence: Sequence,
        reason: str,
        stop_reason: int | str | None = None,
        *,
        error: Problem | None = None,
        token: SampledToken | None = None,
    ) -> SequenceOutput | None:
        """End a sequence in any state: free its blocks, forget it, emit its last output.

        The second call for the same sequence does nothing and returns None. `token` is one that was
        sampled in the step that ends the sequence and that its client has not seen yet.
        """
        if sequence.is_finished:
            return None
        output = self._output(sequence, token, reason, stop_reason, error)
        if sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.forget_unknown()
        self.blocks.release(sequence)
        del self.sequences[sequence.key]
        self._outputs[sequence.client_id].append(output)
        return output

    # ---- one step -------------------------------------------------------------------------------

    def schedule(self, now: float) -> list[ScheduledSequence]:
        """Choose what to compute now; empty when nothing is due.

        Else a step has started, which `update` or `give_up` must end.
        """
        for sequence, problem in self.deadlines.find_overdue(self.sequences.values(), now):
            self.finish(sequence, "error", error=problem)
        budget = self.max_step_tokens
        scheduled: list[ScheduledSequence] = []
        self.totals.preemptions += self.seats.preempt_for_others(budget)
        newcomers = self.seats.newcomers()
        able = [sequence for sequence in self.running if not sequence.waits_for_grammar]
        decodes = [sequence for sequence in able if sequence.is_decoding]
        ready = [it for it in able if not it.is_decoding or self._is_due(it, now)]
        ready, newcomers = self._leave_out_majority(ready, newcomers)
        ready = self._next_part(ready, now)
        num_rows = self.config.max_num_seqs
        chosen = choose_for_step(ready, num_rows - self._num_rows_for(newcomers, ready))
        due = [sequence for sequence in chosen if sequence.is_decoding][:budget]
        num_victims = self.seats.preempt_for_decodes(due)
        self.totals.preemptions += num_victims

        scheduled = self._next_tokens(due)
        prompts = [it for it in chosen if it.is_running and not it.is_decoding]
        prompts += [] if num_victims else newcomers  # after a preemption room is short
        num_tokens = self.prompt_budget.num_tokens(min(len(decodes), num_rows), len(prompts))
        num_tokens = min(num_tokens, budget - len(scheduled))
        room = PromptRoom(
            self.seats,
            num_tokens=num_tokens,
            num_rows=num_rows - len(scheduled),
            max_tokens_each=self.config.long_prefill_token_threshold,
            vocab_size=self.vocab_size,
            admit=lambda sequence: bool(self._attempt(sequence, self._admit, now)),
        )
        chunks = room.share_out(prompts, scheduled)
        if len(chosen) < len(ready):  # the rows that newcomers did not need
            others = [it for it in ready if it.is_decoding and it.is_running and it not in due]
            budget -= len(scheduled) + sum(chunk.num_tokens for chunk in chunks)
            scheduled += self._next_tokens(others[: max(0, min(room.num_rows, budget))])
        scheduled += chunks
        if not scheduled and self._was_of_others:  # there was no room for them
            return self.schedule(now)  # which leaves out nobody
        for item in sorted(scheduled, key=lambda item: item.sequence.last_served):
            item.sequence.last_served = next(self._served)
        self._backed_up = frozenset(self.waiting.users)
        for sequence in self.waiting.move_up(now, self.seats.held):
            self._outputs[sequence.client_id].append(self._output(sequence))
        if scheduled:
            self.blocks.start_step()
        return scheduled

    def anticipate(self, scheduled: list[ScheduledSequence]) -> None:
        """A step was started: the next one may be scheduled before `update` ends this one.

        None that is sampled may wait for its token (`Sequence.waits_for_tokens`).
        """
        row = 0
        for item in scheduled:
            if item.is_current:
                self._advance(item, row)
                item.is_anticipated = True
            row += item.is_sampled

    def update(self, scheduled: list[ScheduledSequence], tokens: Tokens, now: float) -> None:
        """Take in what a step computed: one token, or None, per scheduled sequence."""
        self.blocks.end_step()
        for item, token in zip(scheduled, tokens, strict=True):
            if item.is_current and not (token is not None and token.is_postponed):
                self._attempt(item.sequence, self._take, item, token, now)

    def let_go_on(self, sequence: Sequence, problem: Problem | None, warnings: list[str]) -> None:
        """One that waited for its grammar has it, or ends because it cannot have it."""
        if sequence.is_finished:
            return
        sequence.waits_for_grammar = False
        if problem is not None:
            self.finish(sequence, "error", error=problem)
        elif warnings:
            output = msgspec.structs.replace(self._output(sequence), warnings=warnings)
            self._outputs[sequence.client_id].append(output)

    def preempt_all(self) -> None:
        """Take every block back: what runs now starts over, from the queue."""
        self.totals.preemptions += len(self.running)
        for sequence in reversed(self.running.copy()):
            self.seats.preempt(sequence)

    def announce_waking(self, sequence: Sequence) -> None:
        """Say what a new sequence waits for."""
        output = msgspec.structs.replace(self._output(sequence), queue_position=0, is_waking=True)
        self._outputs[sequence.client_id].append(output)

    def give_up(self) -> None:
        """The step that was scheduled last computed nothing; the next `schedule` repeats it."""
        self.blocks.end_step()

    @property
    def is_blocked(self) -> bool:
        """After an empty `schedule()`: requests wait for nothing that could ever come."""
        return self.waiting.is_able and not self.running

    def next_due(self) -> float | None:
        """Until when (monotonic seconds) the step loop may sleep after an empty `schedule()`.

        None means until a message comes. A message always wakes the loop.
        """
        times = []
        ticks = [it.due_tick for it in self.running if not it.waits_for_grammar]
        if self.config.pace and ticks:
            times.append(min(ticks) / self.config.pace)
        if self.sequences and (check := self.deadlines.next_check) is not None:
            times.append(check)
        return min(times) if times else None

    def take_outputs(self) -> dict[str, list[SequenceOutput]]:
        """What has happened since the last call, by client, in order."""
        outputs, self._outputs = self._outputs, defaultdict(list)
        return outputs

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            num_waiting_tokens=self.waiting.num_tokens,
            num_blocks_total=self.blocks.num_blocks,
            num_blocks_free=self.blocks.num_free,
            is_sleeping=self.is_sleeping,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError if maps, queues and blocks disagree."""
        queued = [*self.waiting, *self.running]
        assert len(queued) == len(self.sequences)
        assert all(self.sequences.get(sequence.key) is sequence for sequence in queued)
        self.waiting.check_integrity()
        self.blocks.check_integrity(self.running)

    def check_idle(self) -> None:
        """Raise AssertionError unless everything is as before the first request."""
        self.check_integrity()
        assert not self.sequences
        assert self.blocks.num_free == self.blocks.num_blocks, "blocks are neither held nor free"

    # ---- helpers, in the order of their use ------------------------------------------------------

    def _attempt(
        self,
        sequence: Sequence,
        action: Callable[Concatenate[Sequence, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T | None:
        """Do something for one sequence. A failure ends this one alone; None then."""
        try:
            return action(sequence, *args, **kwargs)
        except Exception as error:
            logger.exception("%r failed", sequence)
            message = f"{type(error).__name__} in the scheduler"
            self.finish(sequence, "error", error=("engine_error", message))
            return None

    def _find_congestion(self, sequence: Sequence) -> Problem | None:
        """Why a new request finds the queue full, if it does."""
        num_ahead = len(self.waiting)
        if sequence.cache_salt not in self._backed_up:  # theirs since then may all find a seat
            num_ahead -= self.seats.num_free_for(sequence.cache_salt)
        return find_congestion(
            sequence, self.config, num_ahead=num_ahead, num_waiting_tokens=self.waiting.num_tokens
        )

    def _examine(self, sequence: Sequence, congestion: Problem | None) -> None:
        """What a new request may do, and whether it may stay at all."""
        params = sequence.params
        stop_ids = set(params.stop_token_ids or ())
        if not params.ignore_eos:
            stop_ids |= self.eos_token_ids
        # What the model cannot say ends nothing, and would index beyond the logits.
        sequence.stop_ids = frozenset(id for id in stop_ids if 0 <= id < self.vocab_size)
        max_tokens = self.max_model_len if params.max_tokens is None else params.max_tokens
        sequence.max_num_tokens = min(sequence.num_prompt_tokens + max_tokens, self.max_model_len)
        last = sequence.num_tokens - 1
        if sequence.num_output_tokens and (end := self._end_reason(sequence, last)):
            self.finish(sequence, *end)  # nothing was left to generate after the resumed tokens
            return
        problem = find_problem(sequence, self.config, self.vocab_size, self.tasks)
        problem = problem or self.seats.adapters.find_problem(sequence) or congestion
        if problem is not None:
            self.finish(sequence, "error", error=problem)

    def _sequences_of(self, client_id: str) -> list[Sequence]:
        return [it for it in self.sequences.values() if it.client_id == client_id]

    def _is_due(self, sequence: Sequence, now: float) -> bool:
        """Whether a decode wants its next token now."""
        if sequence.num_tokens >= sequence.max_num_tokens:
            return False  # its last one is being chosen
        return not self.config.pace or sequence.due_tick <= now * self.config.pace

    def _next_part(self, ready: list[Sequence], now: float) -> list[Sequence]:
        """A pace leaves time to compute due decodes in parts, and a newcomer waits for one part.

        Not when one is late by a tick: all at once take less time.
        """
        if not self.config.pace:
            return ready
        decodes = [sequence for sequence in ready if sequence.is_decoding]
        tick = int(now * self.config.pace)
        if any(sequence.due_tick < tick for sequence in decodes):
            return ready
        num_rows = max(MIN_PART, self.config.max_num_seqs // NUM_PARTS)
        part = set(choose_for_step(decodes, num_rows))
        return [sequence for sequence in ready if not sequence.is_decoding or sequence in part]

    def _leave_out_majority(
        self, ready: list[Sequence], newcomers: list[Sequence]
    ) -> tuple[list[Sequence], list[Sequence]]:
        """Every second step is that of the others, as long as they have prompts to be read.

        Else a short question would wait for the next tokens of all answers of another user.
        """
        prompts = [*newcomers, *(sequence for sequence in ready if not sequence.is_decoding)]
        user = None if self._was_of_others else find_majority([*self.running, *newcomers], prompts)
        self._was_of_others = user is not None
        if user is None:
            return ready, newcomers
        return (
            [sequence for sequence in ready if sequence.cache_salt != user],
            [sequence for sequence in newcomers if sequence.cache_salt != user],
        )

    def _num_rows_for(self, newcomers: list[Sequence], ready: list[Sequence]) -> int:
        """How many that are ready may have to make room: for none that is less urgent than all."""
        least = max((sequence.order[0] for sequence in ready), default=0)
        num_urgent = sum(sequence.order[0] <= least for sequence in newcomers)
        return min(num_urgent, self.config.max_num_seqs // 2)

    def _next_tokens(self, decodes: list[Sequence]) -> list[ScheduledSequence]:
        """Of those for whose last tokens there is room."""
        return [
            ScheduledSequence(sequence, 1)
            for sequence in decodes
            if self._attempt(sequence, self.seats.make_room)
        ]

    def _admit(self, sequence: Sequence, now: float) -> bool:
        """Let one of those who wait in, if it fits."""
        if not self._give_adapter(sequence):
            return False
        if self.seats.waits_for_sibling(sequence) or not self.seats.admit(sequence):
            return False
        sequence.queue_position = None
        if not sequence.scheduled_ts:
            sequence.scheduled_ts = now
            sequence.num_cached_tokens = sequence.num_computed_tokens
        self._outputs[sequence.client_id].append(self._output(sequence))
        return True

    def _give_adapter(self, sequence: Sequence) -> bool:
        """Whether it has what it needs of adapters; one that can never have it has ended."""
        try:
            return self.seats.adapters.give(sequence)
        except ValueError as error:
            self.finish(sequence, "error", error=("lora_unavailable", str(error)))
            return False

    def _advance(self, item: ScheduledSequence, row: int) -> None:
        """The tokens of a part count as computed, and one that it samples as unknown."""
        sequence = item.sequence
        sequence.num_computed_tokens = item.end
        if sequence.copied_from is not None:
            self.blocks.end_copy(sequence)
        if item.is_sampled:
            sequence.expect_token(row)

    def _take(
        self, sequence: Sequence, item: ScheduledSequence, token: SampledToken | None, now: float
    ) -> None:
        """Take in what a step computed for one sequence."""
        if not item.is_anticipated:
            self._advance(item, 0)
        if not item.is_decode:
            self.totals.prompt_tokens += item.num_tokens
        if token is not None and token.error is not None:
            # Nor may its keys and values serve anybody else.
            self.finish(sequence, "error", error=token.error)
            return
        self.blocks.cache_full_units(sequence, item.end)
        if item.scored:
            sequence.prompt_logprobs += item.prompt_logprobs
            sequence.prompt_token_id_logprobs += item.prompt_token_id_logprobs
            sequence.num_scored_tokens = item.scored.stop
        if token is None:
            self._outputs[sequence.client_id].append(self._output(sequence))
        elif token.embedding is not None:
            self.finish(sequence, "stop", token=token)
        else:
            self._learn(sequence, item.end, token, now)

    def _learn(self, sequence: Sequence, place: int, token: SampledToken, now: float) -> None:
        """The first unknown token is this one."""
        sequence.token_ids[place] = token.token_id
        sequence.num_unknown -= 1
        self.totals.generation_tokens += 1
        if not sequence.first_token_ts:
            sequence.first_token_ts = now
        end = ("stop", None) if token.is_end else self._end_reason(sequence, place)
        if end is not None:
            self.finish(sequence, *end, token=token)
            return
        self._outputs[sequence.client_id].append(self._output(sequence, token))
        if self.config.pace:
            # All answers share one clock, so that they are computed in one batch. One that is late
            # goes on with the present tick: what it missed is not caught up in a rush.
            tick = int(now * self.config.pace)
            sequence.due_tick = max((sequence.due_tick or tick) + 1, tick)

    def _end_reason(self, sequence: Sequence, place: int) -> tuple[str, int | str | None] | None:
        """Why the answer ends with the token there, if it does: (finish reason, stop reason)."""
        params, token = sequence.params, sequence.token_ids[place]
        num_output_tokens = place + 1 - sequence.num_prompt_tokens
        if token in sequence.stop_ids and num_output_tokens > params.min_tokens:
            return ("stop", token if token in (params.stop_token_ids or ()) else None)
        if place + 1 >= sequence.max_num_tokens:
            return ("length", None)
        if params.repetition_detection is not None and num_output_tokens >= params.min_tokens:
            start = sequence.num_prompt_tokens
            if params.repetition_detection.is_found(sequence.token_ids, start, place + 1):
                return ("repetition", REPETITION_DETECTED)
        return None

    def _output(
        self,
        sequence: Sequence,
        token: SampledToken | None = None,
        finish_reason: str | None = None,
        stop_reason: int | str | None = None,
        error: Problem | None = None,
    ) -> SequenceOutput:
        output = SequenceOutput(  # of few names: with 16 of them a call takes four times as long
            request_id=sequence.request_id,
            new_token_ids=[] if token is None or token.embedding is not None else [token.token_id],
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            error=error,
            logprobs=None if token is None or token.logprobs is None else [token.logprobs],
            num_cached_tokens=sequence.num_cached_tokens,
            num_computed_tokens=min(sequence.num_computed_tokens, sequence.num_prompt_tokens),
            num_preemptions=sequence.num_preemptions,
            queue_position=sequence.queue_position,
            num_tokens_ahead=0 if sequence.queue_position is None else sequence.num_tokens_ahead,
            scheduled_ts=sequence.scheduled_ts,
            first_token_ts=sequence.first_token_ts,
            embedding=None if token is None else token.embedding,
        )
        if not sequence.is_scored:
            return output
        of_prompt, of_ids = sequence.take_prompt_scores()
        return msgspec.structs.replace(
            output, prompt_logprobs=of_prompt, prompt_token_id_logprobs=of_ids
        )
