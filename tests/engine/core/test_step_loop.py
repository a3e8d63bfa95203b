"""The step loop, stepped by hand with a scripted model and a clock that stands still."""

import contextlib
import itertools
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from engine.core.io_thread import ClientGone, ClientSilent, Shutdown
from engine.core.scheduling.scheduler import Scheduler
from engine.core.scheduling.seats import Seats
from engine.core.scheduling.sequence import SampledToken, ScheduledSequence, Sequence, Tokens
from engine.core.step_loop import MAX_TAKEN, STUCK_SECONDS, take
from engine.ipc import Abort, Ping, StepOutputs, Utility, UtilityReply
from tests.engine.helpers.fakes import FakeModel, SteppedCore


def test_a_request_streams_and_ends_once() -> None:
    core = SteppedCore()
    core.add("a", 3, max_tokens=3)
    core.run()
    assert core.tokens("a") == [4, 5, 6]
    assert core.end("a").finish_reason == "length"
    core.check_all_free()


def test_each_client_gets_one_message_per_step_with_only_its_own() -> None:
    core = SteppedCore()
    core.add("a", max_tokens=2, client_id="one")
    core.add("b", max_tokens=2, client_id="one")
    core.add("a", max_tokens=2, client_id="two")
    core.run()
    messages = [m for owner, m in core.sent if owner == "one" and isinstance(m, StepOutputs)]
    assert [len(m.outputs) for m in messages] == [2, 2, 2]  # let in, first token, second
    assert core.tokens("a", "two") == [4, 5]


def test_an_abort_during_the_last_step_wins_over_length() -> None:
    core = SteppedCore()
    core.model.during_step = lambda: core.abort("a")
    core.add("a", max_tokens=1)
    core.run()
    assert core.end("a").finish_reason == "abort"
    assert core.tokens("a") == []
    core.check_all_free()


def test_an_abort_read_before_its_request_ends_it() -> None:
    core = SteppedCore()
    core.core.aborts.append(("me", Abort(["a"])))  # the IO thread was quicker than the step loop
    core.model.during_step = lambda: None
    core.add("a", max_tokens=5)
    core.core.inbox.put(("me", Abort(["a"])))
    core.run()
    assert core.end("a").finish_reason == "abort"
    assert core.model.steps == []


def test_an_id_may_be_used_again_right_after_its_abort() -> None:
    core = SteppedCore()
    core.abort("a")
    core.run()
    core.add("a", max_tokens=2)
    core.run()
    assert core.end("a").finish_reason == "length"


def test_the_clients_reason_is_kept() -> None:
    core = SteppedCore()
    core.add("a", max_tokens=50)
    core.core.step()
    core.abort("a", reason="stop")
    core.run()
    assert core.end("a").finish_reason == "stop"


def test_a_stop_in_a_long_prefill_takes_effect_before_the_next_chunk() -> None:
    core = SteppedCore(max_num_batched_tokens=8)
    core.add("a", 40)
    core.core.step()
    core.abort("a")
    core.run()
    assert core.model.steps == [{"a": 8}]
    core.check_all_free()


def test_a_dead_client_ends_its_requests_and_hears_nothing() -> None:
    core = SteppedCore()
    core.add("a", max_tokens=50)
    core.core.step()
    core.core.inbox.put(ClientGone("me"))
    core.run()
    assert all(output.finish_reason is None for output in core.outputs("a"))
    core.check_all_free()


def test_a_client_that_sends_without_end_delays_no_step() -> None:
    core = SteppedCore()
    core.add("a", max_tokens=5)
    core.core.step()
    handle, handled = core.core._handle_message, 0

    def flood(client_id: str, message: Any) -> None:
        nonlocal handled
        handled += 1
        handle(client_id, message)
        core.core.inbox.put((client_id, message))  # as quickly as they are taken

    # The type of a method cannot be assigned to; the client answers each message with another.
    core.core._handle_message = flood  # type: ignore[method-assign]
    for _ in range(2 * MAX_TAKEN):
        core.core.inbox.put(("flooding", Abort(["x"])))
    for num_tokens in (2, 3, 4):
        core.core.step()
        assert len(core.tokens("a")) == num_tokens
    assert handled == 3 * MAX_TAKEN


