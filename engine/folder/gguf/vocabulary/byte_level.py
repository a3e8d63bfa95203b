"""Byte-level BPE, `tokenizer.ggml.model` gpt2: tokens are bytes, merged by a list of merges.

How a text is cut into words before that, a file says by a name alone, `tokenizer.ggml.pre`. Each
name below stands for what the tokenizer.json of its models does. An unknown one is refused: with
other words the ids would mostly be right, and the answers a little worse.
"""

from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from engine.folder.gguf.metadata import Metadata
from engine.folder.gguf.vocabulary.tokens import (
    BYTE,
    NORMAL,
    UNUSED,
    Tokens,
    add_ends,
    add_tokens,
)

_MERGES = "tokenizer.ggml.merges"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


@dataclass(frozen=True, slots=True)
class Words:
    """How a text is cut into words."""

    pattern: str | None = None  # None: GPT-2's, which the library has
    cuts_before: tuple[str, ...] = ()  # what is cut out of the text before that, one after another
    single_digits: bool = False
    composes: bool = False  # e + ´ becomes é before all else
    finds_whole: bool = False  # a word that is a token is not merged from its bytes
    adds_bos: bool = False  # where the file does not say


_GPT2 = Words()
_DIGITS = Words(single_digits=True)
_LLAMA3 = Words(
    rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_SIGNS}", finds_whole=True, adds_bos=True
)
_QWEN_PATTERN = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_SIGNS}"
_TEKKEN = Words(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    finds_whole=True,
    adds_bos=True,
)
_GPT4 = Words(_LLAMA3.pattern)
_GPT4O = Words(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = Words(
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    cuts_before=(r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+"),
)
WORDS = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "olmo": Words(composes=True),
    **dict.fromkeys(("llama-bpe", "llama-v3", "llama3"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4"), _GPT4),
    "gpt-4o": _GPT4O,
    "qwen2": Words(_QWEN_PATTERN, composes=True),
    **dict.fromkeys(("deepseek-r1-qwen", "stablelm2"), Words(_QWEN_PATTERN)),
    "deepseek-v3": _DEEPSEEK3,
    **dict.fromkeys(("smollm", "starcoder", "refact"), _DIGITS),
    "command-r": Words(single_digits=True, composes=True),
    "tekken": _TEKKEN,
}


def make_byte_level(tokens: Tokens, metadata: Metadata) -> Tokenizer:
    """The tokenizer of these tokens. Raises `UnsupportedModelError`."""
    words = words_of(metadata)
    end = _num_plain(tokens)
    vocabulary = {text: index for index, text in enumerate(tokens.texts[:end])}
    merges = _merges(metadata)
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=words.finds_whole))
    if words.composes:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _pre_tokenizer(words)
    backend.decoder = decoders.ByteLevel()
    add_tokens(backend, tokens, metadata)
    add_ends(backend, tokens, metadata, words.adds_bos)
    return backend


def words_of(metadata: Metadata) -> Words:
    """How it cuts texts into words. Raises `UnsupportedModelError` for a name that is unknown."""
    name = metadata.text("tokenizer.ggml.pre") or "default"
    words = WORDS.get(name)
    if words is None:
        known = ", ".join(sorted(WORDS))
        metadata.refuse(f"cuts texts into words by the rules {name!r}; known are {known}")
    return words


def _num_plain(tokens: Tokens) -> int:
    """How many are in the vocabulary itself: all up to the last that words are made of.

    Those after it are found whole in a text, or not at all: rows beyond the vocabulary, which
    converters name `[PAD151665]`, are no tokens.
    """
    kinds = list(tokens.kinds)
    while kinds and kinds[-1] == UNUSED:
        kinds.pop()
    plain = (NORMAL, BYTE, UNUSED)
    return max((index + 1 for index, kind in enumerate(kinds) if kind in plain), default=0)


def _pre_tokenizer(words: Words) -> pre_tokenizers.PreTokenizer:
    if words.pattern is not None:
        patterns = (*words.cuts_before, words.pattern)
        cuts = [pre_tokenizers.Split(Regex(each), "isolated") for each in patterns]
        bare = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*cuts, bare])
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if not words.single_digits:
        return by_bytes
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), by_bytes])


def _merges(metadata: Metadata) -> list[tuple[str, str]]:
    lines = metadata.texts(_MERGES)
    if lines is None:
        metadata.refuse(f"{_MERGES} is missing")
    merges = []
    for line in lines:
        left, space, right = line.partition(" ")
        if not (left and space and right) or " " in right:
            metadata.refuse(f"{_MERGES} holds {line[:50]!r}, which is no pair")
        merges.append((left, right))
    return merges
