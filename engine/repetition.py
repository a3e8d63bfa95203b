"""An answer that repeats itself: what counts as repetition, and where one ends.

A language model may fall into a loop that only the limit of its answer ends. So a request may say
that an answer ends with "repetition" as soon as its last tokens are some pattern several times in a
row.
"""

from collections.abc import Sequence

import msgspec

from engine.errors import refuse

MAX_PATTERN_SIZE = 1024  # tokens: all sizes are tried with each token of the answer
REPETITION_DETECTED = "repetition_detected"  # the stop reason


class RepetitionDetectionParams(msgspec.Struct, array_like=True, frozen=True):
    """Patterns of `min_pattern_size` to `max_pattern_size` tokens, `min_count` times in a row.

    A `max_pattern_size` of 0 is off, and a `min_pattern_size` of 0 is 1. A wrong value raises
    `ValidationError`.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise refuse(name, value, "must be an integer, at least 0")
        if self.max_pattern_size > MAX_PATTERN_SIZE:
            problem = f"must be at most {MAX_PATTERN_SIZE}"
            raise refuse("max_pattern_size", self.max_pattern_size, problem)
        if self.min_pattern_size > self.max_pattern_size:
            problem = f"must be at most max_pattern_size, {self.max_pattern_size}"
            raise refuse("min_pattern_size", self.min_pattern_size, problem)
        if self.max_pattern_size and self.min_count < 2:
            raise refuse("min_count", self.min_count, "must be at least 2")

    def is_found(self, token_ids: Sequence[int], start: int, end: int) -> bool:
        """Whether the tokens from `start` to `end` end in a pattern that is repeated enough."""
        if not self.max_pattern_size:
            return False
        largest = min(self.max_pattern_size, (end - start) // self.min_count)
        last = token_ids[end - 1] if largest else None
        for size in range(max(1, self.min_pattern_size), largest + 1):
            if token_ids[end - 1 - size] != last:
                continue  # mostly: the rest is as long as the pattern
            length = size * (self.min_count - 1)
            if token_ids[end - 2 * size : end - size] != token_ids[end - size : end]:
                continue
            # What repeats itself equals itself, moved by the pattern's size.
            if token_ids[end - size - length : end - size] == token_ids[end - length : end]:
                return True
        return False
