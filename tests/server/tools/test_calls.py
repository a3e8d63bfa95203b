"""The memory of calls: each key runs once, and what is forgotten is said to be so."""

import pytest

from server.tools import calls as module
from server.tools.calls import KEEP_SECONDS, MAX_RUNNING, Calls, KeptCall
from server.tools.messages import Place, ToolError, ToolResult


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def calls(clock: Clock) -> Calls:
    return Calls(clock)


def begun(calls: Calls, key: str, digest: bytes = b"d") -> KeptCall:
    call, is_new = calls.begin(key, digest)
    assert is_new
    return call


def code(outcome: KeptCall | ToolError) -> str:
    assert isinstance(outcome, ToolError)
    return outcome.code


async def test_a_key_runs_once_and_everybody_gets_its_outcome(calls: Calls) -> None:
    call = begun(calls, "k")
    assert calls.begin("k", b"d") == (call, False)
    calls.end(call, ToolResult(text="done"))
    assert calls.begin("k", b"d") == (call, False)
    assert calls.recall("k", None) is call
    assert await call.ended == ToolResult(text="done")


async def test_the_first_outcome_counts(calls: Calls) -> None:
    call = begun(calls, "k")
    calls.end(call, ToolError("tool_cancelled", ""))
    calls.end(call, ToolResult(text="late"))
    assert isinstance(await call.ended, ToolError)
    assert calls.num_running == 0


async def test_a_key_of_another_call_is_refused(calls: Calls) -> None:
    begun(calls, "k")
    with pytest.raises(ToolError) as raised:
        calls.begin("k", b"other")
    assert raised.value.code == "tool_key_reused"


async def test_more_calls_than_may_run_are_refused(calls: Calls) -> None:
    for number in range(MAX_RUNNING):
        begun(calls, str(number))
    with pytest.raises(ToolError) as raised:
        calls.begin("k", b"d")
    assert (raised.value.code, raised.value.may_have_run) == ("tool_busy", False)


async def test_a_call_that_is_known_not_to_have_begun_differs_from_an_unknown_one(
    calls: Calls,
) -> None:
    before = calls.place
    assert code(calls.recall("a", before)) == "tool_not_started"
    assert code(calls.recall("b", None)) == "tool_outcome_unknown"
    assert code(calls.recall("c", Place("another process", 0))) == "tool_outcome_unknown"


async def test_a_key_that_was_given_up_never_runs(calls: Calls) -> None:
    """The dead worker's frame may still be on its way."""
    place = calls.place
    calls.recall("k", place)
    with pytest.raises(ToolError) as raised:
        calls.begin("k", b"d")
    assert (raised.value.code, raised.value.may_have_run) == ("tool_key_reused", False)
    assert code(calls.recall("k", place)) == "tool_not_started"


async def test_what_is_old_is_forgotten_and_then_unknown(calls: Calls, clock: Clock) -> None:
    place = calls.place
    calls.end(begun(calls, "k"), ToolResult(text="done"))
    clock.now += KEEP_SECONDS - 1
    assert isinstance(calls.recall("k", place), KeptCall)
    clock.now += 1
    assert code(calls.recall("k", place)) == "tool_outcome_unknown"
    assert code(calls.recall("other", calls.place)) == "tool_not_started"


async def test_a_call_that_runs_is_never_forgotten(calls: Calls, clock: Clock) -> None:
    call = begun(calls, "k")
    clock.now += 10 * KEEP_SECONDS
    assert calls.recall("k", None) is call


async def test_the_memory_is_bounded_in_number_and_in_bytes(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = calls.place
    monkeypatch.setattr(module, "MAX_KEPT", 3)
    for number in range(5):
        calls.end(begun(calls, str(number)), ToolResult(text=""))
    known = [isinstance(calls.recall(str(number), place), KeptCall) for number in (2, 3, 4)]
    assert known == [True, True, True]
    assert code(calls.recall("0", place)) == "tool_outcome_unknown"
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", 4000)
    calls.end(begun(calls, "large"), ToolResult(text="x" * 3000))
    assert isinstance(calls.recall("large", place), KeptCall)
    assert code(calls.recall("4", place)) == "tool_outcome_unknown"
