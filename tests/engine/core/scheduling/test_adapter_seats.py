"""How many adapters run at a time, and who waits for it."""

from collections.abc import Collection
from typing import Any

import msgspec
import pytest

from engine.core.scheduling.scheduler import Scheduler
from engine.core.scheduling.sequence import Sequence
from engine.lora import LoRARequest
from tests.engine.helpers.fakes import SteppedCore, make_scheduler
from tests.engine.helpers.scheduler_run import Run


def lora(number: int, content_hash: str = "") -> LoRARequest:
    return LoRARequest(f"adapter {number}", number, f"/{number}", content_hash or f"{number:064}")


class Source:
    """Has every adapter but those of `bad`; `is_full` lets no other in than those in use."""

    def __init__(self) -> None:
        self.bad: set[int] = set()
        self.is_full = False

    def take(self, request: LoRARequest, in_use: Collection[int]) -> Any | None:
        if request.lora_int_id in self.bad:
            raise ValueError("/7: is a link")
        if self.is_full and in_use and request.lora_int_id not in in_use:
            return None
        return f"loaded {request.lora_int_id}"


@pytest.fixture
def source() -> Source:
    return Source()


def run_with(source: Source | None, max_loras: int = 1, **settings: Any) -> Run:
    made = make_scheduler(**settings)
    config = msgspec.structs.replace(made.config, max_loras=max_loras)
    return Run(Scheduler(config, made.blocks, made.vocab_size, made.eos_token_ids, adapters=source))


def sequence(run: Run, name: str) -> Sequence:
    return run.scheduler.sequences["me", name]


def finish(run: Run) -> list[str]:
    """Step to the end; the names in the order of their ends."""
    while run.scheduler.sequences:
        run.step()
    return list(run.ends())


def test_so_many_different_adapters_run_at_a_time(source: Source) -> None:
    run = run_with(source, max_loras=2)
    for name, number in (("a", 1), ("b", 2), ("c", 3), ("d", 1)):
        run.add(name, lora=lora(number), max_tokens=4)
    run.add("base", max_tokens=4)
    assert set(run.step()) == {"a", "b", "base"}  # d does not get in front of c
    assert sequence(run, "a").adapter == "loaded 1" and sequence(run, "base").adapter is None
    assert finish(run)[:3] == ["a", "b", "base"]
    assert set(run.ends().values()) == {"length"}


def test_another_adapter_under_the_number_of_one_that_runs_counts_as_one_more(
    source: Source,
) -> None:
    run = run_with(source)
    run.add("old", lora=lora(1, "old"), max_tokens=3)
    run.add("new", lora=lora(1, "new"), max_tokens=3)
    run.add("base", max_tokens=3)
    assert set(run.step()) == {"old", "base"}
    assert finish(run) == ["old", "base", "new"]


