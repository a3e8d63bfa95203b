"""`ThoughtCount`: how much of an answer is thoughts, and what is chosen when that is enough."""

from engine.core.scheduling.sequence import Sequence
from engine.grammar.thoughts import ThoughtMarks, ThoughtTokens


class ThoughtCount:
    """Of one sequence; it follows from the tokens of the answer alone.

    The tokens between the marks of a thought count, of all thoughts of the answer together.
    """

    def __init__(self, budget: int, tokens: ThoughtTokens) -> None:
        self._budget = budget
        self._kinds = tokens.kinds
        self._by_last: dict[int, list[ThoughtMarks]] = {}  # token of what begins them
        for kind in tokens.kinds:
            self._by_last.setdefault(kind.begin[-1], []).append(kind)
        self._open: ThoughtMarks | None = None  # the thought that is not over
        if tokens.begun is not None:
            self._open = tokens.kinds[tokens.begun]
        self._num_begun = int(self._open is not None)
        self._num_thought = 0
        self._num_read = 0  # tokens of the answer

    def limits(self, sequence: Sequence) -> tuple[int | None, list[int]]:
        """The token that must come next, if one must, and those that must not."""
        ids = sequence.token_ids
        for place in range(sequence.num_prompt_tokens + self._num_read, len(ids)):
            self._take(ids, place)
        self._num_read = sequence.num_output_tokens
        if self._num_thought < self._budget:
            return None, []
        if self._open is not None:
            return self._open.ends[0], []
        if not self._num_begun:  # a model that has to begin one may, and ends it at once
            return None, []
        return None, [token for kind in self._kinds for token in _next_of(kind.begin, ids)]

    def _take(self, ids: list[int], place: int) -> None:
        if self._open is not None:
            if ids[place] in self._open.ends:
                self._open = None
            else:
                self._num_thought += 1
            return
        for kind in self._by_last.get(ids[place], ()):
            if ids[max(0, place + 1 - len(kind.begin)) : place + 1] == kind.begin:
                self._open = kind
                self._num_begun += 1
                return


def _next_of(begin: list[int], ids: list[int]) -> list[int]:
    """The token that would tell that another thought begins.

    The first one of several may begin something else, as a channel.
    """
    num_before = min(1, len(begin) - 1)
    is_there = not num_before or ids[-num_before:] == begin[:num_before]
    return [begin[num_before]] if is_there else []
