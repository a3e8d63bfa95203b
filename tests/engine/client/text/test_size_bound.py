"""What is refused for its size alone could not have fitted with any words."""

import unicodedata

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from engine.client.text.size_bound import NFC_SHRINKS, SizeBound
from engine.client.text.tokenizer import Tokenizer

BYTES = pre_tokenizers.ByteLevel.alphabet()


def byte_level(*words: str) -> tokenizers.Tokenizer:
    """A byte-level tokenizer that also knows `words`, merged from the left."""
    vocabulary = {text: number for number, text in enumerate(sorted(BYTES))}
    pairs = []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocabulary:
                vocabulary[word[:end]] = len(vocabulary)
                pairs.append((word[: end - 1], word[end - 1]))
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return backend


def bound_of(backend: tokenizers.Tokenizer) -> SizeBound:
    return SizeBound(backend, backend.get_added_tokens_decoder().values())


def test_a_text_of_the_longest_entry_alone_is_bounded_exactly() -> None:
    backend = byte_level("abcdefgh")
    bound = bound_of(backend)
    assert bound.bytes_per_token == 8
    for number in (1, 2, 100):
        text = "abcdefgh" * number
        assert bound.min_tokens(text) == len(backend.encode(text)) == number


def test_an_added_token_counts_with_its_text() -> None:
    backend = byte_level("aa")
    backend.add_special_tokens([AddedToken("<|a long one|>", lstrip=True, rstrip=True)])
    bound = bound_of(backend)
    assert bound.bytes_per_token == len("<|a long one|>")
    for spaces in ("", " " * 1000, "\u3000\n" * 1000):
        text = f"{spaces}<|a long one|>{spaces}" * 3
        assert bound.min_tokens(text) <= len(backend.encode(text))


@pytest.mark.parametrize("family", ["chatml", "llama3", "thinking", "mistral", "zephyr", "gemma"])
def test_families_in_use_have_a_bound(tokenizers: dict[str, Tokenizer], family: str) -> None:
    assert tokenizers[family]._bound.bytes_per_token is not None


@given(text=st.text(st.sampled_from("aä€😀 \n\t<|im_end|>e\u0301\u1e69\u0390"), max_size=200))
@settings(max_examples=300, deadline=None)
def test_no_tokenizer_makes_fewer_tokens_than_the_bound(
    tokenizers: dict[str, Tokenizer], text: str
) -> None:
    for name, tokenizer in tokenizers.items():
        num_tokens = len(tokenizer.encode(text, add_special_tokens=False))
        assert tokenizer._bound.min_tokens(text) <= num_tokens, name


def test_what_shortens_texts_by_nobody_knows_how_much_has_no_bound() -> None:
    for normalizer in (
        normalizers.NFKC(),
        normalizers.StripAccents(),
        normalizers.Replace("long", ""),
        normalizers.Replace(Regex("a+"), "aaaaaa"),
        normalizers.Sequence([normalizers.NFC(), normalizers.Strip()]),
    ):
        backend = byte_level("aaaa")
        backend.normalizer = normalizer
        assert bound_of(backend).bytes_per_token is None, normalizer
        assert bound_of(backend).min_tokens("a" * 1000) == 0


def test_what_drops_or_does_not_know_characters_has_no_bound() -> None:
    removing = byte_level()
    removing.pre_tokenizer = pre_tokenizers.Split("x", "removed")
    joining = tokenizers.Tokenizer(
        models.BPE({"<unk>": 0, "a": 1}, [], unk_token="<unk>", fuse_unk=True)
    )
    words = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    for backend in (removing, joining, words):
        assert bound_of(backend).bytes_per_token is None
        assert bound_of(backend).min_tokens("x" * 1000) == 0


def test_composing_shrinks_no_character_by_more_than_assumed() -> None:
    """Over all of Unicode: the bytes of what is composed to one character, and of that."""
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        given = chr(code)
        composed = unicodedata.normalize("NFC", given)
        apart = unicodedata.normalize("NFD", given)
        most = max(len(given.encode()), len(apart.encode()))
        assert most <= NFC_SHRINKS * len(composed.encode()), hex(code)