def test_the_next_round_comes_at_once_after_one_whose_adapter_cannot_be_read(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    core = SteppedCore(adapter_source=source, max_num_seqs=1)
    source.bad = {7}
    for name in ("a", "b"):
        core.add(name, lora=lora(7))
    core.add("c", lora=lora(1), max_tokens=1)
    core.run()
    ends = [core.outputs(name)[-1] for name in ("a", "b", "c")]
    assert [end.finish_reason for end in ends] == ["error", "error", "length"]
    assert not caplog.records  # nothing was found to be stuck


def test_one_that_waits_for_its_adapter_waits_for_no_later_one(source: Source) -> None:
    run = run_with(source)
    run.add("first", lora=lora(1), max_tokens=3)
    run.step()
    run.add("other", lora=lora(2), max_tokens=3)
    for number in range(5):
        run.add(f"same {number}", lora=lora(1), max_tokens=3)
    ends = finish(run)
    assert ends[:2] == ["first", "other"]


@pytest.mark.parametrize("salt", ["", "me"])
def test_one_without_an_adapter_does_not_wait_for_any_number_that_do(
    source: Source, salt: str
) -> None:
    run = run_with(source, max_num_seqs=4)
    run.add("first", lora=lora(1), cache_salt=salt, max_tokens=9)
    run.step()
    for number in range(9):
        run.add(f"other {number}", lora=lora(2), cache_salt=salt, max_tokens=2)
    run.add("theirs", lora=lora(2), cache_salt="somebody else", max_tokens=2)
    run.add("base", cache_salt=salt, max_tokens=2)
    assert finish(run)[:2] == ["base", "first"]


def test_the_most_urgent_that_waits_for_an_adapter_is_the_first_to_get_it(source: Source) -> None:
    run = run_with(source, max_num_seqs=4, scheduling_policy="priority")
    run.add("first", lora=lora(1), max_tokens=2)
    run.step()
    run.add("later", lora=lora(2), priority=1, max_tokens=2)
    run.add("urgent", lora=lora(1), priority=-1, max_tokens=3)
    assert set(run.step()) == {"first", "urgent"}
    assert finish(run) == ["first", "urgent", "later"]


def test_an_adapter_for_which_there_is_no_memory_waits_for_those_in_use(source: Source) -> None:
    source.is_full = True
    run = run_with(source, max_loras=2)
    run.add("first", lora=lora(1), max_tokens=3)
    run.add("second", lora=lora(2), max_tokens=3)
    assert set(run.step()) == {"first"}
    assert finish(run) == ["first", "second"]


def test_an_adapter_that_cannot_be_read_ends_its_request_alone(source: Source) -> None:
    source.bad = {7}
    run = run_with(source, max_loras=2)
    for name, number in (("good", 1), ("bad", 7), ("later", 2)):
        run.add(name, lora=lora(number), max_tokens=3)
    finish(run)
    assert run.ends() == {"good": "length", "bad": "error", "later": "length"}
    (error,) = [output.error for output in run.outputs if output.error]
    assert error == ("lora_unavailable", "/7: is a link")


@pytest.mark.parametrize(
    ("has_adapters", "content_hash", "error"),
    [
        (False, "", ("lora_unavailable", "the engine was started without enable_lora")),
        (True, "none", ("invalid_request", "lora has no content_hash")),
    ],
)
def test_what_can_never_have_its_adapter_ends_at_once(
    has_adapters: bool, content_hash: str, error: tuple[str, str], source: Source
) -> None:
    run = run_with(source if has_adapters else None)
    asked = msgspec.structs.replace(lora(1), content_hash="") if content_hash else lora(1)
    run.add("r", lora=asked)
    assert not run.step()
    assert [output.error for output in run.outputs] == [error]


def test_an_abort_while_it_waits_for_its_adapter_lets_the_next_one_in(source: Source) -> None:
    run = run_with(source)
    run.add("first", lora=lora(1), max_tokens=9)
    run.add("other", lora=lora(2), max_tokens=3)
    run.add("same", lora=lora(1), max_tokens=3)
    run.step()
    run.scheduler.abort("me", ["other"])
    assert set(run.step()) == {"first", "same"}
    finish(run)
    assert run.ends() == {"first": "length", "other": "abort", "same": "length"}


def test_a_preempted_request_goes_on_with_its_adapter_though_it_was_removed(
    source: Source,
) -> None:
    run = run_with(source)
    run.add("a", lora=lora(1), max_tokens=6)
    run.step()
    run.scheduler.preempt_all()
    assert sequence(run, "a").adapter is None
    source.bad = {1}
    assert run.step() and sequence(run, "a").adapter == "loaded 1"
    run.add("later", lora=lora(1), max_tokens=6)
    finish(run)
    assert run.ends() == {"later": "error", "a": "length"}


def test_a_preempted_request_waits_for_room_like_others(source: Source) -> None:
    run = run_with(source, scheduling_policy="priority")
    run.add("a", lora=lora(1), max_tokens=6)
    run.step()
    run.scheduler.preempt_all()
    run.add("urgent", lora=lora(2), priority=-1, max_tokens=3)
    run.add("base", max_tokens=1)
    assert set(run.step()) == {"urgent", "base"}
    assert finish(run) == ["base", "urgent", "a"]


def test_nobody_gives_way_to_one_that_waits_for_its_adapter(source: Source) -> None:
    run = run_with(source, num_blocks=8)
    run.add("mine", 8, lora=lora(1), cache_salt="me", max_tokens=12)
    run.add("mine too", 8, cache_salt="me", max_tokens=12)
    run.step()
    run.add("theirs", 20, lora=lora(2), cache_salt="others", max_tokens=2)
    run.step()
    assert run.scheduler.totals.preemptions == 0
    finish(run)
    assert set(run.ends().values()) == {"length"}


def test_prefixes_are_those_of_salt_and_adapter(source: Source) -> None:
    run = run_with(source, num_blocks=64)
    asked = (
        ("first", lora(1), "", 0),
        ("again", lora(1), "", 8),
        ("same content", lora(2, lora(1).content_hash), "", 8),
        ("other", lora(3), "", 0),
        ("salted", lora(1), "s", 0),
        ("base", None, "", 0),
        ("salt like a hash", None, lora(1).content_hash, 0),
    )
    for name, adapter, salt, num_cached in asked:
        run.add(name, 10, lora=adapter, cache_salt=salt, max_tokens=2)
        while run.scheduler.sequences:
            run.step()
        last = [output for output in run.outputs if output.request_id == name][-1]
        assert last.num_cached_tokens == num_cached, name
