"""`Masks`: what the rows of a step may say next, made while the model computes.

`begin` tells the masker which tokens the rows have got and returns at once; what it returns waits
for the masks, after the model's work, and lays them over the logits. Open rows have none: they
choose among all tokens, and only if what they have chosen may not follow is their mask made.
"""

import logging
from collections.abc import Callable
from collections.abc import Sequence as Collection
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.core.scheduling.sequence import Problem, Sequence
from engine.core.structured.frames import (
    ENDED,
    FAILED,
    MISSING,
    OPEN,
    TAKEN,
    Masked,
    Offers,
    Row,
    RowState,
    Step,
)
from engine.core.structured.grammars import REFUSED, Grammars, Matcher
from engine.core.structured.processes import Link
from engine.core.tensors.transfers import Send

logger = logging.getLogger("engine.core")

# Kinds of grammars whose masks take long where much may follow, 4 ns for each token. In the strings
# of a schema llguidance knows most of them beforehand.
LONG_KINDS = frozenset({"regex", "grammar", "tags"})
# Of a greedy row after offers that were refused in a row: to offer in vain is to choose twice.
MAX_REFUSED, STEPS_WITHOUT_OFFER = 4, 8
MASK_SECONDS = 5.0  # of the clock, after the model's work: one mask is bounded to some 20 ms


