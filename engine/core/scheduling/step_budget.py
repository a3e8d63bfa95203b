"""`StepBudget`: how many prompt tokens a step may read, so that it ends in time.

A step cannot be interrupted. While it reads a prompt, everybody else's next token waits for it, and
so does a stop; so its length is bounded in seconds and not only in tokens, whose price differs a
thousandfold between models and machines. The price is learned from the steps themselves.

A step of a few prompt tokens reads all weights as one of many does, and prompts that are read late
make answers that end alone. So where answers take long for a token anyway, a prompt may take in
proportion; where several requests wait for their first token, longer, the more the fewer are
answered; and where none is answered, longer, too.
"""

FIRST_CHUNK_TOKENS = 128  # before any price is known
CHUNK_UNIT_TOKENS = 16  # and the fewest beside answers: their tokens come first
MIN_CHUNK_TOKENS = 32  # where no answer runs: less would mostly pay the fixed cost of a step
NEW_WEIGHT = 0.4  # of the last step in what is learned: a hiccup is forgotten after a few
LONGEST_GAP = 2.0  # steps without prompts: so long a running answer waits for a token on average
LONGER = 4  # times the seconds of a step at most: where as many wait as are answered, or all


class StepBudget:
    """The prompt tokens of the next step: whole units of them, up to `max_num_tokens`.

    `max_seconds` 0 means that only tokens count.
    """

    def __init__(self, max_num_tokens: int, max_seconds: float) -> None:
        self._max_num_tokens = max_num_tokens
        self._max_seconds = max_seconds
        self._seconds_per_token: float | None = None
        # Of steps without prompts; up to how many answers they had, as a power of two.
        self._decode_seconds: dict[int, float] = {}

    def num_tokens(self, num_answers: int, num_waiting: int) -> int:
        """For so many answers, whose tokens wait for this step, and requests still without one."""
        if not self._max_seconds:
            return self._max_num_tokens
        price = self._seconds_per_token
        if price is None:
            return min(FIRST_CHUNK_TOKENS, self._max_num_tokens)
        least, seconds = MIN_CHUNK_TOKENS, LONGER * self._max_seconds
        if num_answers:
            gap = LONGEST_GAP * self._seconds_without_prompts(num_answers)
            crowd = LONGER * num_waiting / num_answers if num_waiting > 1 else 1.0
            longer = min(max(1.0, crowd), LONGER)
            least, seconds = CHUNK_UNIT_TOKENS, max(self._max_seconds, gap) * longer
        affordable = self._max_num_tokens
        if price * (affordable + num_answers) > seconds:
            affordable = int(seconds / price) - num_answers
        units = max(affordable, least) // CHUNK_UNIT_TOKENS
        return min(units * CHUNK_UNIT_TOKENS, self._max_num_tokens)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn from a step with at least one prompt token; tiny ones say nothing of the price."""
        if num_tokens >= CHUNK_UNIT_TOKENS:
            self._seconds_per_token = _mean(self._seconds_per_token, seconds / num_tokens)

    def observe_decode(self, num_answers: int, seconds: float) -> None:
        """Learn from a step without prompts."""
        size = _size(num_answers)
        self._decode_seconds[size] = _mean(self._decode_seconds.get(size), seconds)

    def _seconds_without_prompts(self, num_answers: int) -> float:
        """As steps of so many answers took, or else of the next fewer that were seen."""
        sizes = range(_size(num_answers), -1, -1)
        return next((self._decode_seconds[s] for s in sizes if s in self._decode_seconds), 0.0)


def _size(num_answers: int) -> int:
    """0, 1, 2, 3, … for 1, 2, up to 4, up to 8, … answers."""
    return (num_answers - 1).bit_length()


def _mean(so_far: float | None, new: float) -> float:
    return new if so_far is None else NEW_WEIGHT * new + (1 - NEW_WEIGHT) * so_far
