"""`StepBudget`: how many prompt tokens a step may read, so that it ends in time.

A step cannot be interrupted. While it reads a prompt, everybody else's next token waits for it, and
so does a stop; so its length is bounded in seconds and not only in tokens, whose price differs a
thousandfold between models and machines. The price is learned from the steps themselves.

A step of a few prompt tokens reads all weights as one of many does. So where answers take long for
a token anyway, a prompt may take in proportion, and where none is running, it may take longer.
"""

FIRST_CHUNK_TOKENS = 128  # before any price is known
MIN_CHUNK_TOKENS = 32  # less would mostly pay the fixed cost of a step
CHUNK_UNIT_TOKENS = 16
NEW_WEIGHT = 0.4  # of the last step in what is learned: a hiccup is forgotten after a few
LONGEST_GAP = 2.5  # steps without prompts: so long may a running answer wait for a token
ALONE = 4  # times the seconds of a step, where no answer runs


class StepBudget:
    """The prompt tokens of the next step: between `MIN_CHUNK_TOKENS` and `max_num_tokens`.

    `max_seconds` 0 means that only tokens count.
    """

    def __init__(self, max_num_tokens: int, max_seconds: float) -> None:
        self._max_num_tokens = max_num_tokens
        self._max_seconds = max_seconds
        self._seconds_per_token: float | None = None
        self._decode_seconds = 0.0  # of a step without prompts

    def num_tokens(self, has_answers: bool) -> int:
        """`has_answers`: some are running, whose tokens wait for this step."""
        if not self._max_seconds:
            return self._max_num_tokens
        if self._seconds_per_token is None:
            return min(FIRST_CHUNK_TOKENS, self._max_num_tokens)
        seconds = self._max_seconds * (1 if has_answers else ALONE)
        if has_answers:
            seconds = max(seconds, LONGEST_GAP * self._decode_seconds)
        affordable = self._max_num_tokens
        if self._seconds_per_token * affordable > seconds:
            affordable = int(seconds / self._seconds_per_token)
        units = max(affordable, MIN_CHUNK_TOKENS) // CHUNK_UNIT_TOKENS
        return min(units * CHUNK_UNIT_TOKENS, self._max_num_tokens)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn from a step with at least one prompt token; tiny ones say nothing of the price."""
        if num_tokens >= CHUNK_UNIT_TOKENS:
            self._seconds_per_token = _mean(self._seconds_per_token, seconds / num_tokens)

    def observe_decode(self, seconds: float) -> None:
        """Learn from a step without prompts."""
        self._decode_seconds = _mean(self._decode_seconds or None, seconds)


def _mean(so_far: float | None, new: float) -> float:
    return new if so_far is None else NEW_WEIGHT * new + (1 - NEW_WEIGHT) * so_far
