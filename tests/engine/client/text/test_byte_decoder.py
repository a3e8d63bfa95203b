"""`ByteDecoder`: the same text as decoding everything at once, and as `IncrementalDecoder`."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.client.text.byte_decoder import REPLACEMENT, ByteDecoder
from engine.client.text.detokenizer import IncrementalDecoder
from engine.client.text.tokenizer import Tokenizer
from tests.engine.helpers.decoding import FAMILIES, deltas, full_decode, pieces_of

BYTE_LEVEL = ("chatml", "llama3")


def byte_decoder(tokenizer: Tokenizer, prompt: list[int], *, skip: bool = True) -> ByteDecoder:
    table = tokenizer.visible_bytes if skip else tokenizer.token_bytes
    assert table is not None
    return ByteDecoder(table, prompt)


def test_only_byte_level_vocabularies_have_a_table(tokenizers: dict[str, Tokenizer]) -> None:
    with_table = {name for name in {*FAMILIES, *BYTE_LEVEL} if tokenizers[name].token_bytes}
    without = {name for name in FAMILIES if tokenizers[name].token_bytes is None}
    assert without and "mistral" in without
    assert all(tokenizers[name].token_bytes is not None for name in BYTE_LEVEL)
    assert not with_table & without


@pytest.mark.parametrize("family", BYTE_LEVEL)
def test_every_token_of_the_vocabulary_is_its_own_decoding(
    tokenizers: dict[str, Tokenizer], family: str
) -> None:
    tokenizer = tokenizers[family]
    for token_id in range(len(tokenizer) + 2):  # two of them are no tokens
        for skip in (True, False):
            decoder = byte_decoder(tokenizer, [], skip=skip)
            assert "".join(deltas(decoder, [[token_id]])) == tokenizer.decode([token_id], skip)


@pytest.mark.parametrize("family", BYTE_LEVEL)
def test_a_token_is_found_by_its_bytes(tokenizers: dict[str, Tokenizer], family: str) -> None:
    tokenizer = tokenizers[family]
    hidden = tokenizer.special_ids
    for token_id in set(range(len(tokenizer))) - hidden:
        content = tokenizer.bytes_of_id(token_id)
        assert content and tokenizer.id_of_bytes(content) == token_id
    assert tokenizer.id_of_bytes(b"\xff" * 40) is None


def test_where_a_space_depends_on_what_is_before_only_bytes_are_found(
    tokenizers: dict[str, Tokenizer],
) -> None:
    tokenizer = tokenizers["gemma"]
    found = [tokenizer.id_of_bytes(bytes([byte])) for byte in range(256)]
    assert [tokenizer.byte_values[each] for each in found if each is not None] == list(range(256))
    (letter,) = tokenizer.encode("a", add_special_tokens=False)[-1:]
    assert tokenizer.bytes_of_id(letter) is None and tokenizer.id_of_bytes(b"ab") is None


@pytest.mark.parametrize("family", BYTE_LEVEL)
def test_random_tokens_in_any_pieces_are_the_full_decode(
    tokenizers: dict[str, Tokenizer], family: str
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    tokenizer = tokenizers[family]
    for _ in range(600):
        prompt = [rng.randrange(len(tokenizer)) for _ in range(rng.choice([0, 1, 3, 10, 120]))]
        ids = [rng.randrange(len(tokenizer)) for _ in range(rng.randrange(60))]
        pieces = pieces_of(ids, [rng.randrange(60) for _ in range(rng.randrange(40))])
        skip = rng.random() < 0.5
        text = "".join(deltas(byte_decoder(tokenizer, prompt, skip=skip), pieces))
        other = IncrementalDecoder(tokenizer, prompt, skip_special_tokens=skip)
        assert text == "".join(deltas(other, pieces)), (prompt, ids)
        if not tokenizer.decode(prompt, skip).endswith(REPLACEMENT):
            assert text == full_decode(tokenizer, prompt, ids, skip_special_tokens=skip)


def test_the_start_of_a_surrogate_at_a_prompts_end_is_the_prompts(
    tokenizers: dict[str, Tokenizer],
) -> None:
    tokenizer = tokenizers["chatml"]
    table = tokenizer.token_bytes
    assert table is not None
    of_byte = {table[token_id]: token_id for token_id in range(len(tokenizer))}
    for second in (0x9F, 0xA0, 0xA2, 0xBF):
        prompt = [of_byte[b"\xed"], of_byte[bytes([second])]]
        for ids in ([of_byte[b" "]], [of_byte[b"\x80"]], [of_byte[b"\xed"], of_byte[b" "]]):
            decoder = byte_decoder(tokenizer, prompt)
            other = IncrementalDecoder(tokenizer, prompt)
            pieces = [[token_id] for token_id in ids]
            text = "".join(deltas(decoder, pieces))
            assert text == "".join(deltas(other, pieces)), (second, ids)


@given(text=st.text(max_size=40), cuts=st.lists(st.integers(0, 60), max_size=20))
@settings(max_examples=200, deadline=None)
def test_no_whole_character_is_held_back(
    tokenizers: dict[str, Tokenizer], text: str, cuts: list[int]
) -> None:
    tokenizer = tokenizers["chatml"]
    decoder = byte_decoder(tokenizer, [])
    shown, seen = "", list[int]()
    for piece in pieces_of(tokenizer.encode(text, add_special_tokens=False), cuts):
        shown += decoder.feed(piece)
        seen += piece
        whole = tokenizer.decode(seen, skip_special_tokens=True)
        assert shown.rstrip(REPLACEMENT) == whole.rstrip(REPLACEMENT)
    assert shown + decoder.finish() == tokenizer.decode(seen, skip_special_tokens=True)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_prompt_that_ends_inside_a_character_leaks_nothing_and_may_be_finished(
    tokenizers: dict[str, Tokenizer], cut: int
) -> None:
    tokenizer = tokenizers["chatml"]
    ids = tokenizer.encode("the secret prompt 👍")
    prompt, rest = ids[:-cut], ids[-cut:]
    answer = tokenizer.encode("Hello", add_special_tokens=False)
    assert "".join(deltas(byte_decoder(tokenizer, prompt), [[i] for i in answer])) == "Hello"
    assert byte_decoder(tokenizer, prompt).finish() == ""
    assert "".join(deltas(byte_decoder(tokenizer, prompt), [[i] for i in rest])).strip() == "👍"


def test_special_tokens_between_the_bytes_of_a_character_do_not_part_them(
    tokenizers: dict[str, Tokenizer],
) -> None:
    tokenizer = tokenizers["chatml"]
    special = tokenizer.all_special_ids[-1]
    first, *rest = tokenizer.encode("a👍", add_special_tokens=False)
    ids = [first, *(i for token_id in rest for i in (*[special] * 20, token_id))]
    assert "".join(deltas(byte_decoder(tokenizer, []), [[i] for i in ids])) == "a👍"
