import pytest

from engine.core.metrics import CoreMetrics
from engine.core.utilities import CoreCalls
from engine.far.calls import OPEN, PERMITS, lora_refusal, refusal
from tests.engine.helpers.fakes import make_scheduler

BY_CLIENT = {"pause", "sleep"}  # which know who asks


def test_each_call_of_a_core_is_open_or_needs_a_permit_but_the_tests_own() -> None:
    scheduler = make_scheduler()
    calls = CoreCalls(scheduler, CoreMetrics("", ""), lambda client_id, message: None)
    known = set(calls._calls) | BY_CLIENT
    named = OPEN.union(*PERMITS.values())
    assert known - named == {"check_integrity"}
    assert named <= known


@pytest.mark.parametrize("name", sorted(OPEN))
def test_what_answers_need_is_open(name: str) -> None:
    assert refusal(name, ()) is None


@pytest.mark.parametrize("permit", PERMITS)
def test_a_permit_opens_its_own_calls_and_no_others(permit: str) -> None:
    for group, names in PERMITS.items():
        for name in names:
            assert (refusal(name, (permit,)) is None) == (group == permit)
    assert (lora_refusal((permit,)) is None) == (permit == "lora")


def test_a_call_that_nobody_knows_is_refused() -> None:
    assert refusal("launch", tuple(PERMITS)) == "launch is refused from another machine"
