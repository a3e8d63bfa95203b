"""What becomes of appends, as a test wants it: between an appender and the store."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from sessions.model.errors import StoreUnavailable
from sessions.model.replies import AppendReply
from sessions.store.runs import Append, Runs

Outcome = AppendReply | Exception
Answered = Callable[[Outcome], None]


def intercept(
    monkeypatch: pytest.MonkeyPatch, runs: Runs, hear: Callable[[Append, Outcome, Answered], None]
) -> None:
    """`hear` gets what becomes of each append in place of its writer, and may pass it on."""
    send_appends = runs.send_appends

    def send(appends: Iterable[Append], **options: Any) -> None:
        appends = list(appends)
        for append in appends:
            append.answered = partial(_hear, hear, append, append.answered)
        send_appends(appends, **options)

    monkeypatch.setattr(runs, "send_appends", send)


def _hear(
    hear: Callable[[Append, Outcome, Answered], None],
    append: Append,
    answered: Answered,
    outcome: Outcome,
) -> None:
    append.answered = answered
    hear(append, outcome, answered)


class Outage:
    """Lets no append through while it lasts."""

    def __init__(self, runs: Runs, monkeypatch: pytest.MonkeyPatch, *, lasts: bool = False) -> None:
        self.lasts = lasts
        self._send_appends = runs.send_appends
        monkeypatch.setattr(runs, "send_appends", self._send)

    def _send(self, appends: Iterable[Append], **options: Any) -> None:
        if not self.lasts:
            self._send_appends(appends, **options)
            return
        for append in appends:
            append.answered(StoreUnavailable())
