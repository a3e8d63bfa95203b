"""R4, R6, R37: whichever event comes at whichever point of a step, each request ends once, cleanly.

A state machine of hypothesis plays the clients of one core: it plans what comes at each hook point
of the next step, steps, looks at the books, and at the end lets everything drain. What was not
ended before its time must be what it is alone. A failing sequence of rules is shrunk and printed as
a program; `INTERLEAVINGS_SEED` repeats a run.
"""

import logging
import os
import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.beam_search import BeamSearchParams
from engine.core.io_thread import ClientGone, ClientSilent
from engine.ipc import CoreMessage, SequenceOutput, StepOutputs, Utility, UtilityReply
from engine.lora import LoRARequest
from engine.pooling import PoolingParams
from engine.repetition import RepetitionDetectionParams
from tests.engine.helpers.interleavings.expected import (
    FIRST_OF_CYCLES,
    expected_answer,
    expected_numbers,
)
from tests.engine.helpers.interleavings.forms import FORMS
from tests.engine.helpers.interleavings.hooked_core import Hook, HookedCore
from tests.engine.helpers.interleavings.stepped_search import SteppedSearch

NUM_CLIENTS = 3
MAX_DRAIN_STEPS = 3000

ADAPTERS = [LoRARequest(f"a{n}", n, f"/{n}", f"{n:064}") for n in (1, 2, 3)]
HOOKS = st.sampled_from(Hook)
CLIENTS = st.integers(0, NUM_CLIENTS - 1)
FIRST_TOKENS = st.sampled_from([1, 1, 1, 100, 200, FIRST_OF_CYCLES])  # prompts share prefixes
POOLED = [
    PoolingParams(),
    PoolingParams(pooling_type="MEAN"),
    PoolingParams(task="classify", pooling_type="CLS"),
    PoolingParams(task="classify", pooling_type="MEAN"),
    PoolingParams(task="score"),
]
# What is asked of an answer beside its tokens, ends it before its time, or changes it.
ANSWERS: list[dict[str, Any]] = [
    {},
    {},
    {"prompt_logprobs": 0},
    {"repetition_detection": RepetitionDetectionParams(4, 2, 2)},
    {"repetition_detection": RepetitionDetectionParams(3, 0, 3)},
    {"extra_args": {"follow": 1}},
    {"extra_args": {"fault": "raise"}},
    {"extra_args": {"fault": "nothing left"}},
    *({"structured_outputs": form} for form in FORMS),
]
WITH_FORMS: list[dict[str, Any]] = [{}, *({"structured_outputs": form} for form in FORMS)]
REQUEST: dict[str, Any] = {
    "hook": HOOKS,
    "client": CLIENTS,
    "num_siblings": st.sampled_from([1, 1, 1, 2, 3]),
    "num_prompt": st.integers(0, 41),
    "first": FIRST_TOKENS,
    "max_tokens": st.integers(1, 20),
    "priority": st.integers(-1, 1),
    "salt": st.sampled_from(["", "salt"]),
    "num_resumed": st.sampled_from([0, 0, 0, 1, 7]),
    "ignore_eos": st.booleans(),
    "wanted": st.sampled_from([*ANSWERS, *POOLED]),
    "lora": st.sampled_from([None, None, *ADAPTERS]),
}
DISTURBED = ("abort", "error")  # finish reasons of an answer that is not whole


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
                {"sleep_after_seconds": 1.0},
            ]
        ),
        runs_ahead=st.booleans(),
        crowd=st.lists(st.fixed_dictionaries(REQUEST), max_size=4),
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
        crowd: list[dict[str, Any]],
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
        self.core.core.send = self.send
        self.plans: dict[Hook, list[Callable[[], None]]] = {hook: [] for hook in Hook}
        self.clients = [f"c{number}" for number in range(NUM_CLIENTS)]  # who lives, and how called
        self.num_clients = NUM_CLIENTS
        self.requests: dict[tuple[str, str], dict[str, Any]] = {}
        self.open: list[tuple[str, str]] = []  # may have ended by now
        self.lost: set[str] = set()  # clients that are gone
        self.stopped: set[tuple[str, str]] = set()  # requests that their clients may have ended
        self.searches: list[tuple[str, SteppedSearch]] = []
        self.calls: dict[int, str] = {}  # by whom
        for request in crowd:
            self.add(**request)

    @property
    def has_work(self) -> bool:
        return bool(self.core.scheduler.sequences) or any(self.plans.values())

    def at(self, hook: Hook) -> None:
        plans, self.plans[hook] = self.plans[hook], []
        for plan in plans:
            plan()

    def send(self, client: str, message: CoreMessage) -> None:
        self.core.sent.append((client, message))
        if isinstance(message, StepOutputs) and client not in self.lost:
            for output in message.outputs:
                for searcher, search in self.searches:
                    if searcher == client:
                        search.take(output)

    # ---- what may come, at any hook

    @rule(**REQUEST)
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
        wanted: dict[str, Any] | PoolingParams,
        lora: LoRARequest | None,
    ) -> None:
        name, number = self.clients[client], len(self.requests)
        own = {"pooling": wanted} if isinstance(wanted, PoolingParams) else wanted
        if "repetition_detection" in own:
            first = FIRST_OF_CYCLES
        prompt = list(range(first, first + num_prompt))
        resumed = [*range(first + num_prompt, first + num_prompt + num_resumed)]
        fields: dict[str, Any] = {
            "prompt": prompt,
            "resume_token_ids": resumed,
            "max_tokens": max_tokens,
            "ignore_eos": ignore_eos,
            "lora": lora,
            **own,
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

    @rule(
        hook=HOOKS,
        client=CLIENTS,
        num_prompt=st.integers(1, 20),
        first=FIRST_TOKENS,
        width=st.integers(1, 3),
        max_tokens=st.integers(1, 5),
        lora=st.sampled_from([None, None, *ADAPTERS]),
    )
    def search(
        self,
        hook: Hook,
        client: int,
        num_prompt: int,
        first: int,
        width: int,
        max_tokens: int,
        lora: LoRARequest | None,
    ) -> None:
        name = self.clients[client]

        def ask(request_id: str, fields: dict[str, Any]) -> None:
            if name in self.lost:
                return
            key = (name, request_id)
            self.requests[key] = {"resume_token_ids": [], **fields}
            self.open.append(key)
            self.core.add(request_id, client_id=name, lora=lora, **fields)

        prompt = list(range(first, first + num_prompt))
        params = BeamSearchParams(width, max_tokens)
        search = SteppedSearch(f"s{len(self.searches)}", prompt, params, ask)
        self.searches.append((name, search))
        self.plans[hook].append(search.begin_step)

    @precondition(lambda self: self.open)
    @rule(
        hook=HOOKS, data=st.data(), num=st.integers(1, 4), reason=st.sampled_from(["abort", "stop"])
    )
    def abort(self, hook: Hook, data: st.DataObject, num: int, reason: str) -> None:
        for _ in range(num):
            client, request_id = data.draw(st.sampled_from(self.open))
            if reason == "stop":
                self.stopped.add((client, request_id))
            abort = partial(self.core.abort, request_id, client_id=client, reason=reason)
            self.plans[hook].append(abort)

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
        self.plan_call(hook, "caller", *call)

    @precondition(lambda self: self.core.scheduler.sequences)
    @rule(
        num_before=st.integers(0, 2),
        hook=HOOKS,
        client=st.sampled_from([None, None, 0]),  # with whom the sleep ends
        level=st.integers(0, 2),
        mode=st.sampled_from(["abort", "wait", "keep", "keep"]),
        wakes=st.sampled_from([True, True, False]),
    )
    def sleep(
        self, num_before: int, hook: Hook, client: int | None, level: int, mode: str, wakes: bool
    ) -> None:
        """After some steps of what is here; and waking up, as soon as anything may come again."""
        self.go_on(num_before)
        name = "caller" if client is None else self.clients[client]
        self.plan_call(hook, name, "sleep", level, mode)
        if wakes:
            self.plan_call(Hook.AFTER_UPDATE, "caller", "wake_up")
            self.plans[Hook.AFTER_UPDATE].append(self.core.memory.come)

    @precondition(lambda self: self.core.scheduler.sequences)
    @rule(
        hook=HOOKS,
        later=HOOKS,
        tags=st.sampled_from([None, None, ["weights"], ["kv_cache"], ["scheduling"]]),
        is_short=st.sampled_from([False, False, True]),
    )
    def wake_up(self, hook: Hook, later: Hook, tags: list[str] | None, is_short: bool) -> None:
        """It is asked for at one hook, and at the other the memory is here, or is not to be had."""
        self.plan_call(hook, "caller", "wake_up", *([] if tags is None else [tags]))

        def come() -> None:
            self.core.memory.is_short = is_short
            self.core.memory.come()
            self.core.memory.is_short = False

        self.plans[later].append(come)

    def plan_call(self, hook: Hook, caller: str, name: str, *args: Any) -> None:
        number = len(self.calls) + 1
        self.calls[number] = caller
        message = Utility(number, name, list(args))

        def come() -> None:
            if caller not in self.lost:
                self.core.core.inbox.put((caller, message))

        self.plans[hook].append(come)

    @rule(num_failures=st.integers(1, 2))
    def lack_memory(self, num_failures: int) -> None:
        self.core.fails_next = num_failures

    @rule(num_full=st.integers(0, 3), gone=st.sampled_from([(), (), (1,), (2, 3)]))
    def change_shelf(self, num_full: int, gone: tuple[int, ...]) -> None:
        """Adapters find no room for a while; some cannot be read."""
        self.core.shelf.num_full = num_full
        self.core.shelf.gone = set(gone)

    @rule(hook=HOOKS, num=st.integers(1, 4))
    def have_grammars_made(self, hook: Hook, num: int) -> None:
        self.plans[hook].append(partial(self.core.forms.come, num))

    # ---- time goes on

    @precondition(lambda self: self.has_work or self.core.scheduler.config.sleep_after_seconds)
    @rule(
        num=st.integers(1, 5),
        seconds=st.sampled_from([0.0, 0.1, 0.6, 3.0]),
        num_grammars=st.sampled_from([9, 9, 1, 0]),
        death=st.sampled_from([None, None, *Hook]),
    )
    def step(self, num: int, seconds: float, num_grammars: int, death: Hook | None) -> None:
        self.core.forms.come(num_grammars)
        self.go_on(num - 1, seconds)
        if death is not None:
            self.plans[death].append(self.core.forms.die)
        self.go_on(1, seconds)

    def go_on(self, num_steps: int, seconds: float = 0.0) -> None:
        for _ in range(num_steps):
            self.core.time += seconds
            self.try_step()

    def come_to_all_hooks(self) -> None:
        for hook in Hook:
            self.at(hook)

    def try_step(self) -> bool:
        if self.core.has_no_step:  # and so none of its hooks
            self.come_to_all_hooks()
        try:
            return self.core.step()
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
            for name in ("wake_up", "resume"):
                self.plan_call(Hook.AFTER_UPDATE, "caller", name)
            self.come_to_all_hooks()
            for _ in range(MAX_DRAIN_STEPS):
                self.core.time += 0.01
                has_step = self.try_step()
                self.core.memory.come()
                self.core.forms.come(len(self.requests))
                if not has_step and self.core.core.inbox.empty():
                    break
            else:
                raise AssertionError(f"still busy: {self.core.scheduler.stats()}")
        self.core.scheduler.check_idle()
        assert not self.core.core.aborts
        assert not self.core.core.is_waking and not self.core.memory.is_in_use
        self.check_ends()
        self.check_replies()
        for client, search in self.searches:
            assert search.is_over or client in self.lost

    def check_replies(self) -> None:
        """One for each call, but of clients that are gone."""
        replies = Counter(
            message.call_id
            for client, message in self.core.sent
            if isinstance(message, UtilityReply) and message.call_id
        )
        for number, caller in self.calls.items():
            assert replies[number] == 1 or (caller in self.lost and not replies[number])

    def check_ends(self) -> None:
        """One terminal output for each request of a living client, and the right tokens before."""
        ends: dict[tuple[str, str], SequenceOutput] = {}
        tokens: dict[tuple[str, str], list[int]] = {key: [] for key in self.requests}
        scored: dict[tuple[str, str], list[int]] = {key: [] for key in self.requests}
        for client, message in self.core.sent:
            if isinstance(message, StepOutputs):
                for output in message.outputs:
                    key = (client, output.request_id)
                    assert key not in ends, "an output after the last one"
                    # Which the watchdog says of one that was forgotten.
                    assert output.error is None or "be scheduled" not in output.error[1], key
                    tokens[key] += output.new_token_ids
                    scored[key] += [rows[0][0] for rows in output.prompt_logprobs or ()]
                    self.check_embedding(key, output)
                    self.check_scores(key, output, scored[key])
                    if output.finish_reason is not None:
                        ends[key] = output
        for key, fields in self.requests.items():
            assert key in ends or key[0] in self.lost, key
            if fields.get("pooling"):
                assert not tokens[key]
            else:
                self.check_answer(key, tokens[key], ends.get(key))

    def check_answer(
        self, key: tuple[str, str], tokens: list[int], end: SequenceOutput | None
    ) -> None:
        """Its tokens are those that it has alone; all of them, if nobody ended it."""
        expected, reason = expected_answer(self.requests[key], self.core.scheduler.max_model_len)
        assert tokens == expected[: len(tokens)], key
        if end is None or end.finish_reason in DISTURBED or key in self.stopped:
            is_faulty = end is not None and end.error and end.error[0] == "logits_processor_failed"
            assert not is_faulty or (tokens, "error") == (expected, reason), key
        else:
            assert (tokens, end.finish_reason) == (expected, reason), key

    def check_embedding(self, key: tuple[str, str], output: SequenceOutput) -> None:
        """It comes with the end of a prompt that is pooled and was read whole, and never else."""
        prompt, pooling = self.requests[key]["prompt"], self.requests[key].get("pooling")
        if output.embedding is not None:
            assert pooling is not None and output.finish_reason == "stop"
            expected = expected_numbers(prompt, pooling)
            assert array("f", output.embedding).tolist() == pytest.approx(expected, rel=1e-6)
        elif pooling is not None and output.finish_reason == "stop":
            assert key in self.stopped

    def check_scores(self, key: tuple[str, str], output: SequenceOutput, scored: list[int]) -> None:
        """Each token of a prompt but the first has its logprob once, and before what follows it."""
        fields = self.requests[key]
        if fields.get("prompt_logprobs") is None:
            assert output.prompt_logprobs is None
            return
        assert scored == fields["prompt"][1 : 1 + len(scored)]
        assert not output.new_token_ids or len(scored) == len(fields["prompt"]) - 1


class InterleavedForms(Interleavings):
    """The same of answers that mostly keep to a form, whose masker dies, and with less beside."""

    # Rules of the other machine that this one goes without: so hypothesis drops them.
    search = sleep = silence_client = change_shelf = None  # type: ignore[assignment]
    wake_up = call = lose_client = None  # type: ignore[assignment]

    @rule(**(REQUEST | {"wanted": st.sampled_from(WITH_FORMS)}))
    def add(self, **request: Any) -> None:
        super().add(**request)

    @rule(num=st.integers(2, 9), deaths=st.lists(HOOKS, max_size=2), is_made=st.booleans())
    def go_on_with_deaths(self, num: int, deaths: list[Hook], is_made: bool) -> None:
        for place in range(num):
            self.core.forms.come(9 if is_made or place == 0 else 0)
            for hook in deaths[place : place + 1]:
                self.plans[hook].append(self.core.forms.die)
            self.try_step()


@pytest.fixture(autouse=True)
def planned_faults_are_not_logged() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def run_many(
    max_examples: int,
    stateful_step_count: int,
    machine: type[Interleavings] = Interleavings,
) -> None:
    number = int(os.environ.get("INTERLEAVINGS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"INTERLEAVINGS_SEED={number}")
    run_state_machine_as_test(
        seed(number)(machine),
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


def test_so_it_is_of_answers_that_keep_to_forms() -> None:
    run_many(60, 50, InterleavedForms)


@pytest.mark.slow
def test_so_it_is_of_answers_that_keep_to_forms_in_thousands_of_runs() -> None:
    run_many(3000, 60, InterleavedForms)