def test_a_row_without_finite_logits_ends_alone() -> None:
    core = SteppedCore(
        FakeModel(lambda s: SampledToken(-1, error=("code", "nan")) if s.request_id == "bad" else 5)
    )
    core.add("bad", max_tokens=3)
    core.add("good", max_tokens=3)
    core.run()
    assert core.end("bad").error == ("code", "nan")
    assert core.tokens("good") == [5, 5, 5]


def test_utilities_answer_and_fail_by_name() -> None:
    core = SteppedCore()
    core.add("a", max_tokens=2)
    core.run()
    for number, name in enumerate(["metrics", "check_integrity", "num_unfinished", "nonsense"]):
        core.core.inbox.put(("me", Utility(number, name)))
    core.run()
    replies = [message for _, message in core.sent if isinstance(message, UtilityReply)]
    assert replies[0].value["generation_tokens_total"] == 2
    assert replies[0].value["num_blocks_free"] == 64
    assert [reply.error is None for reply in replies] == [True, True, True, False]


def test_a_failing_forward_pass_ends_the_step_loop() -> None:
    core = SteppedCore(FakeModel(lambda sequence: 1 // 0))
    core.add("a")
    with pytest.raises(ZeroDivisionError):
        core.core.run()


def test_shutdown_leaves_the_loop_also_when_it_arrives_during_a_step() -> None:
    core = SteppedCore()
    core.core.inbox.put(Shutdown())
    core.core.run()
    core = SteppedCore()
    core.model.during_step = lambda: core.core.inbox.put(Shutdown())
    core.add("a", max_tokens=1)
    core.core.run()


def test_pong_tells_how_long_the_round_has_lasted_and_zero_when_idle() -> None:
    core = SteppedCore()
    ages = []

    def during_step() -> None:
        core.time += 3.0
        ages.append(core.core.pong(Ping(1)).loop_age_seconds)

    core.model.during_step = during_step
    core.add("a", max_tokens=1)
    core.run()
    core.core.inbox.put(("me", Utility(1, "num_unfinished")))
    core.core.wait()
    assert ages == [3.0]
    assert core.core.pong(Ping(2)).loop_age_seconds == 0.0


def test_a_wait_that_ends_as_it_begins_does_not_last_for_ever() -> None:
    for _ in range(20_000):  # `SimpleQueue.get` alone waits for ever in one of some 10,000
        with contextlib.suppress(Empty):
            take(SimpleQueue(), 1e-9)


def test_a_paced_answer_lets_the_loop_sleep_until_the_next_tick() -> None:
    core = SteppedCore(pace=20.0)
    core.time = time.monotonic()
    core.add("a", max_tokens=2)
    assert core.core.step() and not core.core.step()
    due = core.scheduler.next_due()
    assert due is not None and 0 < due - core.time <= 0.05
    core.core.wait()  # a real wait of one tick at most
    core.time = due
    assert core.core.step()
    assert core.end("a").finish_reason == "length"


# ---- aborts ------------------------------------------------------------------------------------
def test_aborts_of_unknown_and_ended_requests_change_nothing() -> None:
    core = SteppedCore()
    core.abort("never heard of", "")
    core.add("a", max_tokens=2)
    core.run()
    num_sent = len(core.sent)
    core.abort("a", "a")
    core.abort("a")
    core.run()
    assert len(core.sent) == num_sent
    assert core.end("a").finish_reason == "length"
    assert core.scheduler.totals.aborts == 0


@pytest.mark.parametrize("when", ["queued", "prefill", "decode", "last step"])
@pytest.mark.parametrize(
    "params", [{}, {"logprobs": 3}, {"stop": ["x"]}, {"n": 3}, {"logprobs": 2, "n": 2, "stop": "y"}]
)
def test_an_abort_ends_alike_whatever_was_asked_for(when: str, params: dict[str, Any]) -> None:
    logprobs = [(5, -1.0, 1)] if "logprobs" in params else None
    core = SteppedCore(FakeModel(lambda s: SampledToken(5, logprobs)), max_num_batched_tokens=8)
    names = [f"a{i}" for i in range(params.get("n", 1))]
    for name in names:  # as the client sends siblings
        core.add(name, 20, temperature=1.0, max_tokens=4, **params)
    num_steps = {"queued": 0, "prefill": 1, "decode": 5, "last step": 5}[when]
    for _ in range(num_steps):
        core.core.step()
    if when == "last step":
        core.model.during_step = lambda: core.abort(*names)
    else:
        core.abort(*names)
    core.run()
    assert {core.end(name).finish_reason for name in names} == {"abort"}
    if logprobs and when == "decode":
        assert any(output.logprobs == [logprobs] for output in core.outputs(names[0]))
    core.check_all_free()


def test_an_abort_with_the_pool_exhausted_frees_at_once() -> None:
    core = SteppedCore(num_blocks=8, max_num_seqs=4)
    core.add("a", 30, max_tokens=1)
    core.add("b", prompt=[9] * 30, max_tokens=1)
    core.model.during_step = lambda: core.abort("a")  # nobody steps for it, nobody waits for it
    core.core.step()
    assert core.end("a").finish_reason == "abort"
    assert core.scheduler.blocks.num_free == 8
    core.run()
    assert core.end("b").finish_reason == "length"


def test_a_client_that_is_silent_has_its_requests_ended_and_hears_of_it() -> None:
    core = SteppedCore()
    core.add("a", max_tokens=50)
    core.add("b", max_tokens=2, client_id="other")
    core.core.step()
    core.core.inbox.put(ClientSilent("me"))
    core.run()
    error = core.end("a").error
    assert error is not None and error[0] == "client_silent"
    assert core.end("b", "other").finish_reason == "length"


# ---- faults ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("owner", "place"),
    [
        (Scheduler, "_examine"),
        (Seats, "admit"),
        (Seats, "make_room"),
        (Scheduler, "_take"),
        (Scheduler, "_learn"),
    ],
)
def test_an_exception_in_the_processing_of_one_request_ends_that_request_alone(
    owner: type, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(owner, place)

    def fail_for_bad(self: Any, sequence: Sequence, *args: Any) -> Any:
        if sequence.request_id == "bad":
            raise KeyError("of one request")
        return original(self, sequence, *args)

    monkeypatch.setattr(owner, place, fail_for_bad)
    core = SteppedCore()
    for name in ("good", "bad", "later"):
        core.add(name, max_tokens=4)
    core.run()
    assert core.end("bad").error == ("engine_error", "KeyError in the scheduler")
    assert core.tokens("good") == core.tokens("later") == [4, 5, 6, 7]
    core.check_all_free()


def test_a_poisoned_request_is_refused_or_harmless() -> None:
    core = SteppedCore()
    core.add("nan", arrival_time=float("nan"), max_tokens=2)
    core.add("stop", stop_token_ids=[10**9], min_tokens=1, max_tokens=2)
    core.add("resumed", resume_token_ids=[4] * 500, max_tokens=2)
    core.add("bias", logit_bias={10**9: 1.0})
    core.add("good", max_tokens=2)
    core.run()
    for name in ("nan", "resumed", "good"):
        assert core.end(name).finish_reason == "length"
    for name in ("stop", "bias"):
        assert core.end(name).finish_reason == "error"
    core.check_all_free()


class ShortOfMemory(FakeModel):
    """Has room for a few tokens per step."""

    def __init__(self, max_tokens: int) -> None:
        super().__init__()
        self.max_tokens = max_tokens
        self.num_tokens: list[int] = []
        self.before_failure: Callable[[], None] = lambda: None

    def execute(self, scheduled: list[ScheduledSequence]) -> Tokens:
        self.num_tokens.append(sum(item.num_tokens for item in scheduled))
        if self.num_tokens[-1] > self.max_tokens:
            self.before_failure()
            raise MemoryError
        return super().execute(scheduled)


def test_a_step_without_memory_is_tried_again_half_as_large() -> None:
    model = ShortOfMemory(16)
    core = SteppedCore(model)
    core.add("a", 40, max_tokens=2)
    core.run()
    assert core.tokens("a") == [41, 42]
    assert model.num_tokens == [32, 16, 16, 8, 1]  # and so it stays until the core is idle
    core.check_all_free()
    core.add("b", prompt=[7] * 40, max_tokens=1)
    core.core.step()
    assert model.num_tokens[5:] == [32, 16]


def test_a_step_that_finds_no_memory_twice_ends_its_largest_prompt() -> None:
    model = ShortOfMemory(4)
    core = SteppedCore(model)
    core.add("small", 3, max_tokens=2)
    core.core.step()
    core.add("large", prompt=[7] * 30, max_tokens=2)
    core.run()
    error = core.end("large").error
    assert error is not None and error[0] == "out_of_memory"
    assert core.tokens("small") == [4, 5]
    core.check_all_free()


def test_a_step_that_never_finds_memory_is_fatal() -> None:
    core = SteppedCore(ShortOfMemory(0))
    core.add("a", 30)
    core.add("b", prompt=[7] * 30)
    with pytest.raises(MemoryError):
        core.core.run()
    assert core.end("a").finish_reason == "error"  # the largest, or of two as large the first


def test_an_abort_is_heard_between_two_tries() -> None:
    model = ShortOfMemory(0)
    core = SteppedCore(model)
    core.add("a", 30)
    model.before_failure = lambda: core.abort("a")
    core.run()
    assert core.end("a").finish_reason == "abort"
    core.check_all_free()


def test_a_request_that_waits_in_vain_ends_after_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = SteppedCore()
    admit = Scheduler._admit
    monkeypatch.setattr(  # a bug: the head of the queue never gets in
        Scheduler, "_admit", lambda self, s, now: s.request_id != "a" and admit(self, s, now)
    )
    core.add("a", max_tokens=2)
    core.add("b", max_tokens=2)
    core.core.step()
    core.time += STUCK_SECONDS - 0.1
    core.core.step()
    assert core.outputs("a")[-1].finish_reason is None
    core.time += 0.2
    core.core.wait()  # does not sleep: the watchdog is due
    core.run()
    error = core.end("a").error
    assert error is not None and error[0] == "engine_error"
    assert core.end("b").finish_reason == "length"
    core.check_all_free()


def test_a_pause_and_a_slow_pace_do_not_count_as_stuck() -> None:
    core = SteppedCore(pace=0.01)
    core.add("a", max_tokens=3)
    core.core.step()
    core.core.inbox.put(("me", Utility(1, "pause", ["keep", False])))
    core.add("b", max_tokens=3)
    for _ in range(3):
        core.core.step()
        core.time += STUCK_SECONDS
    assert core.outputs("a")[-1].finish_reason is None
    assert core.outputs("b") == []


def test_an_idle_core_says_so_if_a_block_was_lost(caplog: pytest.LogCaptureFixture) -> None:
    core = SteppedCore()
    core.add("a", max_tokens=1)
    core.core.step()
    block = core.scheduler.blocks._take_free()
    core.core.step()
    assert "idle, but" in caplog.text
    core.scheduler.blocks._reference_counts[block] = 0
    core.scheduler.blocks._add_free(block)


# ---- time --------------------------------------------------------------------------------------
def test_a_maximal_prefill_delays_a_running_stream_by_one_budgeted_step() -> None:
    core = SteppedCore(
        num_blocks=1000, max_model_len=3000, max_num_batched_tokens=512, max_step_seconds=0.03
    )
    times: list[float] = []

    def during_step() -> None:
        step = core.model.steps[-1]
        core.time += 0.002 + 0.0005 * sum(step.values())
        if "stream" in step:
            times.append(core.time)

    core.model.during_step = during_step
    core.add("stream", 64, max_tokens=200, ignore_eos=True)
    core.core.step()
    core.add("prompt", prompt=[9] * 2900, max_tokens=1)
    core.run()
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    num_chunks = sum("prompt" in step for step in core.model.steps)
    assert num_chunks > 40
    assert max(gaps) <= 0.03
    assert min(gaps[: num_chunks - 1]) > 0.02  # and a chunk uses what it has


def test_without_seconds_the_gap_is_one_step_of_the_budget() -> None:
    core = SteppedCore(
        num_blocks=1000, max_model_len=3000, max_num_batched_tokens=512, max_step_seconds=0
    )
    core.add("stream", 64, max_tokens=200, ignore_eos=True)
    core.core.step()
    core.add("prompt", prompt=[9] * 2900, max_tokens=1)
    core.run()
    with_prompt = [step for step in core.model.steps if "prompt" in step]
    assert all(step["stream"] == 1 and sum(step.values()) <= 512 for step in with_prompt)
