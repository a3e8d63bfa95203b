"""Grammars without processes: they come when a test says, and their masker dies when it says.

`Forms` stands in the place of `Grammars`; what tells the masker of each step, and takes in what it
says, is the engine's own `Masks`. The masker keeps the text of each answer, as a real one does, and
the model looks whether it is the answer's.
"""

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from engine.core.scheduling.sequence import Problem, Sequence
from engine.core.structured.frames import (
    ENDED,
    FAILED,
    MASKED,
    MISSING,
    Masked,
    Row,
    RowState,
    Source,
    Step,
)
from engine.core.structured.grammars import MAX_LOSSES, REFUSED, Matcher
from engine.grammar.params import StructuredOutputsParams

MAX_ROWS = 64
FAILING, FAILS_AT = "f", 3  # tokens of the answer, after which its grammar has none
REFUSED_FORM = "refused"
# An answer has so many tokens as the number says; then nothing but its end may follow.
FORMS = [
    StructuredOutputsParams(regex=each)
    for each in ("x{9}", "y{2}", "x{14}", f"{FAILING}{{9}}", REFUSED_FORM)
]


def length_of(text: str) -> int:
    return int(text.partition("{")[2].rstrip("}"))


class FakeMasker:
    """Both a link, and what is at its other end."""

    def __init__(self) -> None:
        self.steps = self.sock = self  # its socket for masks, and what that has
        self.is_lost = self.is_dead = False
        self.known: dict[str, Source] = {}  # by key
        self.texts: dict[int, list[int]] = {}  # of the answer of each matcher
        self._sources: dict[int, Source] = {}
        self._states: list[RowState] | None = None

    def settimeout(self, seconds: float) -> None:
        """It answers at once."""

    def send(self, step: Step) -> None:
        if self.is_dead:
            raise BrokenPipeError
        assert self._states is None, "two steps at once"
        for number in step.forgotten:
            self.texts.pop(number, None)
        self._states = [self._advance(row) for row in step.rows]

    def receive(self, kind: Any, seconds: float) -> Masked:
        if self.is_dead:
            raise EOFError
        assert self._states is not None
        states, self._states = self._states, None
        return Masked(states)

    def _advance(self, row: Row) -> RowState:
        if row.key:
            if row.key not in self.known:
                return RowState(MISSING)
            self.texts[row.matcher], self._sources[row.matcher] = [], self.known[row.key]
        elif row.matcher not in self.texts:
            return RowState(MISSING)
        self.texts[row.matcher] += row.token_ids
        text, num_tokens = self._sources[row.matcher].text, len(self.texts[row.matcher])
        if text.startswith(FAILING) and num_tokens >= FAILS_AT:
            return RowState(FAILED, "no token follows")
        return RowState(ENDED if num_tokens >= length_of(text) else MASKED)


class Forms:
    """Of one core. `on_ready` is called when `take_ready` has something."""

    def __init__(self, on_ready: Callable[[], None]) -> None:
        self.max_rows, self.num_words = MAX_ROWS, 1
        self.memory = bytearray(MAX_ROWS * 4)
        self.forgotten: deque[int] = deque()
        self.num_deaths = 0
        self._on_ready = on_ready
        self._numbers = count(1)
        self._waiting: deque[tuple[Sequence, list[int]]] = deque()
        self._ready: list[tuple[Sequence, Problem | None, list[str]]] = []
        self._masker: FakeMasker | None = None

    def prepare(self, sequence: Sequence) -> Problem | None:
        asked = sequence.params.structured_outputs
        if asked is None or sequence.pooling is not None:
            return None
        sequence.matcher = Matcher(next(self._numbers), Source(*asked.source()), "")
        self.wait_for(sequence)
        return None

    def wait_for(self, sequence: Sequence) -> None:
        sequence.waits_for_grammar = True
        so_far = sequence.token_ids[sequence.num_prompt_tokens :]
        self._waiting.append((sequence, so_far))

    def take_ready(self) -> list[tuple[Sequence, Problem | None, list[str]]]:
        ready, self._ready = self._ready, []
        return ready

    @property
    def link(self) -> FakeMasker | None:
        masker = self._masker
        return None if masker is None or masker.is_lost else masker

    def close_ended(self) -> None:
        """There are no sockets."""

    # ---- what a test does

    def come(self, number: int) -> None:
        """So many that wait for their grammar have it, or are refused it."""
        for _ in range(min(number, len(self._waiting))):
            sequence, so_far = self._waiting.popleft()
            self._ready.append((sequence, self._open(sequence.matcher, so_far), ["a warning"]))
        if self._ready:
            self._on_ready()

    def die(self) -> None:
        """The masker does, after any question."""
        if self._masker is not None and not self._masker.is_dead:
            self._masker.is_dead = True
            self.num_deaths += 1

    def has_text(self, sequence: Sequence, answer: list[int]) -> bool:
        """Whether the masker knows the answer as it is."""
        return self._masker is not None and (self._masker.texts[sequence.matcher.number] == answer)

    def _open(self, matcher: Matcher, so_far: list[int]) -> Problem | None:
        if matcher.source.text == REFUSED_FORM:
            return REFUSED, "it cannot be compiled"
        if matcher.source.text.startswith(FAILING) and len(so_far) > FAILS_AT:
            return REFUSED, "the answer so far does not follow it"
        if matcher.num_losses >= MAX_LOSSES:
            return REFUSED, "too many processes have ended over its masks"
        if self.link is None or self._masker is None or self._masker.is_dead:
            if self._masker is not None:
                self._masker.is_lost = True
            self._masker = FakeMasker()
        self._masker.known[matcher.key] = matcher.source
        return None
