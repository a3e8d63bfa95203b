"""`Scheduler`: which sequences the next step computes, and the one place where a sequence ends.

A step has a budget of tokens, and for prompts one of seconds as well. Running decodes take one
token each, running prefills take a chunk of what is left, then waiting requests are let in by
(priority, turn of their user, arrival). A request is let in only with room for all its known
tokens, so a prefill never stops half way for want of blocks; decodes that find no block take them
from the latest running sequences, which start over later (their full blocks stay in the prefix
cache, so this is cheap while nobody else needs them). In the same way a user who has more than half
of the seats or blocks makes way for another user who finds none; one cache salt is one user.

`finish()` serves every end from every state: it alone frees blocks and forgets a sequence, and it
always emits one last output. What goes wrong with one sequence ends that one. The scheduler knows
no tensors and never reads a clock.

A step may be scheduled while another runs: `anticipate` takes that one for done, except for what
it will choose. What it then computes for a sequence that has ended meanwhile is thrown away.
"""

import logging
import math
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Concatenate, ParamSpec, TypeVar

import msgspec

from engine.admission import find_congestion, find_problem
from engine.block_manager import BlockManager, Prefix
from engine.config import EngineConfig
from engine.deadlines import Deadlines
from engine.fair_share import find_excess
from engine.ipc import AddRequest, SchedulerStats, SequenceOutput
from engine.sequence import (
    Problem,
    RequestKey,
    SampledToken,
    ScheduledSequence,
    Sequence,
    SequenceStatus,
    Tokens,
)
from engine.step_budget import StepBudget
from engine.waiting_queue import WaitingQueue, by_order

