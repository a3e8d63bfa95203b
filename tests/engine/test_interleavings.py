"""R4, R6, R37: whatever comes at whichever point of a step, each request ends once and leaves
nothing.

A state machine of hypothesis plays the clients of one core: it plans what comes at each hook point
of the next step, steps, looks at the books, and at the end lets everything drain. A failing
sequence of rules is shrunk and printed as a program.
"""

import enum
import itertools
from array import array
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.core.io_thread import ClientGone, ClientSilent
from engine.core.scheduling.sequence import ScheduledSequence, Tokens
from engine.ipc import SequenceOutput, StepOutputs, Utility, UtilityReply
from engine.lora import LoRARequest
from engine.pooling import PoolingParams
from tests.engine.helpers.fakes import EOS, VOCAB_SIZE, FakeModel, SteppedCore

NUM_CLIENTS = 3
MAX_DRAIN_STEPS = 3000


class Hook(enum.Enum):
    """The points of a step at which something may come."""

    BEFORE_SCHEDULE = "before schedule"
    BEFORE_EXECUTE = "between schedule and execute"
    DURING_EXECUTE = "during execute"
    BEFORE_UPDATE = "between execute and update"
    AFTER_UPDATE = "after"


ADAPTERS = [LoRARequest(f"a{n}", n, f"/{n}", f"{n:064}") for n in (1, 2, 3)]
HOOKS = st.sampled_from(Hook)
CLIENTS = st.integers(0, NUM_CLIENTS - 1)


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


class HookedCore(SteppedCore):
    """A core that calls `at` at every hook point of its steps."""

    def __init__(self, at: Callable[[Hook], None], **settings: Any) -> None:
        self.shelf = Shelf()
        super().__init__(FakeModel(self._next_token), adapter_source=self.shelf, **settings)
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
        self.scheduler.schedule = hooked_schedule  # type: ignore[method-assign]
        self.scheduler.update = hooked_update  # type: ignore[method-assign]

    def _next_token(self, sequence: Any) -> int:
        last: int = sequence.token_ids[-1]
        if last % 17 == 0 and not sequence.params.ignore_eos:
            return EOS
        return last % (VOCAB_SIZE - 1) + 1

    def _check(self, scheduled: list[ScheduledSequence]) -> None:
        """What a real model would rely on: every token has a slot that is its own."""
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


