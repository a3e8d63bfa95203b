"""`Straight`: what is new, in the call that brings it."""

from server.commands.doors.straight import Straight, closed


def test_what_is_made_into_something_else_goes_the_same_way_while_that_is_open() -> None:
    found: list[str] = []
    ways = [True]
    words: Straight[str] = Straight(lambda: ways[-1], found.extend)
    numbers: Straight[int] = words.after(lambda new: [f"<{number}>" for number in new])
    assert numbers.is_open()
    numbers.put([1, 2])
    ways.append(False)
    assert not numbers.is_open()
    assert found == ["<1>", "<2>"]


def test_a_way_that_is_not_there_is_never_open() -> None:
    assert not closed().is_open()
