"""`StepBudget`: how many prompt tokens a step may read, so that it ends in time.

A step cannot be interrupted. While it reads a prompt, everybody else's next token waits for it, and
so does a stop; so its length is bounded in seconds and not only in tokens, whose price differs a
thousandfold between models and machines. The price is learned from the steps themselves.
"""

FIRST_CHUNK_TOKENS = 128  # before any price is known
MIN_CHUNK_TOKENS = 32  # less would mostly pay the fixed cost of a step
CHUNK_UNIT_TOKENS = 16
NEW_PRICE_WEIGHT = 0.4  # a hiccup of the machine is forgotten after a few steps


class StepBudget:
    """The prompt tokens of the next step: between `MIN_CHUNK_TOKENS` and `max_num_tokens`.

    `max_seconds` 0 means that only tokens count.
    """

    def __init__(self, max_num_tokens: int, max_seconds: float) -> None:
        self._max_num_tokens = max_num_tokens
        self._max_seconds = max_seconds
        self._seconds_per_token: float | None = None

    @property
    def num_tokens(self) -> int:
        if not self._max_seconds:
            return self._max_num_tokens
        if self._seconds_per_token is None:
            return min(FIRST_CHUNK_TOKENS, self._max_num_tokens)
        affordable = self._max_num_tokens
        if self._seconds_per_token * affordable > self._max_seconds:
            affordable = int(self._max_seconds / self._seconds_per_token)
        units = max(affordable, MIN_CHUNK_TOKENS) // CHUNK_UNIT_TOKENS
        return min(units * CHUNK_UNIT_TOKENS, self._max_num_tokens)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn from a step with at least one prompt token; tiny ones say nothing of the price."""
        if num_tokens < CHUNK_UNIT_TOKENS:
            return
        price = seconds / num_tokens
        if self._seconds_per_token is not None:
            price = NEW_PRICE_WEIGHT * price + (1 - NEW_PRICE_WEIGHT) * self._seconds_per_token
        self._seconds_per_token = price
