"""Beam search: its parameters, and the search itself over candidates that somebody else computes.

Names, defaults and the order of beams are vLLM's. A beam ends with a token that ends answers; those
that end are kept aside, and the best ones of all are the result.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.errors import refuse
from engine.logprobs import Logprob
from engine.sampling_params import MAX_ANSWERS, MAX_LOGPROB_TOKEN_IDS


@dataclass(slots=True)
class BeamSearchParams:
    """Parameters of one search. A wrong value raises `ValidationError`, which names it."""

    beam_width: int  # answers, and beams that are followed at a time
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0  # above 0, one token drawn for each beam is a candidate as well
    length_penalty: float = 1.0  # exponent of the length that a beam's logprob is divided by
    include_stop_str_in_output: bool = False  # the token that ended a beam
    structured_outputs: Any = None
    skip_special_tokens: bool = True
    watermarking: bool | None = None
    allowed_token_ids: list[int] | None = None

    def __post_init__(self) -> None:
        for name, most in (("beam_width", MAX_ANSWERS), ("max_tokens", math.inf)):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise refuse(name, value, f"must be an integer from 1 to {most}")
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise refuse(name, getattr(self, name), "must be True or False")
        for name, low, high in (("temperature", 0, 2), ("length_penalty", -math.inf, math.inf)):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or not low <= value <= high:
                raise refuse(name, value, "must be finite" if low else "must be from 0 to 2")
        # As in `SamplingParams`: to ignore one would search among texts that were excluded.
        for name in ("structured_outputs", "watermarking"):
            if getattr(self, name):
                raise NotImplementedError(f"BeamSearchParams.{name} is not implemented")
        self._check_allowed()

    def _check_allowed(self) -> None:
        ids = self.allowed_token_ids
        if ids is None:
            return
        if not isinstance(ids, list) or not 1 <= len(ids) <= MAX_LOGPROB_TOKEN_IDS:
            raise refuse("allowed_token_ids", ids, f"must be 1 to {MAX_LOGPROB_TOKEN_IDS} ids")
        if not all(type(token_id) is int and token_id >= 0 for token_id in ids):
            raise refuse("allowed_token_ids", ids, "must be token ids")


@dataclass(slots=True)
class Beam:
    """One possible answer, so far. `logprobs` has what there was to choose from at each place."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Mapping[int, Logprob]] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    stop_token: int | None = None  # that ended it

    def score(self, length_penalty: float) -> float:
        """Of all tokens, with the one that ended it."""
        return _score(self.cumulative_logprob, len(self.logprobs), length_penalty)


class BeamSearch:
    """A search: `expand` takes it one token further, `best` is what it has found."""

    def __init__(
        self, params: BeamSearchParams, eos_token_ids: Collection[int], max_tokens: int
    ) -> None:
        """`max_tokens` is the most that a beam can have: of the parameters, or of the context."""
        self._params = params
        self._stop_ids = frozenset(() if params.ignore_eos else eos_token_ids)
        self._allowed = None if params.allowed_token_ids is None else set(params.allowed_token_ids)
        self._max_tokens = max_tokens
        self._ended: list[Beam] = []
        self.beams = [Beam()]  # the best first

    @property
    def is_done(self) -> bool:
        """Whether no further token can change the result."""
        return self._are_beams_whole or self._is_decided

    def expand(self, candidates: Sequence[Mapping[int, Logprob]]) -> None:
        """Follow each beam by the candidates for its next token, and keep the best."""
        longer: list[Beam] = []
        for beam, of_beam in zip(self.beams, candidates, strict=True):
            for token_id, candidate in of_beam.items():
                if self._allowed is not None and token_id not in self._allowed:
                    continue
                is_end = token_id in self._stop_ids
                is_shown = not is_end or self._params.include_stop_str_in_output
                following = Beam(
                    token_ids=[*beam.token_ids, token_id] if is_shown else beam.token_ids,
                    logprobs=[*beam.logprobs, of_beam],
                    cumulative_logprob=beam.cumulative_logprob + candidate.logprob,
                    stop_token=token_id if is_end else None,
                )
                (self._ended if is_end else longer).append(following)
        self.beams = self._ranked(longer)
        self._ended = self._ranked(self._ended)

    def best(self) -> list[Beam]:
        """The best of those that ended and of those that did not, as many as the search is wide.

        Those that did not are none of them where they cannot become as good.
        """
        if self._is_decided and not self._are_beams_whole:
            return self._ended
        return self._ranked([*self._ended, *self.beams])

    @property
    def _are_beams_whole(self) -> bool:
        return not self.beams or len(self.beams[0].token_ids) >= self._max_tokens

    @property
    def _is_decided(self) -> bool:
        """Whether those that ended are better than all that may still end."""
        if not self.beams or len(self._ended) < self._params.beam_width:
            return False
        return self._ended[-1].score(self._params.length_penalty) >= self._best_possible()

    def _ranked(self, beams: list[Beam]) -> list[Beam]:
        """The best first; of equals, those that were found first."""
        penalty, width = self._params.length_penalty, self._params.beam_width
        return sorted(beams, key=lambda beam: -beam.score(penalty))[:width]

    def _best_possible(self) -> float:
        """The best score that any beam may still get: no logprob is above 0."""
        best = max(beam.cumulative_logprob for beam in self.beams)
        lengths = (len(self.beams[0].token_ids) + 1, self._max_tokens)
        return max(_score(best, length, self._params.length_penalty) for length in lengths)


def _score(logprob: float, num_tokens: int, length_penalty: float) -> float:
    if not num_tokens:
        return 0.0
    try:
        return logprob / math.pow(num_tokens, length_penalty)
    except OverflowError:  # of the power: the length decides alone
        return -0.0
    except ZeroDivisionError:  # it is next to 0
        return -math.inf if logprob else 0.0
