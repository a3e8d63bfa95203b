"""SentencePiece's BPE, `tokenizer.ggml.model` llama: of all pairs the one with the best score.

The `tokenizers` library wants a list of merges instead. It is made as transformers makes it: of
each token all cuts into two tokens, those of better scores first.
"""

import math

from tokenizers import Tokenizer, decoders, models, normalizers

from engine.folder.gguf.metadata import Metadata
from engine.folder.gguf.vocabulary.tokens import (
    NORMAL,
    USER_DEFINED,
    Tokens,
    add_ends,
    add_tokens,
)

SPACE = "▁"
_SCORES = "tokenizer.ggml.scores"
_PREFIX = "tokenizer.ggml.add_space_prefix"


def make_sentencepiece(tokens: Tokens, metadata: Metadata) -> Tokenizer:
    """The tokenizer of these tokens. Raises `UnsupportedModelError`."""
    vocabulary = {text: index for index, text in enumerate(tokens.texts)}
    unknown = metadata.token_id("unknown")
    has_bytes = all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    if unknown is not None and unknown >= len(tokens.texts):
        metadata.refuse(f"tokenizer.ggml.unknown_token_id is {unknown}, which has no text")
    backend = Tokenizer(
        models.BPE(
            vocabulary,
            _merges(tokens, metadata),
            unk_token=None if unknown is None else tokens.texts[unknown],
            fuse_unk=True,
            byte_fallback=has_bytes,
        )
    )
    has_prefix = metadata.flag(_PREFIX, True)
    prepend = [normalizers.Prepend(SPACE)] if has_prefix else []
    backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    add_tokens(backend, tokens, metadata)
    add_ends(backend, tokens, metadata, adds_bos=True)
    return backend


def _merges(tokens: Tokens, metadata: Metadata) -> list[tuple[str, str]]:
    """Only of what a text may become: nobody's words merge into a control token or a byte."""
    scores = metadata.numbers(_SCORES)
    if scores is None or len(scores) != len(tokens.texts):
        metadata.refuse(f"{_SCORES} must have a score for each of {len(tokens.texts)} tokens")
    if not all(map(math.isfinite, scores)):
        metadata.refuse(f"{_SCORES} must be finite")
    ids = {
        text: index
        for index, (text, kind) in enumerate(zip(tokens.texts, tokens.kinds, strict=True))
        if kind in (NORMAL, USER_DEFINED)
    }
    merges: list[tuple[float, int, int, int, str, str]] = []
    for text, index in ids.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in ids and right in ids:
                merges.append((-scores[index], index, ids[left], ids[right], left, right))
    merges.sort()
    return [(left, right) for *_, left, right in merges]