logger = logging.getLogger(__name__)

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
    ) -> None:
        assert config.max_model_len is not None
        # Alone in the cache, every sequence fits: that is why the oldest always gets on.
        max_model_len = min(config.max_model_len, blocks.num_blocks * blocks.block_size)
        self.config = msgspec.structs.replace(config, max_model_len=max_model_len)
        self.blocks = blocks
        self.vocab_size = vocab_size
        self.eos_token_ids = frozenset(eos_token_ids)
        self.max_model_len = max_model_len
        self.totals = SchedulerTotals()
        self.max_step_tokens = config.max_num_batched_tokens  # less while memory is short
        self.prompt_budget = StepBudget(config.max_num_batched_tokens, config.max_step_seconds)
        self.sequences: dict[RequestKey, Sequence] = {}  # all that are not finished
        self.deadlines = Deadlines(self.config)
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []  # sorted by Sequence.order as well
        self._outputs: defaultdict[str, list[SequenceOutput]] = defaultdict(list)  # by client
        self._numbers = count()
        self._is_backed_up = False  # whether the last step left somebody waiting

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
        )
        if sequence.key in self.sequences:
            return None
        priority = request.priority if self.config.scheduling_policy == "priority" else 0
        arrival_time = request.arrival_time if math.isfinite(request.arrival_time) else 0.0
        turn = self.waiting.next_turn(sequence.cache_salt)
        sequence.order = (priority, turn, arrival_time, next(self._numbers))
        sequence.queued_ts = now
        num_ahead = len(self.waiting)
        if not self._is_backed_up:  # what came since the last step may all find a seat
            num_ahead -= max(0, self.config.max_num_seqs - len(self.running))
        congestion = find_congestion(
            sequence, self.config, num_ahead=num_ahead, num_waiting_tokens=self.waiting.num_tokens
        )
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
        stop_reason: int | None = None,
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
        num_victims = self._make_way()
        decodes = [sequence for sequence in self.running if sequence.is_decoding]
        due = [sequence for sequence in decodes if self._is_due(sequence, now)][:budget]
        num_victims += self._preempt_for(due)

        for sequence in due:
            if self._attempt(sequence, self._make_room):
                scheduled.append(ScheduledSequence(sequence, 1))
                budget -= 1
        num_seats = max(0, self.config.max_num_seqs - len(self.running))
        num_waiting = len(self.running) - len(decodes) + min(len(self.waiting), num_seats)
        budget = min(budget, self.prompt_budget.num_tokens(len(decodes), num_waiting))
        for sequence in self.running:
            if budget and not sequence.is_decoding:
                scheduled.append(self._next_chunk(sequence, budget))
                budget -= scheduled[-1].num_tokens
        while budget and not num_victims and self.waiting:  # after a preemption room is short
            head = self.waiting.head
            if self._attempt(head, self._admit, now):
                scheduled.append(self._next_chunk(head, budget))
                budget -= scheduled[-1].num_tokens
            elif not head.is_finished:
                break
        self._is_backed_up = bool(self.waiting)
        for sequence in self.waiting.move_up(now):
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
            if item.is_current:
                self._attempt(item.sequence, self._take, item, token, now)

    def preempt_all(self) -> None:
        """Take every block back: what runs now starts over, from the queue."""
        for sequence in reversed(self.running.copy()):
            self._preempt(sequence)

    def give_up(self) -> None:
        """The step that was scheduled last computed nothing; the next `schedule` repeats it."""
        self.blocks.end_step()

    @property
    def is_blocked(self) -> bool:
        """After an empty `schedule()`: requests wait for nothing that could ever come."""
        return bool(self.waiting) and not self.running

    def next_due(self) -> float | None:
        """Until when (monotonic seconds) the step loop may sleep after an empty `schedule()`.

        None means until a message comes. A message always wakes the loop.
        """
        times = []
        if self.config.pace and self.running:
            times.append(min(sequence.due_tick for sequence in self.running) / self.config.pace)
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
            self.finish(sequence, *end)  # nothing was left to generate behind the resumed tokens
            return
        problem = find_problem(sequence, self.config, self.vocab_size) or congestion
        if problem is not None:
            self.finish(sequence, "error", error=problem)

    def _sequences_of(self, client_id: str) -> list[Sequence]:
        return [it for it in self.sequences.values() if it.client_id == client_id]

    def _make_way(self) -> int:
        """While another user waits, nobody keeps more than half: preempt until there is room.

        The latest of theirs go, to the end of their own line. The number of victims.
        """
        num_victims = 0
        while self.waiting and not self._has_room(head := self.waiting.head):
            victim = find_excess(
                self.running,
                head,
                max_num_seqs=self.config.max_num_seqs,
                num_blocks=self.blocks.num_blocks,
            )
            if victim is None:
                break
            priority, _, arrival_time, number = victim.order
            turn = self.waiting.next_turn(victim.cache_salt)
            victim.order = (priority, max(turn, head.order[1] + 1), arrival_time, number)
            self._preempt(victim)
            num_victims += 1
        return num_victims

    def _has_room(self, sequence: Sequence) -> bool:
        """Whether a waiting request gets in as soon as the step in flight has ended."""
        num_running = len(self.running)
        num_available = self.blocks.num_free + self.blocks.num_soon_free - num_running
        has_seat = num_running < self.config.max_num_seqs
        return has_seat and self._find_prefix(sequence, num_available) is not None

    def _find_prefix(self, sequence: Sequence, num_available: int) -> Prefix | None:
        """What so many blocks allow to use of the prefix cache; None if they do not suffice."""
        prefix = self.blocks.find_prefix(sequence)
        for possible in (prefix, prefix.without_copy()):
            if self.blocks.num_needed(sequence, possible) <= num_available:
                return possible
        return None

    def _is_due(self, sequence: Sequence, now: float) -> bool:
        """Whether a decode wants its next token now."""
        if sequence.num_tokens >= sequence.max_num_tokens:
            return False  # its last one is being chosen
        return not self.config.pace or sequence.due_tick <= now * self.config.pace

    def _preempt_for(self, due: list[Sequence]) -> int:
        """Preempt as many of the latest sequences as the decodes that are due lack blocks.

        Once per step, for all of them together. Blocks that a step in flight still reads count as
        free: their turn comes before another sequence must go. The oldest is never a victim: what
        all others give back is always enough for it. The number of victims.
        """
        needy = {sequence.key for sequence in due if self.blocks.needs_block(sequence)}
        num_victims = 0
        while len(needy) > self.blocks.num_free + self.blocks.num_soon_free:
            victim = self.running[-1]
            assert victim is not self.running[0]
            self._preempt(victim)
            needy.discard(victim.key)
            num_victims += 1
        return num_victims

    def _make_room(self, sequence: Sequence) -> bool:
        """Give the last token of a decode its slot; False if it must wait for its turn."""
        if sequence.status is not SequenceStatus.RUNNING:
            return False
        if self.blocks.needs_block(sequence):
            if not self.blocks.num_free:
                return False  # until the step in flight ends
            self.blocks.grow(sequence)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the queue, at its old place: blocks go, tokens stay and are computed again."""
        self.running.remove(sequence)
        sequence.forget_unknown()
        self.blocks.release(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.num_preemptions += 1
        self.totals.preemptions += 1
        self.waiting.push(sequence)

    def _next_chunk(self, sequence: Sequence, budget: int) -> ScheduledSequence:
        num_tokens = min(sequence.num_uncomputed_tokens, budget)
        if self.config.long_prefill_token_threshold:
            num_tokens = min(num_tokens, self.config.long_prefill_token_threshold)
        return ScheduledSequence(sequence, num_tokens)

    def _admit(self, sequence: Sequence, now: float) -> bool:
        """Let the head of the queue in, if it fits."""
        num_running = len(self.running)
        if num_running >= self.config.max_num_seqs:
            return False
        # Each running decode may soon want a block: without this reserve the newcomer would be
        # the next victim.
        num_available = self.blocks.num_free - num_running
        if num_available <= 0:
            return False
        prefix = self._find_prefix(sequence, num_available)
        if prefix is None:
            return False
        if any(self.blocks.will_extend(prefix, sequence, other) for other in self.running):
            return False  # a step or two later its blocks can be shared, as by n > 1 siblings
        self.blocks.allocate(sequence, prefix)
        self.waiting.let_in(sequence)
        sequence.status = SequenceStatus.RUNNING
        sequence.queue_position = None
        insort(self.running, sequence, key=by_order)
        if not sequence.scheduled_ts:
            sequence.scheduled_ts = now
            sequence.num_cached_tokens = sequence.num_computed_tokens
        self._outputs[sequence.client_id].append(self._output(sequence))
        return True

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
        if token is None:
            self._outputs[sequence.client_id].append(self._output(sequence))
        else:
            self._learn(sequence, item.end, token, now)

    def _learn(self, sequence: Sequence, place: int, token: SampledToken, now: float) -> None:
        """The first unknown token is this one."""
        sequence.token_ids[place] = token.token_id
        sequence.num_unknown -= 1
        self.totals.generation_tokens += 1
        if not sequence.first_token_ts:
            sequence.first_token_ts = now
        if end := self._end_reason(sequence, place):
            self.finish(sequence, *end, token=token)
            return
        self._outputs[sequence.client_id].append(self._output(sequence, token))
        if self.config.pace:
            # All answers share one clock, so that they are computed in one batch. One that is late
            # goes on with the present tick: what it missed is not caught up in a rush.
            tick = int(now * self.config.pace)
            sequence.due_tick = max((sequence.due_tick or tick) + 1, tick)

    def _end_reason(self, sequence: Sequence, place: int) -> tuple[str, int | None] | None:
        """Why the answer ends with the token there, if it does: (finish reason, stop reason)."""
        params, token = sequence.params, sequence.token_ids[place]
        num_output_tokens = place + 1 - sequence.num_prompt_tokens
        if token in sequence.stop_ids and num_output_tokens > params.min_tokens:
            return ("stop", token if token in (params.stop_token_ids or ()) else None)
        if place + 1 >= sequence.max_num_tokens:
            return ("length", None)
        return None

    def _output(
        self,
        sequence: Sequence,
        token: SampledToken | None = None,
        finish_reason: str | None = None,
        stop_reason: int | None = None,
        error: Problem | None = None,
    ) -> SequenceOutput:
        return SequenceOutput(
            request_id=sequence.request_id,
            new_token_ids=[] if token is None else [token.token_id],
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
        )
