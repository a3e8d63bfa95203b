"""`Sampler`: logits and parameters to token ids, the same alone, in any batch and after a restart.

A random choice has no state: the number that decides it is Philox-4x32-10 of (seed, position in
the answer), so batching, chunking, preemption and resuming cannot shift it. One uniform number
picks a token by inverting the cumulative distribution. The alternative, Gumbel noise per token,
would need a random number for every word of the vocabulary at every step. How the number picks is
`sampling_reference.py`'s, the reference of csrc's `choose_tokens`. A row whose mask is not made
yet (`structured/masks.py`) picks among all tokens, and if its form refuses that, with a second
number among those allowed. Each of these comes as often as if it had picked among them at once:
p + (1 - a) p / a = p / a, where the form allows a share a.
"""

import dataclasses
import logging
import secrets
from collections.abc import Callable
from collections.abc import Sequence as Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from engine.core.ops.reference import Penalize, penalize_reference
from engine.core.ops.sampling_reference import ChooseTokens, choose_tokens_reference
from engine.core.sampling.logit_edits import LogitEdits
from engine.core.sampling.logits_processors import NONE_LEFT
from engine.core.sampling.penalties import SeenTokens
from engine.core.sampling.thoughts import ThoughtCount
from engine.core.sampling.token_logprobs import LogprobsMode, token_logprobs
from engine.core.scheduling.sequence import Problem, SampledToken, Sequence
from engine.core.structured.masks import Fences, StepMasks
from engine.core.tensors.batch import KeptTensor
from engine.core.tensors.transfers import Read, Send
from engine.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

# Why there is no token: the request's own doing, or the model's.
NO_TOKEN: Problem = ("invalid_request", "the request's own parameters leave no token to choose")
NOT_FINITE: Problem = ("engine_error", "the model gave no finite logits")

RAW_LOGPROBS = LogprobsMode()
NUM_UNIFORMS = 256  # random numbers made at once for one sequence: 32 take as long
# What a request's own parameters can bring about. A RuntimeError of torch is the whole step's.
ROW_FAULTS = (LookupError, ValueError, TypeError, ArithmeticError)

Uints = npt.NDArray[np.uint64]

_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))


