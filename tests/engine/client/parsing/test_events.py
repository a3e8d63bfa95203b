"""Events that follow each other, as one."""

from engine.client.parsing.events import (
    CallArguments,
    CallBegin,
    CallEnd,
    Event,
    TextDelta,
    joined,
)


def test_deltas_that_follow_each_other_are_one() -> None:
    events = [TextDelta("a"), TextDelta("b"), TextDelta("c")]
    assert joined(events) == [TextDelta("abc")]


def test_calls_stay_apart() -> None:
    events: list[Event] = [
        TextDelta("a"),
        CallBegin(0, "c", "x"),
        CallArguments(0, "{"),
        CallArguments(0, "}"),
        CallEnd(0, True),
        TextDelta("b"),
    ]
    assert joined(events) == [*events[:2], CallArguments(0, "{}"), *events[4:]]
