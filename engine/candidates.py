"""The logprobs of one position, as the core has sent them and as a caller reads them.

With `logprobs=-1` a position has the whole vocabulary: 150,000 entries, which take half a second to
become Python objects. So a message's logprobs stay encoded, and many of them until one is looked
at: the event loop only moves bytes.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from engine.outputs import Logprob

MAX_READY_BYTES = 2048  # some hundred candidates, made into a dict at once

Decode = Callable[[int], str | None]


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
