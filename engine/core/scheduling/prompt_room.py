"""`PromptRoom`: which prompts a step reads, and how many tokens of each.

Where logprobs of a prompt are asked for, each of its tokens also takes a row of logits, which the
memory of a step must hold: there, the logits are bounded as well.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.core.scheduling.fair_share import by_user, find_least_to_read, take_turns
from engine.core.scheduling.seats import Seats
from engine.core.scheduling.sequence import ScheduledSequence, Sequence

MAX_PROMPT_LOGITS = 1 << 24  # of a step, for logprobs of prompts: 64 MiB
LOGITS_PER_LOGPROB = 64  # that take as much memory, or time, as one logprob in a message


class PromptRoom:
    """What one step has for prompts, besides what runs already."""

    def __init__(
        self,
        seats: Seats,
        *,
        num_tokens: int,
        num_rows: int,
        max_tokens_each: int,
        vocab_size: int,
        admit: Callable[[Sequence], bool],
    ) -> None:
        """`admit` lets one that waits in, or says that there is no room for it.

        `max_tokens_each` is what one prompt gets of the step at most; 0 sets no limit.
        """
        self.num_rows = num_rows  # that are left
        self._num_tokens = num_tokens
        self._num_logits = MAX_PROMPT_LOGITS  # that are left for logprobs of prompts
        self._max_tokens_each = max_tokens_each
        self._vocab_size = vocab_size
        self._seats = seats
        self._admit = admit
        self._is_open = True  # whether anybody may still be let in
        self._waits_for_adapter = False  # whether one does: then no other gets one before it
        self._blocked: set[str] = set()  # users whose next one must wait
        self._amounts: dict[Sequence, int] = {}

    def share_out(
        self, prompts: list[Sequence], decodes: list[ScheduledSequence]
    ) -> list[ScheduledSequence]:
        """Chunks of prompts of running requests and of those that may be admitted.

        The user with the least to read gets as much of the step as all others together, so that no
        short question waits for all long ones of another user; the rest goes to the first of each
        user, then to the second, ...
        """
        lines = by_user(prompts)
        num_left = self._num_tokens
        if len(lines) > 1:
            least = find_least_to_read(lines)
            user = least[0].cache_salt
            num_others = sum(item.sequence.cache_salt != user for item in decodes)
            half = min(num_left, -(-(num_left + num_others) // 2))
            num_left -= half - self._read(least, half)
        self._read(take_turns(lines), num_left)
        return [ScheduledSequence(sequence, number) for sequence, number in self._amounts.items()]

    def _read(self, prompts: list[Sequence], num_tokens: int) -> int:
        """Add to the amounts so many tokens of these prompts; how many are left."""
        for sequence in prompts:
            if not num_tokens:
                break
            amount = self._amounts.get(sequence, 0)
            cost = _logits_per_token(sequence, self._vocab_size)
            if cost and self._num_logits < min(cost, MAX_PROMPT_LOGITS):
                continue  # other prompts have taken them; one token is read in any case
            if not amount and not self._take_row(sequence):
                continue
            more = min(sequence.num_uncomputed_tokens - amount, num_tokens)
            if self._max_tokens_each:
                more = min(more, self._max_tokens_each - amount)
            if cost:
                read = sequence.num_computed_tokens + amount
                num_free = max(0, sequence.num_scored_tokens - read)  # that need no logits
                more = min(more, num_free + max(1, self._num_logits // cost))
                self._num_logits -= max(0, more - num_free) * cost
            self._amounts[sequence] = amount + more
            num_tokens -= more
        return num_tokens

    def _take_row(self, sequence: Sequence) -> bool:
        """Whether a prompt has a part in this step; one that waits is let in, if it fits."""
        if not self.num_rows:
            return False
        if not sequence.is_running:
            if not self._is_open or sequence.cache_salt in self._blocked:
                return False
            if sequence.lora is not None and self._waits_for_adapter:
                return False
            if not self._admit(sequence):
                if sequence.lora is not None and sequence.adapter is None:
                    self._waits_for_adapter = not sequence.is_finished
                elif not sequence.is_finished:
                    self._blocked.add(sequence.cache_salt)
                    # Blocks ran out, so no other is admitted: there would never be enough.
                    self._is_open = self._seats.waits_for_sibling(sequence)
                return False
        self.num_rows -= 1
        return True


def _logits_per_token(sequence: Sequence, vocab_size: int) -> int:
    """What each token of its prompt takes of `MAX_PROMPT_LOGITS`; 0 without logprobs."""
    if not sequence.is_scoring:
        return 0
    num_best, rows = sequence.params.prompt_logprobs, sequence.params.prompt_logprob_token_ids
    num_logprobs = 0 if num_best is None else num_best + 1
    if num_best == -1 or num_logprobs > vocab_size:
        num_logprobs = vocab_size
    return vocab_size + LOGITS_PER_LOGPROB * num_logprobs + len(rows[0] if rows else ())
