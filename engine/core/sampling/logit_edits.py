"""`LogitEdits`: what parameters change of the logits before a token is chosen.

What may be said at all, then what may not be said next, then biases, then the operator's own
processors, then penalties. The rows of a step are put together, so that everything they need is
brought to the logits in one copy; only processors work row by row.
"""

from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from engine.core.ops.reference import Penalize
from engine.core.sampling.logits_processors import process_rows
from engine.core.sampling.penalties import Penalties, SeenTokens
from engine.core.scheduling.sequence import Problem, Sequence
from engine.core.tensors.transfers import Send


class Places:
    """Single logits: rows and tokens, in pairs."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.tokens: list[int] = []

    def add(self, row: int, tokens: Iterable[int]) -> None:
        self.tokens += tokens
        self.rows += [row] * (len(self.tokens) - len(self.rows))


class LogitEdits:
    """Of the rows of one step. `vocab` is the length of a row."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._fenced: list[int] = []  # rows that may say nothing but what is allowed
        self._allowed = Places()
        self._banned = Places()
        self._biased = Places()
        self._biases: list[float] = []
        self._penalties = Penalties()
        self._processed: list[tuple[int, Sequence]] = []  # rows, by the operator's own code

    def add(
        self,
        row: int,
        sequence: Sequence,
        seen: SeenTokens,
        forced: int | None = None,
        banned: Collection[int] = (),
    ) -> bool:
        """Row by row, in their order. False if that leaves no token. What fails adds nothing.

        `forced` is the only token that may be chosen, and `banned` are not, besides what the
        parameters say.
        """
        params, banned = sequence.params, [*_banned(sequence), *banned]
        allowed, biases = params.allowed_token_ids or [], params.logit_bias or {}
        if forced is not None:
            allowed = [forced]
        counts = seen.of(sequence) if params.has_penalties else None
        if allowed:
            self._fenced.append(row)
            self._allowed.add(row, allowed)
        self._banned.add(row, banned)
        self._biased.add(row, biases)
        self._biases += biases.values()
        if counts is not None:
            self._penalties.add(row, params, *counts)
        if sequence.logits_processors:
            self._processed.append((row, sequence))
        return not set(banned).issuperset(allowed or range(self._vocab))

    def apply(self, logits: Tensor, penalize: Penalize, send: Send) -> dict[int, Problem]:
        """Change the rows that were added. logits: [num_rows, vocab] float32

        Returns what the operator's own processors failed with, by row.
        """
        failures: dict[int, Problem] = {}
        groups = (self._allowed, self._banned, self._biased)
        lists = [self._fenced, *(x for group in groups for x in (group.rows, group.tokens))]
        joined = torch.tensor([index for each in lists for index in each], dtype=torch.int64)
        added = torch.tensor(self._biases, dtype=torch.float32)
        indices, biases, *penalties = send([joined, added, *self._penalties.columns()])
        fenced, *pairs = torch.split(indices, [len(each) for each in lists])
        allowed, banned, biased = zip(pairs[::2], pairs[1::2], strict=True)
        if len(fenced):
            kept = logits[allowed]
            logits.index_fill_(0, fenced, -torch.inf)
            logits[allowed] = kept
        if len(banned[0]):
            logits[banned] = logits.new_full((), -torch.inf)  # made where it is: no copy
        if len(biases):
            logits[biased] += biases
        process_rows(logits, self._processed, failures, is_last=False)
        if penalties:
            penalize(logits, *penalties)
        process_rows(logits, self._processed, failures, is_last=True)
        return failures


def _banned(sequence: Sequence) -> list[int]:
    """The tokens that may not come next, though they were allowed."""
    banned = _completing(sequence.params.bad_words_token_ids or [], sequence)
    if sequence.num_output_tokens < sequence.params.min_tokens:
        banned += sequence.stop_ids
    return banned


def _completing(words: list[list[int]], sequence: Sequence) -> list[int]:
    """The tokens that would complete one of these words in the answer."""
    longest = max(map(len, words), default=0)
    answer = sequence.token_ids[max(sequence.num_prompt_tokens, sequence.num_tokens - longest) :]
    return [
        word[-1]
        for word in words
        if len(word) == 1 or answer[len(answer) - len(word) + 1 :] == word[:-1]
    ]