class Interleavings(RuleBasedStateMachine):
    """Three clients, a tiny pool, and a core that is stepped between their doings."""

    @initialize(
        num_blocks=st.integers(6, 14),
        budget=st.integers(3, 16),
        max_num_seqs=st.integers(1, 6),
        policy=st.sampled_from(["fcfs", "priority"]),
        max_loras=st.integers(1, 2),
        limits=st.sampled_from(
            [
                {},
                {"max_num_queued_reqs": 3},
                {"max_queue_seconds": 5.0, "max_request_seconds": 8.0},
                {"enable_prefix_caching": False},
            ]
        ),
        runs_ahead=st.booleans(),
    )
    def build(
        self,
        num_blocks: int,
        budget: int,
        max_num_seqs: int,
        policy: str,
        max_loras: int,
        limits: dict[str, Any],
        runs_ahead: bool,
    ) -> None:
        self.core = HookedCore(
            self.at,
            runs_ahead=runs_ahead,
            num_blocks=num_blocks,
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
            max_model_len=40,
            scheduling_policy=policy,
            max_loras=max_loras,
            **limits,
        )
        self.plans: dict[Hook, list[Callable[[], None]]] = {hook: [] for hook in Hook}
        self.clients = [f"c{number}" for number in range(NUM_CLIENTS)]  # who lives, and how called
        self.num_clients = NUM_CLIENTS
        self.requests: dict[tuple[str, str], dict[str, Any]] = {}
        self.open: list[tuple[str, str]] = []  # may have ended by now
        self.lost: set[str] = set()  # clients that are gone
        self.stopped: set[tuple[str, str]] = set()  # requests that their clients may have ended
        self.calls = 0
        self.can_execute = True

    def at(self, hook: Hook) -> None:
        plans, self.plans[hook] = self.plans[hook], []
        for plan in plans:
            plan()

    # ---- what may come, at any hook

    @rule(
        hook=HOOKS,
        client=CLIENTS,
        num_siblings=st.sampled_from([1, 1, 1, 2, 3]),
        num_prompt=st.integers(0, 41),
        first=st.sampled_from([1, 1, 1, 100, 200]),  # prompts share prefixes
        max_tokens=st.integers(1, 20),
        priority=st.integers(-1, 1),
        salt=st.sampled_from(["", "salt"]),
        num_resumed=st.sampled_from([0, 0, 0, 1, 7]),
        ignore_eos=st.booleans(),
        pooling_type=st.sampled_from([None, None, "LAST", "MEAN"]),  # else an answer is asked for
        prompt_logprobs=st.sampled_from([None, None, 0]),  # of an answer
        lora=st.sampled_from([None, None, *ADAPTERS]),
    )
    def add(
        self,
        hook: Hook,
        client: int,
        num_siblings: int,
        num_prompt: int,
        first: int,
        max_tokens: int,
        priority: int,
        salt: str,
        num_resumed: int,
        ignore_eos: bool,
        pooling_type: str | None,
        prompt_logprobs: int | None,
        lora: LoRARequest | None,
    ) -> None:
        name, number = self.clients[client], len(self.requests)
        prompt = list(range(first, first + num_prompt))
        resumed = [*range(first + num_prompt, first + num_prompt + num_resumed)]
        fields: dict[str, Any] = {
            "prompt": prompt,
            "resume_token_ids": resumed,
            "max_tokens": max_tokens,
            "ignore_eos": ignore_eos,
            "pooling": pooling_type and PoolingParams(pooling_type=pooling_type),
            "prompt_logprobs": None if pooling_type else prompt_logprobs,
            "lora": lora,
        }
        keys = [(name, f"r{number}-{sibling}") for sibling in range(num_siblings)]
        for key in keys:
            self.requests[key] = fields
            self.open.append(key)

        def come() -> None:
            if name not in self.lost:
                for key in keys:
                    self.core.add(
                        key[1], client_id=name, priority=priority, cache_salt=salt, **fields
                    )

        self.plans[hook].append(come)

    @precondition(lambda self: self.open)
    @rule(
        hook=HOOKS, data=st.data(), num=st.integers(1, 4), reason=st.sampled_from(["abort", "stop"])
    )
    def abort(self, hook: Hook, data: st.DataObject, num: int, reason: str) -> None:
        for _ in range(num):
            client, request_id = data.draw(st.sampled_from(self.open))
            if reason == "stop":
                self.stopped.add((client, request_id))
            self.plans[hook].append(
                lambda: self.core.abort(request_id, client_id=client, reason=reason)  # noqa: B023
            )

    @precondition(lambda self: self.open)
    @rule(hook=HOOKS, data=st.data())
    def finish(self, hook: Hook, data: st.DataObject) -> None:
        """Without the queues, as a deadline does, or another step in flight."""
        key = data.draw(st.sampled_from(self.open))

        def end() -> None:
            if sequence := self.core.scheduler.sequences.get(key):
                self.core.scheduler.finish(sequence, "error", error=("test", "ended"))

        self.plans[hook].append(end)

    @rule(hook=st.sampled_from([Hook.BEFORE_SCHEDULE, Hook.DURING_EXECUTE, Hook.AFTER_UPDATE]))
    def preempt(self, hook: Hook) -> None:
        def preempt() -> None:
            if self.core.scheduler.running:
                self.core.scheduler.seats.preempt(self.core.scheduler.running[-1])

        self.plans[hook].append(preempt)

    @rule(hook=HOOKS, client=CLIENTS)
    def lose_client(self, hook: Hook, client: int) -> None:
        """A client dies; another one comes in its place."""
        name, self.clients[client] = self.clients[client], f"c{self.num_clients}"
        self.num_clients += 1
        self.open = [key for key in self.open if key[0] != name]

        def die() -> None:
            self.lost.add(name)
            self.core.core.inbox.put(ClientGone(name))

        self.plans[hook].append(die)

    @rule(hook=HOOKS, client=CLIENTS)
    def silence_client(self, hook: Hook, client: int) -> None:
        name = self.clients[client]
        self.plans[hook].append(lambda: self.core.core.inbox.put(ClientSilent(name)))

    @rule(
        hook=HOOKS,
        call=st.sampled_from(
            [
                ("pause", "abort", True),
                ("pause", "wait", True),
                ("pause", "keep", False),
                ("resume",),
                ("resume",),
                ("reset_prefix_cache", True),
                ("reset_prefix_cache",),
                ("drain",),
            ]
        ),
    )
    def call(self, hook: Hook, call: tuple[Any, ...]) -> None:
        self.calls += 1
        message = Utility(self.calls, call[0], list(call[1:]))
        self.plans[hook].append(lambda: self.core.core.inbox.put(("caller", message)))

    @rule(num_failures=st.integers(1, 2))
    def lack_memory(self, num_failures: int) -> None:
        self.core.fails_next = num_failures

    @rule(num_full=st.integers(0, 3), gone=st.sampled_from([(), (), (1,), (2, 3)]))
    def change_shelf(self, num_full: int, gone: tuple[int, ...]) -> None:
        """Adapters find no room for a while; some cannot be read."""
        self.core.shelf.num_full = num_full
        self.core.shelf.gone = set(gone)

    # ---- time goes on

    @rule(num=st.integers(1, 5), seconds=st.sampled_from([0.0, 0.1, 0.6, 3.0]))
    def step(self, num: int, seconds: float) -> None:
        for _ in range(num):
            self.core.time += seconds
            self.try_step()

    def try_step(self) -> bool:
        try:
            return self.core.core.step()
        except MemoryError:  # twice, and no prompt to blame: fatal in a real core
            self.core.fails_next = 0
            return True

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "core"):
            self.core.scheduler.check_integrity()

    # ---- the end

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        self.core.fails_next = 0
        for _ in range(2):  # what was planned for a hook that did not come, comes now
            for hook in Hook:
                self.at(hook)
            self.core.core.inbox.put(("caller", Utility(0, "resume")))
            for _ in range(MAX_DRAIN_STEPS):
                self.core.time += 0.01
                if not self.try_step() and self.core.core.inbox.empty():
                    break
            else:
                raise AssertionError(f"still busy: {self.core.scheduler.stats()}")
        self.core.scheduler.check_idle()
        assert not self.core.core.aborts
        self.check_ends()
        replies = [m.call_id for owner, m in self.core.sent if isinstance(m, UtilityReply)]
        assert Counter(replies)[0] == 2
        assert sorted(i for i in replies if i) == list(range(1, self.calls + 1))

    def check_ends(self) -> None:
        """One terminal output for each request of a living client, and the right tokens before."""
        ends: Counter[tuple[str, str]] = Counter()
        tokens: dict[tuple[str, str], list[int]] = {key: [] for key in self.requests}
        scored: dict[tuple[str, str], list[int]] = {key: [] for key in self.requests}
        for client, message in self.core.sent:
            if isinstance(message, StepOutputs):
                for output in message.outputs:
                    key = (client, output.request_id)
                    assert not ends[key], "an output after the last one"
                    tokens[key] += output.new_token_ids
                    scored[key] += [rows[0][0] for rows in output.prompt_logprobs or ()]
                    self.check_embedding(key, output)
                    self.check_scores(key, output, scored[key])
                    ends[key] += output.finish_reason is not None
        for key, fields in self.requests.items():
            assert ends[key] == 1 or (key[0] in self.lost and ends[key] == 0), key
            text = [*fields["prompt"], *fields["resume_token_ids"], *tokens[key]]
            for last, token in itertools.pairwise(text):
                assert token in (last % (VOCAB_SIZE - 1) + 1, EOS)
            assert len(tokens[key]) <= (0 if fields["pooling"] else fields["max_tokens"])

    def check_embedding(self, key: tuple[str, str], output: SequenceOutput) -> None:
        """It comes with the end of a prompt that is pooled and was read whole, and never else."""
        fields = self.requests[key]
        if output.embedding is not None:
            assert fields["pooling"] is not None and output.finish_reason == "stop"
            assert array("f", output.embedding).tolist() == [1, len(fields["prompt"])]
        elif fields["pooling"] is not None and output.finish_reason == "stop":
            assert key in self.stopped

    def check_scores(self, key: tuple[str, str], output: SequenceOutput, scored: list[int]) -> None:
        """Each token of a prompt but the first has its logprob once, and before what follows it."""
        fields = self.requests[key]
        if fields["prompt_logprobs"] is None:
            assert output.prompt_logprobs is None
            return
        assert scored == fields["prompt"][1 : 1 + len(scored)]
        assert not output.new_token_ids or len(scored) == len(fields["prompt"]) - 1


def run_many(max_examples: int, stateful_step_count: int) -> None:
    run_state_machine_as_test(
        Interleavings,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=stateful_step_count,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_every_request_ends_once_and_frees_its_blocks_at_every_hook_point() -> None:
    run_many(100, 40)


@pytest.mark.slow
def test_every_request_ends_once_and_frees_its_blocks_in_thousands_of_runs() -> None:
    run_many(5000, 60)
