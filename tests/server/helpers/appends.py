"""What becomes of appends, as a test wants it: between an appender and the store."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from sessions.model.errors import StoreUnavailable
from sessions.model.replies import AppendReply
from sessions.store.appends.append import Append, Appends

Outcome = AppendReply | Exception
Answered = Callable[[Outcome], None]


def intercept(
    monkeypatch: pytest.MonkeyPatch,
    appends: Appends,
    hear: Callable[[Append, Outcome, Answered], None],
) -> None:
    """`hear` gets what becomes of each append in place of its writer, and may pass it on."""
    send_appends = appends.send

    def send(appends: Iterable[Append], **options: Any) -> None:
        appends = list(appends)
        for append in appends:
            append.answered = partial(_hear, hear, append, append.answered)
        send_appends(appends, **options)

    monkeypatch.setattr(appends, "send", send)


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

    def __init__(
        self, appends: Appends, monkeypatch: pytest.MonkeyPatch, *, lasts: bool = False
    ) -> None:
        self.lasts = lasts
        self._send_appends = appends.send
        monkeypatch.setattr(appends, "send", self._send)

    def _send(self, appends: Iterable[Append], **options: Any) -> None:
        if not self.lasts:
            self._send_appends(appends, **options)
            return
        for append in appends:
            append.answered(StoreUnavailable())
