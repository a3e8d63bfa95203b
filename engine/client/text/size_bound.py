"""`SizeBound`: how many tokens a text has at the least, judging from its size alone.

A text that no context can hold is then refused before it is tokenized. A token stands for no more
bytes than its entry of the vocabulary has, so a text of N bytes has at least N / (bytes of the
longest entry) tokens. That holds if nothing is lost on the way: the tokenizer must know every byte
(else a run of unknown ones may become one token), and what it does to a text before it looks for
tokens may not shorten the text, or only by a known factor. Nearly all models in use have such
tokenizers. Others have no bound, and their texts are counted.

Spaces do not count: tokens like `<mask>` may swallow any number of them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, models
from tokenizers.pre_tokenizers import ByteLevel

# Composing characters takes at most three times the bytes of what it leaves; some more is assumed.
NFC_SHRINKS = 4
_KEEPING = frozenset(("ByteLevel", "Digits", "Metaspace", "Punctuation", "Split"))


class SizeBound:
    """The bound of one tokenizer. `bytes_per_token` is None if it has none."""

    def __init__(self, backend: tokenizers.Tokenizer, added: Collection[AddedToken]) -> None:
        self.bytes_per_token: int | None = None
        factor = _shrinks(_parsed(backend.normalizer))
        pre_tokenizer = _parsed(backend.pre_tokenizer)
        if factor is None or not _keeps_all(pre_tokenizer):
            return
        vocabulary = backend.get_vocab(with_added_tokens=False)
        is_byte_level = "ByteLevel" in _types(pre_tokenizer)
        if _knows_all_bytes(backend.model, vocabulary, is_byte_level):
            # In a byte-level vocabulary each byte is written as one character.
            of = len if is_byte_level else _num_bytes
            longest = max(map(of, vocabulary))
            longest = max([longest, *(_num_bytes(token.content) for token in added)])
            self.bytes_per_token = longest * factor

    def min_tokens(self, text: str) -> int:
        """A number of tokens that `text` has at the least. Never more than it has."""
        if self.bytes_per_token is None:
            return 0
        # Half of a surrogate pair is refused later, by who encodes it.
        num_bytes = len("".join(text.split()).encode(errors="replace"))
        return -(-num_bytes // self.bytes_per_token)


def _knows_all_bytes(model: Any, vocabulary: Mapping[str, int], is_byte_level: bool) -> bool:
    if not isinstance(model, models.BPE):
        return False
    if is_byte_level:
        return vocabulary.keys() >= set(ByteLevel.alphabet())
    return bool(model.byte_fallback) and all(f"<0x{n:02X}>" in vocabulary for n in range(256))


def _shrinks(normalizer: Any) -> int | None:
    """How many times the bytes of its output a normalizer's input may have; None: any number."""
    match normalizer:
        case None | {"type": "Prepend"}:
            return 1
        case {"type": "NFC"}:
            return NFC_SHRINKS
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
            return 1 if _num_bytes(new) >= _num_bytes(old) else None
        case {"type": "Sequence", "normalizers": list(parts)}:
            factors = [_shrinks(part) for part in parts]
            product = 1
            for factor in factors:
                if factor is None:
                    return None
                product *= factor
            return product
    return None


def _keeps_all(pre_tokenizer: Any) -> bool:
    match pre_tokenizer:
        case None:
            return True
        case {"type": "Sequence", "pretokenizers": list(parts)}:
            return all(_keeps_all(part) for part in parts)
        case {"type": str(kind), "behavior": str(behavior)}:
            return kind in _KEEPING and behavior != "Removed"
        case {"type": str(kind)}:
            return kind in _KEEPING
    return False


def _types(pre_tokenizer: Any) -> set[str]:
    match pre_tokenizer:
        case {"type": "Sequence", "pretokenizers": list(parts)}:
            return set().union(*map(_types, parts))
        case {"type": str(kind)}:
            return {kind}
    return set()


def _parsed(part: Any) -> Any:
    """The definition of a normalizer or pre-tokenizer, as tokenizer.json has it."""
    return None if part is None else json.loads(part.__getstate__())


def _num_bytes(text: str) -> int:
    return len(text.encode(errors="replace"))
