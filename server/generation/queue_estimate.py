"""`QueueEstimate`: how long one more answer will have to wait, from what others waited."""

from time import monotonic

WEIGHT = 0.3  # of the newest observation in the running mean


class QueueEstimate:
    """What the answers of one worker have seen of queues; nothing is promised."""

    def __init__(self) -> None:
        self._seconds_per_place: float | None = None  # in the engine's queue
        self._seconds_per_answer: float | None = None  # in a session's
        self._places: dict[str, tuple[int, float]] = {}  # response id → where it was, and when

    def moved(self, response_id: str, position: int) -> None:
        """The engine says how many requests are ahead of one of our answers."""
        now = monotonic()
        before, since = self._places.setdefault(response_id, (position, now))
        if position < before:
            self._seconds_per_place = _mean(
                self._seconds_per_place, (now - since) / (before - position)
            )
        self._places[response_id] = (position, now)

    def started(self, response_id: str) -> None:
        """It has its turn."""
        self._places.pop(response_id, None)

    def finished(self, response_id: str, seconds: float) -> None:
        """An answer has ended, so long after its beginning."""
        self.started(response_id)
        self._seconds_per_answer = _mean(self._seconds_per_answer, seconds)

    def wait_ms(self, reason: str, position: int) -> int | None:
        """Until an answer in that place has its turn; None when nothing is known yet.

        In a session's queue, place 1 waits for the active answer; in the engine's, place 0 is next.
        How long an engine takes to wake up is not known.
        """
        if reason == "engine_waking":
            return None
        if reason == "session":
            each, count = self._seconds_per_answer, position
        else:
            each, count = self._seconds_per_place, position + 1
        return None if each is None else round(each * count * 1000)


def _mean(known: float | None, newest: float) -> float:
    return newest if known is None else known + WEIGHT * (newest - known)