@dataclass(frozen=True, slots=True)
class Fences:
    """What the masker said of a step, by row of its logits."""

    masked: Collection[int]  # rows of logits, in the order of the masks
    masks: Tensor  # [num_masked, num_words] int32, valid until the next step begins
    ended: frozenset[int]  # of these: nothing may follow but the end
    postponed: frozenset[int]  # there is no mask: no token either
    problems: dict[int, Problem]
    has_open: bool = False  # rows that have no mask yet

    def allows(self, row: int, token: int) -> bool:
        """Whether this token may be chosen there."""
        if row not in self.masked:
            return True
        word = int(self.masks[self.masked.index(row), token // 32])
        return bool(word >> token % 32 & 1)

    def apply(self, logits: Tensor, send: Send) -> None:
        """Leave only what is allowed. logits: [num_rows, vocab] float32"""
        if not self.masked:
            return
        if logits.device.type == "cpu":
            lay_over(logits.numpy(), self.masked, self.masks.numpy())
            return
        (masks,) = send([self.masks])
        banned = banned_by(masks, logits.shape[1])
        if len(self.masked) == len(logits):
            logits.masked_fill_(banned, -torch.inf)
            return
        for place, row in enumerate(self.masked):
            logits[row].masked_fill_(banned[place], -torch.inf)


def _terms() -> npt.NDArray[np.float32]:
    """What each byte of a mask adds to its eight logits: 0 where the bit is set, else -inf."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.where(bits == 1, 0, -np.inf).astype(np.float32)


_TERMS = _terms()  # [256, 8]
_ALL = np.int32(-1)  # a word that bans nothing
_MAX_PARTS = 8  # a row is done by word where at most one word in so many bans anything


def lay_over(
    logits: npt.NDArray[np.float32], rows: Collection[int], masks: npt.NDArray[np.int32]
) -> None:
    """Add what the masks say to these rows, of the host.

    Looked up by the byte: torch takes seven times as long to fill by a mask of booleans. Where most
    may follow, only the words that ban something are looked at, a quarter of the time.
    """
    vocab = logits.shape[1]
    num_whole = vocab // 32
    terms = np.empty((masks.shape[1] * 4, 8), np.float32)
    with np.errstate(invalid="ignore"):  # what is infinite is no choice, whatever it becomes
        for row, mask in zip(rows, masks, strict=True):
            some = np.flatnonzero(mask[:num_whole] != _ALL)
            if len(some) * _MAX_PARTS > num_whole:
                _TERMS.take(mask.view(np.uint8), axis=0, out=terms, mode="clip")  # all are in range
                logits[row] += terms.reshape(-1)[:vocab]
                continue
            words = logits[row, : num_whole * 32].reshape(num_whole, 32)
            words[some] += _TERMS[mask[some].view(np.uint8)].reshape(-1, 32)
            rest = _TERMS[mask[num_whole:].view(np.uint8)].reshape(-1)
            logits[row, num_whole * 32 :] += rest[: vocab - num_whole * 32]


def banned_by(masks: Tensor, vocab: int) -> Tensor:
    """On the device: [n, num_words] int32 → [n, vocab] bool, True where the bit is 0."""
    places = torch.arange(32, dtype=torch.int32, device=masks.device)
    bits = (masks[:, :, None] >> places) & 1
    return bits.view(len(masks), -1)[:, :vocab] == 0


class AskedRow(NamedTuple):
    """A row of logits whose sequence keeps to a grammar."""

    place: int  # in the step, and of the mask
    row: int
    sequence: Sequence
    length: int  # of its answer, as the masker knows it


class StepMasks:
    """Masks that are being made. `wait` is called once, and `offer` after it."""

    def __init__(self, masks: "Masks", link: Link | None, asked: list[AskedRow]) -> None:
        self._masks = masks
        self._link = link
        self._asked = asked
        self._open: list[AskedRow] = []

    def wait(self) -> Fences:
        """Masks, or what is there instead of them. Never raises."""
        self._masks.pending = None
        return self._receive(self._asked)

    def offer(self, tokens: list[int]) -> Fences:
        """The same for those open rows whose token may not follow. tokens: of all rows of logits"""
        asked = self._open
        offers = Offers([tokens[each.row] for each in asked])
        if self._link is not None and not self._masks.send(self._link, offers, asked):
            self._link = None
        fences = self._receive(asked)
        refused = set(fences.masked)
        for each in asked:
            matcher: Matcher = each.sequence.matcher
            matcher.num_refused = matcher.num_refused + 1 if each.row in refused else 0
            # What a seed draws depends on offers, and so may not on how many were refused before.
            if matcher.num_refused >= MAX_REFUSED and each.sequence.params.is_greedy:
                matcher.offers_in = STEPS_WITHOUT_OFFER
        return fences

    def _receive(self, asked: list[AskedRow]) -> Fences:
        masks, link = self._masks, self._link
        states: list[RowState] | None = None
        if link is not None:
            try:
                states = link.steps.receive(Masked, MASK_SECONDS).rows
            except (OSError, EOFError, msgspec.DecodeError) as error:
                logger.error("a masker has ended in a step of %d: %r", len(asked), error)
                masks.lose(link, asked)
        if states is None:
            for each in asked:
                masks.grammars.wait_for(each.sequence)
            return masks.fences([], [], postponed=[each.row for each in asked])
        return self._sort(states, asked)

    def _sort(self, states: list[RowState], asked: list[AskedRow]) -> Fences:
        places, rows, ended, postponed, still_open = [], [], [], [], []
        problems: dict[int, Problem] = {}
        for state, each in zip(states, asked, strict=True):
            place, row, sequence, length = each
            matcher: Matcher = sequence.matcher
            if state.state == FAILED:
                problem = state.problem or "no token follows"
                problems[row] = (REFUSED, f"the answer cannot go on: {problem}")
                continue
            if state.state == MISSING:
                matcher.link = None  # it begins anew
                self._masks.grammars.wait_for(sequence)
                postponed.append(row)
                continue
            matcher.link, matcher.num_consumed = self._link, length
            if state.state == OPEN:
                still_open.append(each)
                continue
            matcher.num_losses = 0
            if state.state != TAKEN:
                places.append(place)
                rows.append(row)
            ended += [row] if state.state == ENDED else []
        self._open = still_open
        is_open = bool(still_open)
        return self._masks.fences(places, rows, ended, postponed, problems, is_open)


class Masks:
    """Of one runner; used by the step loop's thread alone."""

    def __init__(self, grammars: Grammars) -> None:
        self.grammars = grammars
        self.pending: StepMasks | None = None
        self._memory: Tensor | None = None  # [max_rows, num_words] int32, shared with the masker

    def begin(
        self,
        sequences: Collection[Sequence],
        may_offer: Callable[[Sequence], bool] = lambda sequence: False,
    ) -> StepMasks | None:
        """For the sampled rows of a step, in their order. None if none of them has a grammar.

        Rows that may offer a token first are open, if their masks may take long and are not of text
        that must follow.
        """
        if self.pending is not None:
            self.pending.wait()  # of a step that had no memory
        rows = [row for row, each in enumerate(sequences) if each.matcher is not None]
        if not rows:
            return None
        asked = [
            AskedRow(place, row, it := sequences[row], it.num_output_tokens)
            for place, row in enumerate(rows)
        ]
        link = self.grammars.link
        self.grammars.close_ended()
        if link is not None:
            forgotten = self.grammars.forgotten
            step = Step(
                [_row(each.sequence, link, may_offer) for each in asked],
                [forgotten.popleft() for _ in range(len(forgotten))],
            )
            if not self.send(link, step, asked):
                link = None
        self.pending = StepMasks(self, link, asked)
        return self.pending

    def send(self, link: Link, frame: Step | Offers, asked: list[AskedRow]) -> bool:
        """Have the masker do it. False: it is lost."""
        try:
            link.steps.sock.settimeout(MASK_SECONDS)
            link.steps.send(frame)
        except OSError as error:
            logger.error("a masker has ended: %r", error)
            self.lose(link, asked)
            return False
        return True

    def lose(self, link: Link, asked: list[AskedRow]) -> None:
        """Its masker is gone, or too late: the next `Grammars.wait_for` has another one started."""
        link.is_lost = True
        for each in asked:
            each.sequence.matcher.num_losses += 1

    def fences(
        self,
        places: list[int],
        rows: list[int],
        ended: Collection[int] = (),
        postponed: Collection[int] = (),
        problems: dict[int, Problem] | None = None,
        has_open: bool = False,
    ) -> Fences:
        """Of the masks in the memory those at these places."""
        if self._memory is None:
            grammars = self.grammars
            whole = torch.frombuffer(grammars.memory, dtype=torch.int32)
            self._memory = whole.view(grammars.max_rows, grammars.num_words)
        masks = self._memory[: len(places)]
        if places != list(range(len(places))):
            masks = self._memory[places]
        ends, late = frozenset(ended), frozenset(postponed)
        return Fences(rows, masks, ends, late, problems or {}, has_open)


def _row(sequence: Sequence, link: Link, may_offer: Callable[[Sequence], bool]) -> Row:
    matcher: Matcher = sequence.matcher
    is_new = matcher.link is not link
    start = sequence.num_prompt_tokens + (0 if is_new else matcher.num_consumed)
    tokens = sequence.token_ids[start:]
    ignores_eos = sequence.params.ignore_eos
    is_long = matcher.source.kind in LONG_KINDS
    offers = is_long and matcher.offers_in == 0 and may_offer(sequence)
    matcher.offers_in = max(0, matcher.offers_in - 1)
    key, begun = (matcher.key, matcher.begun) if is_new else ("", "")
    return Row(matcher.number, key, tokens, ignores_eos, begun, offers)
