"""`RedisBatches`: which commands waited for each other's replies, and which went together."""

from collections.abc import Sequence

import pytest

from sessions.connection.link import Call, Link


class RedisBatches:
    """The commands that a process sends to one server, by their names or their scripts'."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: list[list[str]] = []
        pack = Link._pack

        def noted(calls: Sequence[Call]) -> bytes:
            self.all.append([call.script or str(call.command[0]) for call in calls])
            return pack(calls)

        monkeypatch.setattr(Link, "_pack", staticmethod(noted))

    def between(self, first: str, last: str) -> list[str]:
        """What was sent after the batch with `first`, and before the next one with `last`."""
        begin = next(n for n, batch in enumerate(self.all) if first in batch) + 1
        end = next(n for n, batch in enumerate(self.all) if n >= begin and last in batch)
        return [name for batch in self.all[begin:end] for name in batch]
