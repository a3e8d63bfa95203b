"""`FlatLogprobs`: an answer's logprobs as a few long lists, for `SamplingParams.flat_logprobs`.

It reads like the usual list of dicts, and costs the garbage collector six objects instead of two
for each candidate of each token.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from engine.outputs import Logprob


@dataclass
class FlatLogprobs(Sequence[dict[int, Logprob]]):
    """Position i of the answer has the candidates from `start_indices[i]` to `end_indices[i]`."""

    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)
    decoded_tokens: list[str | None] = field(default_factory=list)

    def append(self, candidates: Mapping[int, Logprob]) -> None:
        """Add a position."""
        self.start_indices.append(len(self.token_ids))
        for token_id, candidate in candidates.items():
            self.token_ids.append(token_id)
            self.logprobs.append(candidate.logprob)
            self.ranks.append(candidate.rank)
            self.decoded_tokens.append(candidate.decoded_token)
        self.end_indices.append(len(self.token_ids))

    def extend(self, positions: Iterable[Mapping[int, Logprob]]) -> None:
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
