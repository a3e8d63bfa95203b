"""`Appender`: one call for all who have something new, and none more often than it may be."""

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sessions.store.appends import appender as appender_module
from sessions.store.appends.append import Append, Appends
from sessions.store.appends.appender import APPEND_SECONDS, TICK_SECONDS, Appender


class ScriptedWriter:
    """Has something new whenever the test says so; what it gives stands for an append."""

    def __init__(self, name: str, appender: Appender) -> None:
        self.name = name
        self.is_noted = self.is_busy = self.is_urgent = False
        self.not_before = 0.0
        appender.add(self)

    def take(self, now: float) -> Append | None:
        self.is_busy = True
        self.not_before = now + APPEND_SECONDS
        return cast("Append", self)


class Clock:
    """The loop's clock and its one timer, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.at: float | None = None
        self.calls: list[list[str]] = []
        self._callback: Callable[[], None] = lambda: None

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, callback: Callable[[], None]) -> Any:
        assert self.at is None, "one timer at a time"
        self.at, self._callback = at, callback
        return SimpleNamespace(cancel=self._cancel)

    def _cancel(self) -> None:
        self.at = None

    def send(self, appends: Iterable[Append], **_: Any) -> None:
        self.calls.append([cast("ScriptedWriter", append).name for append in appends])

    def advance(self, seconds: float) -> list[list[str]]:
        """The calls of that time: who was in each."""
        self.calls = []
        until = self.now + seconds
        while self.at is not None and self.at <= until:
            self.now, self.at = max(self.now, self.at), None
            self._callback()
        self.now = until
        return self.calls


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    loop = SimpleNamespace(get_running_loop=lambda: clock, TimerHandle=asyncio.TimerHandle)
    monkeypatch.setattr(appender_module, "asyncio", loop)
    return clock


@pytest.fixture
def appender(clock: Clock) -> Appender:
    return Appender(cast("Appends", clock), renewal_seconds=1.0)


def test_what_comes_within_the_delay_goes_in_one_call(clock: Clock, appender: Appender) -> None:
    one, two, three = [ScriptedWriter(name, appender) for name in "abc"]
    appender.note(one)
    assert clock.advance(0.002) == []
    appender.note(two)
    appender.note(one)
    assert clock.advance(0.0029) == []
    appender.note(three)
    assert clock.advance(0.0002) == [["a", "b", "c"]]


def test_who_comes_after_a_tick_waits_for_the_next_and_not_longer_than_twice_the_delay(
    clock: Clock, appender: Appender
) -> None:
    one, two = [ScriptedWriter(name, appender) for name in "ab"]
    appender.note(one)
    assert clock.advance(0.0051) == [["a"]]
    appender.note(two)
    assert clock.advance(TICK_SECONDS - 0.0003) == []
    assert clock.advance(0.0003) == [["b"]]


def test_an_answer_is_written_at_most_every_30_ms(clock: Clock, appender: Appender) -> None:
    one = ScriptedWriter("a", appender)
    appender.note(one)
    assert clock.advance(0.0051) == [["a"]]
    one.is_busy = False
    appender.note(one)
    assert clock.advance(APPEND_SECONDS - 0.0003) == []
    assert clock.advance(0.0003) == [["a"]]


def test_an_answer_that_waits_goes_along_shortly_before_its_time(
    clock: Clock, appender: Appender
) -> None:
    one, two = [ScriptedWriter(name, appender) for name in "ab"]
    appender.note(one)
    clock.advance(0.0051)
    one.is_busy = False
    appender.note(one)
    clock.advance(0.022)
    appender.note(two)
    assert clock.advance(0.0051) == [["a", "b"]]


def test_an_answer_that_waits_keeps_no_other_one_waiting(clock: Clock, appender: Appender) -> None:
    one, two = [ScriptedWriter(name, appender) for name in "ab"]
    one.not_before = clock.now + 0.2
    appender.note(one)
    appender.note(two)
    assert clock.advance(0.0051) == [["b"]]
    assert clock.advance(0.19) == []
    assert clock.advance(0.005) == [["a"]]


def test_what_somebody_waits_for_goes_at_once_and_takes_along_what_is_there(
    clock: Clock, appender: Appender
) -> None:
    one, two = [ScriptedWriter(name, appender) for name in "ab"]
    appender.note(one)
    assert clock.advance(0.0051) == [["a"]]
    one.is_busy, one.is_urgent = False, True
    appender.note(two)
    appender.note(one)
    assert clock.advance(0.0) == [["b", "a"]]


def test_what_has_waited_goes_at_once_when_somebody_waits_for_it(
    clock: Clock, appender: Appender
) -> None:
    one = ScriptedWriter("a", appender)
    appender.note(one)
    one.is_urgent = True
    appender.note(one)
    assert clock.advance(0.0) == [["a"]]


def test_what_somebody_waits_for_waits_for_the_append_before_it(
    clock: Clock, appender: Appender
) -> None:
    one = ScriptedWriter("a", appender)
    appender.note(one)
    clock.advance(0.0051)
    one.is_urgent = True
    appender.note(one)
    assert clock.advance(0.1) == []
    one.is_busy = False
    appender.note(one)  # as it does when its reply comes
    assert clock.advance(0.0) == [["a"]]


def test_one_append_of_an_answer_is_on_its_way_at_a_time(clock: Clock, appender: Appender) -> None:
    one = ScriptedWriter("a", appender)
    appender.note(one)
    clock.advance(0.0051)
    appender.note(one)
    assert clock.advance(0.5) == []
    one.is_busy = False
    appender.note(one)  # as it does when its reply comes
    assert clock.advance(0.0051) == [["a"]]


def test_leases_of_silent_answers_are_renewed_together_with_what_others_append(
    clock: Clock, appender: Appender
) -> None:
    silent = [ScriptedWriter(name, appender) for name in "abc"]
    clock.advance(0.5)
    speaks = ScriptedWriter("d", appender)
    clock.advance(0.4955)
    appender.note(speaks)
    assert clock.advance(0.0051) == [["d", "a", "b", "c"]]
    for writer in (*silent, speaks):
        writer.is_busy = False
    assert clock.advance(0.999) == []
    assert clock.advance(0.002) == [["d", "a", "b", "c"]]


def test_an_answer_that_speaks_needs_no_renewal(clock: Clock, appender: Appender) -> None:
    one = ScriptedWriter("a", appender)
    for _ in range(20):
        appender.note(one)
        assert clock.advance(0.1) == [["a"]]
        one.is_busy = False


def test_nothing_is_sent_of_an_answer_that_has_left(clock: Clock, appender: Appender) -> None:
    one, two = [ScriptedWriter(name, appender) for name in "ab"]
    appender.note(one)
    appender.note(two)
    appender.remove(one)
    appender.note(one)
    assert clock.advance(0.1) == [["b"]]
    appender.remove(two)
    assert clock.at is None


def test_an_answer_that_begins_after_all_others_have_left_is_written_as_soon(
    clock: Clock, appender: Appender
) -> None:
    one = ScriptedWriter("a", appender)
    appender.note(one)
    appender.remove(one)
    two = ScriptedWriter("b", appender)
    appender.note(two)
    assert clock.advance(0.0051) == [["b"]]


def test_an_answer_that_cannot_be_appended_to_keeps_no_other_one_waiting(
    clock: Clock, appender: Appender, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(now: float) -> Append | None:
        raise KeyError

    broken, whole = [ScriptedWriter(name, appender) for name in "ab"]
    monkeypatch.setattr(broken, "take", fail)
    for _ in range(2):
        appender.note(broken)
        appender.note(whole)
        assert clock.advance(0.1) == [["b"]]
        whole.is_busy = False
