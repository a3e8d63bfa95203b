"""Log probabilities: of one token, of one position as the core sends it, of an answer, of a prompt.

With `logprobs=-1` a position has the whole vocabulary: 150,000 entries, which take half a second to
become Python objects. So a message's logprobs stay encoded (`Candidates`), and many of them until
one is looked at: the event loop only moves bytes. `FlatLogprobs`, for
`SamplingParams.flat_logprobs`, reads like the usual list of dicts and costs the garbage collector
six objects instead of two for each candidate of each token.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import msgspec

if TYPE_CHECKING:  # only a prompt's own ids need it
    import numpy as np
    import numpy.typing as npt

MAX_READY_BYTES = 2048  # some hundred candidates, made into a dict at once

Decode = Callable[[int], str | None]


@dataclass(frozen=True, slots=True)
class Logprob:
    """The logarithm of one token's probability, and its rank (1 is the most likely)."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class Candidates(Mapping[int, Logprob]):
    """Reads like the dict, token id → `Logprob`, and equals it. The chosen token comes first."""

    __slots__ = ("_decode", "_encoded", "_entries")

    def __init__(self, encoded: msgspec.Raw, decode: Decode) -> None:
        self._encoded = encoded
        self._decode = decode
        self._entries: dict[int, _Entry] | None = None

    def __getitem__(self, token_id: int) -> Logprob:
        _, logprob, rank = self._read()[token_id]
        return Logprob(logprob, rank, self._decode(token_id))

    def __iter__(self) -> Iterator[int]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __contains__(self, token_id: object) -> bool:
        return token_id in self._read()

    def __repr__(self) -> str:
        return f"<the logprobs of {len(self)} candidates>"

    def _read(self) -> "dict[int, _Entry]":
        if self._entries is None:
            self._entries = {entry[0]: entry for entry in _decode_entries(self._encoded)}
        return self._entries


def read_candidates(position: Any, decode: Decode) -> tuple[Mapping[int, Logprob], float]:
    """The candidates of one position, and the logprob of the chosen one, which comes first."""
    if isinstance(position, msgspec.Raw):
        if memoryview(position).nbytes > MAX_READY_BYTES:
            return Candidates(position, decode), _decode_first(position).chosen[1]
        position = _decode_entries(position)
    ready = {token_id: Logprob(p, rank, decode(token_id)) for token_id, p, rank in position}
    return ready, position[0][1]


_Entry = tuple[int, float, int]  # token id, logprob, rank


class _First(msgspec.Struct, array_like=True):
    """A list of entries, all but the first of which are skipped."""

    chosen: _Entry


_decode_entries = msgspec.msgpack.Decoder(list[_Entry]).decode
_decode_first = msgspec.msgpack.Decoder(_First).decode


@dataclass
class FlatLogprobs(Sequence[dict[int, Logprob]]):
    """Position i of the answer has the candidates from `start_indices[i]` to `end_indices[i]`."""

    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)
    decoded_tokens: list[str | None] = field(default_factory=list)

    def append(self, candidates: Mapping[int, Logprob] | None) -> None:
        """Add a position; None is one without candidates."""
        self.start_indices.append(len(self.token_ids))
        for token_id, candidate in (candidates or {}).items():
            self.token_ids.append(token_id)
            self.logprobs.append(candidate.logprob)
            self.ranks.append(candidate.rank)
            self.decoded_tokens.append(candidate.decoded_token)
        self.end_indices.append(len(self.token_ids))

    def extend(self, positions: Iterable[Mapping[int, Logprob] | None]) -> None:
        for candidates in positions:
            self.append(candidates)

    def __len__(self) -> int:
        return len(self.start_indices)

    @overload
    def __getitem__(self, index: int) -> dict[int, Logprob]: ...
    @overload
    def __getitem__(self, index: slice) -> "FlatLogprobs": ...
    def __getitem__(self, index: int | slice) -> "dict[int, Logprob] | FlatLogprobs":
        """The candidates of one position, best known by their ids; or a part of the answer."""
        if isinstance(index, slice):
            part = FlatLogprobs()
            part.extend(self[position] for position in range(*index.indices(len(self))))
            return part
        places = range(self.start_indices[index], self.end_indices[index])
        return {
            self.token_ids[i]: Logprob(self.logprobs[i], self.ranks[i], self.decoded_tokens[i])
            for i in places
        }

    def __iter__(self) -> Iterator[dict[int, Logprob]]:
        return (self[position] for position in range(len(self)))


# The first position has none: nothing is before it that could predict it.
PromptLogprobs = list[Mapping[int, Logprob] | None] | FlatLogprobs


class PromptScores:
    """The logprobs of a prompt while they come in, in parts, from one core or from several.

    `decode(before, token_id)` is the text of a token after those before it. Positions stay encoded
    until one is looked at, unless `is_flat`: a long prompt comes at once, and the event loop waits.
    """

    def __init__(
        self,
        token_ids: Sequence[int],
        decode: Callable[[Sequence[int], int], str | None],
        *,
        max_before: int,
        is_flat: bool,
    ) -> None:
        self._token_ids = token_ids
        self._decode = decode
        self._max_before = max_before  # tokens that `decode` looks at
        self._is_flat = is_flat
        self._positions: list[Mapping[int, Logprob] | None] = [None]
        self._flat: FlatLogprobs | None = None

    @property
    def is_complete(self) -> bool:
        return len(self._positions) == len(self._token_ids)

    def add(self, encoded: Iterable[Any]) -> None:
        """The next positions, as the core sends them."""
        for position in encoded:
            place = len(self._positions)
            before = self._token_ids[max(0, place - self._max_before) : place]
            decode = partial(self._decode, before)
            if isinstance(position, msgspec.Raw):
                self._positions.append(Candidates(position, decode))
            else:
                self._positions.append(read_candidates(position, decode)[0])

    def restart(self) -> None:
        """Another core begins with the prompt: what there is of it comes again."""
        del self._positions[1:]

    def get(self) -> PromptLogprobs | None:
        """All positions; None before the last one has come. The same object each time."""
        if not self.is_complete:
            return None
        if not self._is_flat:
            return self._positions
        if self._flat is None:
            self._flat = FlatLogprobs()
            self._flat.extend(self._positions)
        return self._flat


class PromptTokenIdScores:
    """The logprobs of given ids at the rows of a prompt, while they come in as `PromptScores` do.

    `num_rows` rows of `num_ids` numbers in float32.
    """

    def __init__(self, num_rows: int, num_ids: int) -> None:
        self._shape = (num_rows, num_ids)
        self._numbers = bytearray()
        self._array: npt.NDArray[np.float32] | None = None

    @property
    def is_complete(self) -> bool:
        return len(self._numbers) == 4 * self._shape[0] * self._shape[1]

    def add(self, numbers: bytes) -> None:
        """The next rows, one after another."""
        self._numbers += numbers

    def restart(self) -> None:
        """Another core begins with the prompt."""
        self._numbers.clear()

    def get(self) -> "npt.NDArray[np.float32] | None":
        """[num_rows, num_ids]; None before the last row has come. The same object each time."""
        if not self.is_complete:
            return None
        if self._array is None:
            import numpy as np

            self._array = np.frombuffer(self._numbers, np.float32).reshape(self._shape)
        return self._array
