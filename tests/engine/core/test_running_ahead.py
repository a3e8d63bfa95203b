"""Steps that are started before the last one has ended: what they waste, and whom they wait for."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.core.scheduling.sequence import (
    UNKNOWN,
    SampledToken,
    ScheduledSequence,
    Sequence,
    Tokens,
)
from engine.grammar.thoughts import ThoughtTokens
from engine.ipc import Utility, UtilityReply
from tests.engine.helpers.fakes import EOS, FakeModel, SteppedCore


class Device(FakeModel):
    """Notes when steps begin and when somebody waits for them."""

    def __init__(self, script: Callable[[Sequence], int | SampledToken] | None = None) -> None:
        super().__init__(script)
        self.events: list[str] = []

    def launch(self, scheduled: list[ScheduledSequence]) -> Callable[[], Tokens]:
        tokens, number = self.execute(scheduled), len(self.steps)
        self.events.append(f"begin {number}")

        def wait() -> Tokens:
            self.events.append(f"end {number}")
            return tokens

        return wait


def test_a_step_begins_before_the_last_one_has_ended() -> None:
    device = Device()
    core = SteppedCore(device, runs_ahead=True)
    core.add("a", 3, max_tokens=3)
    core.run()
    assert core.tokens("a") == [4, 5, 6]
    assert device.events == ["begin 1", "begin 2", "end 1", "begin 3", "end 2", "end 3"]
    core.check_all_free()


def test_otherwise_each_step_ends_first() -> None:
    device = Device()
    core = SteppedCore(device)
    core.add("a", 3, max_tokens=2)
    core.run()
    assert device.events == ["begin 1", "end 1", "begin 2", "end 2"]


def test_prompts_are_read_ahead_chunk_by_chunk() -> None:
    device = Device()
    core = SteppedCore(device, runs_ahead=True, max_num_batched_tokens=4)
    core.add("a", 10, max_tokens=2)
    core.run()
    assert core.tokens("a") == [11, 12]
    assert core.model.steps == [{"a": 4}, {"a": 4}, {"a": 2}, {"a": 1}]
    assert device.events[:3] == ["begin 1", "begin 2", "end 1"]


def test_a_prompt_is_reported_as_read_when_its_chunk_has_ended() -> None:
    device = Device()
    core = SteppedCore(device, runs_ahead=True, max_num_batched_tokens=4)
    core.add("a", 10, max_tokens=2)
    core.run()
    reported = [output.num_computed_tokens for output in core.outputs("a")]
    assert reported == [0, 4, 8, 10, 10]


@pytest.mark.parametrize("budget", [32, 4])
def test_equal_prompts_are_read_once(budget: int) -> None:
    core = SteppedCore(Device(), runs_ahead=True, max_num_batched_tokens=budget)
    for name in "abc":
        core.add(name, 9, max_tokens=3)
    core.run()
    assert all(core.tokens(name) == [10, 11, 12] for name in "abc")
    assert core.scheduler.totals.prompt_tokens == 11  # all of one, and the last of each other


def test_a_stop_token_wastes_one_step_of_its_sequence() -> None:
    core = SteppedCore(Device(lambda s: EOS if s.num_tokens == 5 else 7), runs_ahead=True)
    core.add("a", 3, max_tokens=50)
    core.run()
    assert core.tokens("a") == [7, 7, EOS]
    assert core.end("a").finish_reason == "stop"
    assert len(core.model.steps) == 4
    core.check_all_free()


def test_the_length_of_an_answer_is_known_beforehand() -> None:
    core = SteppedCore(Device(), runs_ahead=True)
    core.add("a", 3, max_tokens=1)
    core.add("b", 3, max_tokens=4)
    core.run()
    assert (core.tokens("a"), core.tokens("b")) == ([4], [4, 5, 6, 7])
    assert [sorted(step) for step in core.model.steps] == [["a", "b"], ["b"], ["b"], ["b"]]


def test_an_abort_ends_at_once_and_frees_its_blocks_after_the_step_in_flight() -> None:
    core = SteppedCore(Device(), runs_ahead=True, num_blocks=8)
    core.add("a", 10, max_tokens=50)
    core.core.step()
    core.core.step()
    core.abort("a")
    assert core.core.step()
    assert core.end("a").finish_reason == "abort"
    assert core.tokens("a") == [11]  # of the step that had ended; the other is thrown away
    assert len(core.model.steps) == 2
    core.run()
    core.check_all_free()


def test_blocks_of_a_sequence_that_ended_are_not_handed_out_while_a_step_writes_them() -> None:
    core = SteppedCore(Device(lambda s: EOS), runs_ahead=True, num_blocks=4)
    core.add("a", 12, max_tokens=4)
    core.add("b", 12, max_tokens=4)
    core.core.step()
    core.core.step()  # the second step of "a" has begun, and its first token has ended it
    assert core.end("a").finish_reason == "stop"
    assert core.scheduler.blocks.num_free == 0 and core.scheduler.blocks.num_soon_free == 4
    core.core.step()
    assert core.model.steps == [{"a": 12}, {"a": 1}]
    core.run()
    assert core.tokens("b") == [EOS]
    core.check_all_free()


@pytest.mark.parametrize(
    "params",
    [
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.5},
        {"bad_words_token_ids": [[1, 2]]},
        {"logprobs": 1},
        {"trace_decode_token_ids": [4, 5, 6]},
        {"thinking_token_budget": 9, "thought_tokens": ThoughtTokens([])},
    ],
)
def test_who_needs_the_last_token_here_is_waited_for(params: dict[str, Any]) -> None:
    device = Device()
    core = SteppedCore(device, runs_ahead=True)
    core.add("a", 3, max_tokens=3, **params)
    core.run()
    assert core.tokens("a") == [4, 5, 6]
    assert device.events == ["begin 1", "end 1", "begin 2", "end 2", "begin 3", "end 3"]


def test_a_prompt_whose_end_is_not_in_sight_makes_nobody_wait() -> None:
    device = Device()
    core = SteppedCore(device, runs_ahead=True, max_num_batched_tokens=4)
    core.add("a", 10, max_tokens=1, presence_penalty=0.5)
    core.run()
    assert device.events == ["begin 1", "begin 2", "end 1", "begin 3", "end 2", "end 3"]


def test_a_failed_row_ends_its_sequence_and_what_was_computed_after_it_is_thrown_away() -> None:
    def script(sequence: Sequence) -> int | SampledToken:
        if sequence.request_id == "bad" and sequence.num_tokens == 4:
            return SampledToken(-1, error=("code", "no finite logits"))
        return 7

    core = SteppedCore(Device(script), runs_ahead=True)
    core.add("bad", 3, max_tokens=9)
    core.add("good", 3, max_tokens=3)
    core.run()
    assert (core.tokens("bad"), core.tokens("good")) == ([7], [7, 7, 7])
    assert core.end("bad").error == ("code", "no finite logits")
    core.check_all_free()


def test_preempted_sequences_get_their_tokens_again() -> None:
    core = SteppedCore(Device(), runs_ahead=True, num_blocks=7, max_model_len=24)
    for name in "ab":
        core.add(name, 8, max_tokens=12)
    core.run()
    assert core.tokens("a") == core.tokens("b") == list(range(9, 21))
    assert core.scheduler.totals.preemptions > 0
    core.check_all_free()


@pytest.mark.parametrize("event", ["abort", "preempt"])
def test_what_comes_while_a_step_is_started_is_not_expected_from_it(event: str) -> None:
    device = Device()
    core = SteppedCore(device, runs_ahead=True)
    core.add("a", 3, max_tokens=4)
    core.add("b", 3, max_tokens=4)

    def come() -> None:
        device.during_step = lambda: None
        if event == "abort":
            core.scheduler.abort("me", ["a"])
        else:
            core.scheduler.preempt_all()

    device.during_step = come
    core.core.step()
    core.scheduler.check_integrity()
    core.run()
    assert core.tokens("a") == ([] if event == "abort" else [4, 5, 6, 7])
    assert core.tokens("b") == [4, 5, 6, 7]
    core.check_all_free()


def test_without_memory_the_step_in_flight_ends_before_a_smaller_one_begins() -> None:
    class Full(Device):
        def launch(self, scheduled: list[ScheduledSequence]) -> Callable[[], Tokens]:
            if sum(item.num_tokens for item in scheduled) > 8:
                self.events.append("full")
                raise MemoryError
            return super().launch(scheduled)

    device = Full()
    core = SteppedCore(device, runs_ahead=True)
    core.add("a", 4, max_tokens=9)
    core.core.step()
    core.add("b", prompt=list(range(501, 513)), max_tokens=2)
    core.run()
    assert device.events[:5] == ["begin 1", "full", "end 1", "begin 2", "begin 3"]
    assert core.tokens("a") == list(range(5, 14)) and core.tokens("b") == [513, 514]
    core.check_all_free()


def test_a_call_is_answered_between_two_steps() -> None:
    device = Device()
    core = SteppedCore(device, runs_ahead=True)
    core.add("a", 3, max_tokens=6)
    core.core.step()
    core.core.inbox.put(("me", Utility(1, "pause", ["keep", False])))
    core.core.step()
    assert device.events == ["begin 1", "end 1"]
    assert isinstance(core.sent[-1][1], UtilityReply)
    assert not core.core.step()
    core.core.inbox.put(("me", Utility(2, "resume")))
    core.run()
    assert core.tokens("a") == [4, 5, 6, 7, 8, 9]


def test_a_step_is_as_long_as_it_ran_and_not_as_it_waited() -> None:
    """Each of these takes a second, and is started when the one before begins."""

    class Slow(Device):
        def launch(self, scheduled: list[ScheduledSequence]) -> Callable[[], Tokens]:
            wait = super().launch(scheduled)

            def wait_a_second() -> Tokens:
                core.time += 1.0
                return wait()

            return wait_a_second

    core = SteppedCore(Slow(), runs_ahead=True)
    core.add("a", 3, max_tokens=4)
    core.run()
    metrics = core.core.metrics
    assert metrics.decode_steps.sum_seconds == 3.0 and metrics.other_steps.sum_seconds == 1.0


def test_what_stands_for_an_unknown_token_is_never_sent() -> None:
    core = SteppedCore(Device(lambda s: 7), runs_ahead=True)
    core.add("a", 3, max_tokens=20)
    core.run()
    assert UNKNOWN not in core.tokens("a")
