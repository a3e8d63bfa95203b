"""`PiecewiseEncoder`: the ids of a conversation of which only the newest part was not seen before.

A tokenizer cuts its text at the added tokens before it looks at anything else, so what stands
between two of them has the same ids in every text. Each question of a chat repeats all that was
said before, piece by piece; those pieces are remembered. The ids are those of the whole text.
"""

from __future__ import annotations

import re
import threading
from array import array
from collections import OrderedDict
from itertools import pairwise

import tokenizers

MAX_CHARACTERS = 4 * 2**20  # of remembered pieces
ENTRY_CHARACTERS = 256  # what an entry costs besides its text, counted as characters


class PiecewiseEncoder:
    """Encodes texts with one tokenizer; may be called from any thread."""

    def __init__(self, backend: tokenizers.Tokenizer, max_characters: int = MAX_CHARACTERS) -> None:
        self._backend = backend
        self._max_characters = max_characters
        self._known: OrderedDict[tuple[str, str], array[int]] = OrderedDict()
        self._num_characters = 0
        self._lock = threading.Lock()
        added = backend.get_added_tokens_decoder().values()
        # Normalized ones are looked for later, in what these have left.
        first = {token.content: token for token in added if token.content and not token.normalized}
        # Whether a `single_word` token is one depends on the character before it, so on the piece
        # before; a token that takes the spaces at its left would take them from there.
        self._cuts = frozenset(
            content
            for content, token in first.items()
            if not (token.lstrip or any(each.single_word for each in added))
        )
        longest_first = sorted(first, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def encode(self, text: str, owner: str) -> list[int]:
        """The ids of `text`, without any that the tokenizer would put around it.

        Pieces are remembered for each `owner` apart: how long a text takes must not tell one user
        what another has written.
        """
        pieces = self._cut(text)
        with self._lock:
            found = [self._find((owner, piece)) for piece in pieces]
        missing = [piece for piece, ids in zip(pieces, found, strict=True) if ids is None]
        # A batch would spread over all processors, which are the engine's.
        encoded = [self._encode_piece(piece) for piece in missing]
        new = iter(encoded)
        ids: list[int] = []
        for known in found:
            ids.extend(next(new) if known is None else known)
        with self._lock:
            for piece, piece_ids in zip(missing, encoded, strict=True):
                self._remember((owner, piece), piece_ids)
        return ids

    def _cut(self, text: str) -> list[str]:
        """Pieces that each begin with an added token, but for the first."""
        places = [m.start() for m in self._pattern.finditer(text) if m[0] in self._cuts]
        ends = [0, *(place for place in places if place), len(text)]
        return [text[start:end] for start, end in pairwise(ends)]

    def _encode_piece(self, piece: str) -> array[int]:
        # The batch call lets other threads run meanwhile; `encode` keeps the interpreter lock.
        (encoding,) = self._backend.encode_batch_fast([piece], add_special_tokens=False)
        return array("I", encoding.ids)

    def _find(self, key: tuple[str, str]) -> array[int] | None:
        ids = self._known.get(key)
        if ids is not None:
            self._known.move_to_end(key)
        return ids

    def _remember(self, key: tuple[str, str], ids: array[int]) -> None:
        if key not in self._known:
            self._known[key] = ids
            self._num_characters += len(key[1]) + ENTRY_CHARACTERS
        while self._num_characters > self._max_characters:
            (_, piece), _ = self._known.popitem(last=False)
            self._num_characters -= len(piece) + ENTRY_CHARACTERS
