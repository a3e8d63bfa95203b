"""Stop strings in a text that arrives in pieces: found however it is cut, never shown in part."""

from collections.abc import Sequence


class StopMatcher:
    """Looks for stop strings in a text that arrives in pieces; the one that completes first wins.

    Each stop string is matched as it arrives (Knuth, Morris and Pratt), so that at any moment it is
    known how much of the text's end could still become one.
    """

    def __init__(self, stops: Sequence[str], *, include_in_output: bool = False) -> None:
        self.stops = list(stops)
        self._include = include_in_output
        self._failures = [_failure_table(stop) for stop in self.stops]
        self._matched = [0] * len(self.stops)  # characters of each stop that the text ends with
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """The text that is safe to show, and the stop string that ends it, if one does."""
        text = self._held + text
        for place in range(len(self._held), len(text)):
            stop = self._advance(text[place])
            if stop is not None:
                self._held = ""
                end = place + 1
                return text[: end if self._include else end - len(stop)], stop
        held = max(self._matched, default=0)
        safe = len(text) - held
        self._held = text[safe:]
        return text[:safe], None

    def flush(self) -> str:
        """Give out what is held; nothing that was held can be part of a stop string later."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self.stops)
        return held

    def _advance(self, character: str) -> str | None:
        winner = None
        for number, stop in enumerate(self.stops):
            matched = self._matched[number]
            while matched and stop[matched] != character:
                matched = self._failures[number][matched - 1]
            matched += stop[matched] == character
            self._matched[number] = matched
            if matched == len(stop) and winner is None:
                winner = stop
        return winner


def _failure_table(stop: str) -> list[int]:
    """For each prefix of `stop`, the length of its longest proper suffix that begins `stop`."""
    table = [0] * len(stop)
    matched = 0
    for place in range(1, len(stop)):
        while matched and stop[place] != stop[matched]:
            matched = table[matched - 1]
        matched += stop[place] == stop[matched]
        table[place] = matched
    return table