def philox_4x32(counter: Uints, key: Uints) -> Uints:
    """Philox-4x32-10 (Salmon et al. 2011) of 32-bit words: counter [4, n], key [2, n] → [4, n]."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> _SHIFT) ^ c1 ^ k0,
            product1 & _MASK,
            (product0 >> _SHIFT) ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return np.stack([c0, c1, c2, c3])


def uniforms(seed: int, start: int, num: int) -> npt.NDArray[np.float64]:
    """Two random numbers in [0, 1) for each of `num` output positions from `start` on: [2, num].

    They have 48 bits, so that in float64 a number times a sum of weights stays below that sum.
    """
    positions = np.arange(start, start + num, dtype=np.uint64)
    zeros = np.zeros(num, np.uint64)
    counter = np.stack([positions & _MASK, positions >> _SHIFT, zeros, zeros])
    words = np.array([[seed & 0xFFFFFFFF], [seed >> 32 & 0xFFFFFFFF]], np.uint64)
    random = philox_4x32(counter, np.broadcast_to(words, (2, num)))
    bits = (random[::2] << np.uint64(16)) | (random[1::2] >> np.uint64(16))
    result: npt.NDArray[np.float64] = bits.astype(np.float64) * 2.0**-48
    return result


class RowState:
    """What the sampler remembers of one sequence; all of it follows from tokens and parameters."""

    def __init__(self, params: SamplingParams) -> None:
        self.is_greedy = params.is_greedy
        self.thoughts: ThoughtCount | None = None  # None: it may think as much as it wants
        if params.thinking_token_budget is not None and params.thought_tokens is not None:
            self.thoughts = ThoughtCount(params.thinking_token_budget, params.thought_tokens)
        self.edits_logits = bool(
            self.thoughts is not None
            or params.has_penalties
            or params.min_tokens
            or params.logit_bias
            or params.allowed_token_ids
            or params.bad_words_token_ids
        )
        self.seed = secrets.randbits(64) if params.seed is None else params.seed
        self._uniforms: list[list[float]] = [[], []]
        self._uniforms_start = 0
        self.seen = SeenTokens()

    def uniform(self, position: int, choice: int = 0) -> float:
        """The random number of one output position; of choice 1 where the first was refused."""
        offset = position - self._uniforms_start
        if not 0 <= offset < len(self._uniforms[0]):
            self._uniforms = uniforms(self.seed, position, NUM_UNIFORMS).tolist()
            self._uniforms_start, offset = position, 0
        return self._uniforms[choice][offset]


class Choices(NamedTuple):
    """How the rows of a step choose, for the op `choose_tokens`."""

    numbers: Tensor  # [4, num_rows] float64: temperatures, min_p, top_p, uniforms
    top_k: Tensor  # [num_rows] int64


class Sampler:
    """Chooses one token per row. What it remembers of a sequence lies in its `sampler_state`.

    `send` brings tensors to where the logits are. `mode` is what logprobs are reported of.
    """

    def __init__(
        self,
        choose_tokens: ChooseTokens = choose_tokens_reference,
        penalize: Penalize = penalize_reference,
        send: Send = list,
        mode: LogprobsMode = RAW_LOGPROBS,
    ) -> None:
        self._choose_tokens = choose_tokens
        self._penalize = penalize
        self._send = send
        self._mode = mode
        self._numbers = KeptTensor(np.float64)
        self._top_k = KeptTensor(np.int64)

    def choices(self, sequences: Collection[Sequence], vocab: int) -> Choices:
        """How the next token of each is chosen; on the host, until this is called again."""
        numbers, counts = [], []
        for sequence in sequences:
            params, state = sequence.params, _state_of(sequence)
            temperature, uniform = 0.0, 0.0
            if not state.is_greedy:
                temperature = params.temperature
                uniform = state.uniform(sequence.num_output_tokens)
            numbers.append((temperature, params.min_p, params.top_p, uniform))
            counts.append(params.top_k if 0 < params.top_k < vocab else vocab)
        num_rows, by_column = len(numbers), tuple(zip(*numbers, strict=True))
        return Choices(
            self._numbers.write(by_column, 4, num_rows), self._top_k.write(counts, num_rows)
        )

    def may_offer(self, sequence: Sequence) -> bool:
        """Whether what it would choose among all tokens, if its form allows that, is its choice.

        Not of what looks at the logits or at the form before a token is chosen, nor where the form
        decides which tokens are the most likely ones.
        """
        state, params = _state_of(sequence), sequence.params
        looks = state.thoughts is not None or sequence.logits_processors
        is_cut = params.top_k > 0 or params.top_p < 1 or params.min_p > 0
        return not looks and not self._mode.is_processed and (state.is_greedy or not is_cut)

    def sample(
        self,
        logits: Tensor,
        sequences: Collection[Sequence],
        choices: Choices,
        tokens: Tensor,
        read: Callable[[Tensor], Read],
        masks: StepMasks | None = None,
    ) -> Callable[[], list[SampledToken]]:
        """Choose the next token of each sequence; row i of `logits` [n, vocab] float32 is its own.

        `tokens` [n] int64 is written, on the device; `read` starts to bring it to the host. What is
        returned waits for it, once. If a request asked for logprobs, this waits itself, and it
        waits for `masks`: what the grammars of some rows allow. Where rows of them are open, what
        those have chosen is offered, and they choose again by their masks if that is refused.

        Writes over `logits` where parameters change them, unless logprobs of them are wanted. A row
        without a finite maximum, or whose parameters fail or leave no token, gives an error in its
        place and does not disturb the others.
        """
        errors: dict[int, Problem] = {}  # by row
        empty_rows: set[int] = set()  # whose parameters leave no token
        states = [_state_of(sequence) for sequence in sequences]
        edited = logits
        has_logprobs = any(sequence.params.logprobs is not None for sequence in sequences)
        fences = None if masks is None else masks.wait()
        if fences is not None:
            errors |= fences.problems
            if has_logprobs and not self._mode.is_processed:
                edited = logits.clone()
            fences.apply(edited, self._send)
            for row in fences.ended:  # only the end may follow: nothing else is said of it
                states[row] = _AT_ITS_END
        if any(state.edits_logits for state in states):
            if edited is logits and has_logprobs and not self._mode.is_processed:
                edited = logits.clone()  # logprobs are reported as the model gave them
            edits = LogitEdits(logits.shape[1])
            for row, (state, sequence) in enumerate(zip(states, sequences, strict=True)):
                try:
                    if not state.edits_logits:
                        continue
                    forced, banned = _limits(state, sequence, row, fences)
                    if not edits.add(row, sequence, state.seen, forced, banned):
                        empty_rows.add(row)
                except ROW_FAULTS as error:
                    logger.exception("%r: its logits could not be edited", sequence)
                    errors[row] = ("engine_error", f"{type(error).__name__} in the sampler")
            errors |= edits.apply(edited, self._penalize, self._send)
        if sequences:
            temperatures, min_p, top_p, uniforms = choices.numbers.unbind()
            self._choose_tokens(edited, temperatures, min_p, top_p, choices.top_k, uniforms, tokens)
        if masks is not None and fences is not None and fences.has_open:
            refused = masks.offer(tokens.tolist())
            errors |= refused.problems
            fences = dataclasses.replace(fences, postponed=fences.postponed | refused.postponed)
            self._choose_again(edited, sequences, refused, choices, tokens)
        wait = read(tokens)

        def results() -> list[SampledToken]:
            chosen = wait()
            for row, token in enumerate(chosen):
                if token < 0:
                    errors.setdefault(row, _why_none(sequences[row], row in empty_rows))
            tokens = [
                SampledToken(-1, error=errors[row])
                if row in errors
                else self._result(logits, row, chosen[row], sequence)
                for row, sequence in enumerate(sequences)
            ]
            return tokens if fences is None else _fenced(tokens, fences)

        if has_logprobs:
            with_logprobs = results()  # of these logits, which the next step writes over
            return lambda: with_logprobs
        return results

    def _choose_again(
        self,
        logits: Tensor,
        sequences: Collection[Sequence],
        fences: Fences,
        choices: Choices,
        tokens: Tensor,
    ) -> None:
        """For the rows whose offers were refused, among what may follow."""
        fences.apply(logits, self._send)
        uniforms = choices.numbers[3]
        for row in fences.masked:
            sequence = sequences[row]
            uniforms[row] = _state_of(sequence).uniform(sequence.num_output_tokens, 1)
        parts = [slice(row, row + 1) for row in fences.masked]
        if 2 * len(parts) > len(logits):  # together: each of the others chooses the same again
            parts = [slice(0, len(logits))]
        for part in parts:
            numbers, top_k = choices.numbers[:, part], choices.top_k[part]
            temperatures, min_p, top_p, uniforms = numbers.unbind()
            self._choose_tokens(
                logits[part], temperatures, min_p, top_p, top_k, uniforms, tokens[part]
            )

    def _result(self, logits: Tensor, row: int, token: int, sequence: Sequence) -> SampledToken:
        """logits: [n, vocab] float32, edited where that is what logprobs are reported of."""
        params = sequence.params
        if forced := params.trace_decode_token_ids:
            token = forced[min(sequence.num_output_tokens, len(forced) - 1)]
        if params.logprobs is None:
            return SampledToken(token)
        return SampledToken(token, token_logprobs(logits[row], token, params, self._mode))


# What edits the logits of an answer that its grammar lets nothing follow.
_AT_ITS_END = RowState(SamplingParams(seed=0))


def _fenced(tokens: list[SampledToken], fences: Fences) -> list[SampledToken]:
    """The same with what grammars have to do with it."""
    for row in fences.ended:
        tokens[row] = dataclasses.replace(tokens[row], is_end=True)
    for row in fences.postponed:
        tokens[row] = SampledToken(-1, is_postponed=True)
    return tokens


def _limits(
    state: RowState, sequence: Sequence, row: int, fences: Fences | None
) -> tuple[int | None, list[int]]:
    """The token that must end its thought, and those that would begin another. A form has a say."""
    if state.thoughts is None:
        return None, []
    forced, banned = state.thoughts.limits(sequence)
    if forced is not None and fences is not None and not fences.allows(row, forced):
        forced = None
    return forced, banned


def _state_of(sequence: Sequence) -> RowState:
    state: RowState | None = sequence.sampler_state
    if state is None:
        state = sequence.sampler_state = RowState(sequence.params)
        state.edits_logits |= bool(sequence.logits_processors)
    return state


def _why_none(sequence: Sequence, is_own_doing: bool) -> Problem:
    """Why there is no token for it."""
    if is_own_doing or sequence.matcher is not None:
        return NO_TOKEN
    return NONE_LEFT if sequence.logits_processors else NOT_FINITE
