"""A sequence that waits for its grammar: it keeps its turn, and nobody waits for it."""

import random

import pytest

from engine.core.io_thread import GrammarsReady
from engine.core.scheduling.sequence import SampledToken, Sequence
from engine.grammar.params import StructuredOutputsParams
from tests.engine.helpers.fakes import FakeModel, SteppedCore, make_scheduler
from tests.engine.helpers.scheduler_run import Run

FORM = StructuredOutputsParams(regex="a+")
REFUSED = ("grammar_refused", "it is none")


def make_waiting(run: Run, name: str, **fields: object) -> Sequence:
    run.add(name, structured_outputs=FORM, **fields)
    sequence = run.scheduler.sequences["me", name]
    sequence.waits_for_grammar = True
    return sequence


def test_others_are_let_in_before_one_that_waits_for_its_grammar() -> None:
    run = Run(make_scheduler(max_num_seqs=1))
    waiting = make_waiting(run, "a", max_tokens=2)
    run.add("b", max_tokens=2)
    assert run.step() == {"b": 3}
    assert not waiting.is_running
    run.scheduler.let_go_on(waiting, None, [])
    while run.scheduler.sequences:
        run.step()
    assert run.ends() == {"a": "length", "b": "length"}


def test_it_keeps_its_turn() -> None:
    run = Run(make_scheduler(max_num_seqs=1))
    waiting = make_waiting(run, "a", max_tokens=2)
    for name in "bc":
        run.add(name, max_tokens=2)
    assert run.step() == {"b": 3}
    run.scheduler.let_go_on(waiting, None, [])
    order = [name for _ in range(8) for name in run.step()]
    assert order.index("a") < order.index("c")


def test_it_may_be_aborted_meanwhile() -> None:
    run = Run(make_scheduler())
    waiting = make_waiting(run, "a")
    assert run.step() == {}
    run.scheduler.abort("me", ["a"])
    run.scheduler.let_go_on(waiting, None, ["too late"])
    assert run.ends() == {"a": "abort"}
    run.scheduler.check_idle()


def test_one_that_can_have_no_grammar_ends_with_the_reason() -> None:
    run = Run(make_scheduler())
    waiting = make_waiting(run, "a")
    run.scheduler.let_go_on(waiting, REFUSED, [])
    assert run.ends() == {"a": "error"}
    assert run.outputs[-1].error == REFUSED


def test_its_caller_hears_the_warnings_once() -> None:
    run = Run(make_scheduler())
    waiting = make_waiting(run, "a", max_tokens=2)
    run.scheduler.let_go_on(waiting, None, ["no uniqueItems"])
    while run.scheduler.sequences:
        run.step()
    assert [o.warnings for o in run.outputs if o.warnings] == [["no uniqueItems"]]


def test_the_loop_sleeps_while_all_wait_and_no_watchdog_ends_them() -> None:
    core = SteppedCore()
    core.add("a", structured_outputs=FORM, max_tokens=2)
    core.core._prepare = lambda sequence: setattr(sequence, "waits_for_grammar", True)
    for _ in range(3):
        assert not core.core.step()
        core.time += 60
    assert not core.scheduler.is_blocked
    (sequence,) = core.scheduler.sequences.values()
    core.core._ready_grammars = lambda: [(sequence, None, [])]
    core.core.inbox.put(GrammarsReady())
    core.run()
    assert core.end("a").finish_reason == "length"


def test_a_postponed_token_changes_nothing_and_comes_later() -> None:
    postponed = iter([True, False, True, True, False, False])

    def script(sequence: Sequence) -> SampledToken:
        if next(postponed):
            return SampledToken(-1, is_postponed=True)
        return SampledToken(sequence.token_ids[-1] + 1)

    run = Run(make_scheduler(), FakeModel(script))
    run.add("a", structured_outputs=FORM, max_tokens=3)
    while run.scheduler.sequences:
        run.step()
    assert run.tokens("a") == [4, 5, 6]
    run.scheduler.check_idle()


def test_a_running_one_that_waits_again_is_not_computed() -> None:
    run = Run(make_scheduler())
    for name in "ab":
        run.add(name, structured_outputs=FORM, max_tokens=9)
    run.step()
    sequence = run.scheduler.sequences["me", "a"]
    sequence.waits_for_grammar = True
    assert run.step() == {"b": 1}
    run.scheduler.preempt_all()
    assert run.step().keys() == {"b"}
    run.scheduler.let_go_on(sequence, None, [])
    assert "a" in run.step()


def test_the_loop_does_not_wake_for_the_pace_of_one_that_waits() -> None:
    run = Run(make_scheduler(pace=10.0))
    run.add("a", structured_outputs=FORM, max_tokens=9)
    run.step()
    assert run.scheduler.next_due() is not None
    (sequence,) = run.scheduler.running
    sequence.waits_for_grammar = True
    assert run.scheduler.next_due() is None


def test_a_token_after_which_nothing_may_follow_ends_the_answer() -> None:
    run = Run(make_scheduler(), FakeModel(lambda sequence: SampledToken(7, is_end=True)))
    run.add("a", structured_outputs=FORM, max_tokens=1, min_tokens=1, ignore_eos=True)
    run.step()
    assert run.ends() == {"a": "stop"}


@pytest.mark.parametrize("seed", range(40))
def test_any_interleaving_gives_every_answer_its_tokens(seed: int) -> None:
    """Waits, aborts, postponed tokens and preemptions at random: nothing is lost or leaks."""
    rng = random.Random(seed)

    def script(sequence: Sequence) -> SampledToken:
        if sequence.params.structured_outputs is not None and rng.random() < 0.3:
            sequence.waits_for_grammar = rng.random() < 0.5
            return SampledToken(-1, is_postponed=True)
        return SampledToken(sequence.token_ids[-1] % 900 + 1)

    run = Run(make_scheduler(num_blocks=12, max_num_seqs=4), FakeModel(script))
    aborted, refused, lengths = set(), set(), {}
    for number in range(30):
        name = f"r{number}"
        lengths[name] = rng.randrange(1, 12)
        fields = {"max_tokens": lengths[name], "cache_salt": rng.choice(["", "u", "v"])}
        if rng.random() < 0.6:
            make_waiting(run, name, num_prompt_tokens=rng.randrange(1, 20), **fields)
        else:
            run.add(name, rng.randrange(1, 20), **fields)
        for _ in range(rng.randrange(3)):
            run.step()
            for sequence in list(run.scheduler.sequences.values()):
                chance = rng.random()
                if chance < 0.03:
                    aborted.add(sequence.request_id)
                    run.scheduler.abort("me", [sequence.request_id])
                elif sequence.waits_for_grammar and chance < 0.05:
                    refused.add(sequence.request_id)
                    run.scheduler.let_go_on(sequence, REFUSED, [])
                elif sequence.waits_for_grammar and chance < 0.5:
                    run.scheduler.let_go_on(sequence, None, [])
                elif chance > 0.99:
                    run.scheduler.preempt_all()
    while run.scheduler.sequences:
        run.step()
        for sequence in list(run.scheduler.sequences.values()):
            if sequence.waits_for_grammar and rng.random() < 0.5:
                run.scheduler.let_go_on(sequence, None, [])
    run.scheduler.check_idle()
    ends = run.ends()
    assert set(ends) == set(lengths)
    for name, length in lengths.items():
        expected = "abort" if name in aborted else "error" if name in refused else "length"
        assert ends[name] == expected
        if expected == "length":
            assert len(run.tokens(name)) == length
