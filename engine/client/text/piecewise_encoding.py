"""`PiecewiseEncoder`: the ids of a conversation, of which only the newest part is tokenized.

A tokenizer cuts its text at the added tokens before anything else, so the text between two of them
has the same ids everywhere. Each question of a chat repeats the whole chat, piece by piece; the ids
of those pieces are cached, under a digest of their text. The result are the ids of the whole text.
"""

from __future__ import annotations

import hashlib
import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection
from itertools import pairwise

from tokenizers import AddedToken

MAX_BYTES = 8 * 2**20  # of remembered ids
ENTRY_BYTES = 256  # what an entry costs besides its ids


class PiecewiseEncoder:
    """Encodes texts with one tokenizer; may be called from any thread."""

    def __init__(
        self,
        encode_piece: Callable[[str], list[int]],
        added: Collection[AddedToken],
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._encode_piece = encode_piece
        self._max_bytes = max_bytes
        self._known: OrderedDict[bytes, array[int]] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()
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

        Each `owner` has a separate cache: how long a text takes must not reveal to one user what
        another has written.
        """
        pieces = self._cut(text)
        keys = [_digest(owner, piece) for piece in pieces]
        with self._lock:
            found = [self._find(key) for key in keys]
        ids: list[int] = []
        new: list[tuple[bytes, array[int]]] = []
        for piece, key, known in zip(pieces, keys, found, strict=True):
            if known is None:
                # One at a time: a batch would spread over all processors, which are the engine's.
                known = array("I", self._encode_piece(piece))
                new.append((key, known))
            ids.extend(known)
        with self._lock:
            for key, piece_ids in new:
                self._remember(key, piece_ids)
        return ids

    def _cut(self, text: str) -> list[str]:
        """Pieces that each begin with an added token, but for the first."""
        places = [m.start() for m in self._pattern.finditer(text) if m[0] in self._cuts]
        ends = [0, *(place for place in places if place), len(text)]
        return [text[start:end] for start, end in pairwise(ends)]

    def _find(self, key: bytes) -> array[int] | None:
        ids = self._known.get(key)
        if ids is not None:
            self._known.move_to_end(key)
        return ids

    def _remember(self, key: bytes, ids: array[int]) -> None:
        if key not in self._known:
            self._known[key] = ids
            self._num_bytes += _size(ids)
        while self._num_bytes > self._max_bytes:
            _, oldest = self._known.popitem(last=False)
            self._num_bytes -= _size(oldest)


def _digest(owner: str, piece: str) -> bytes:
    text = f"{len(owner)}:{owner}{piece}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _size(ids: array[int]) -> int:
    return len(ids) * ids.itemsize + ENTRY_BYTES
