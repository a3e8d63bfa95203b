"""`IncrementalDecoder`: the pieces of an answer, joined, are the decoding of the whole."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import DecodeStream

from engine.client.text.byte_decoder import REPLACEMENT
from engine.client.text.detokenizer import IncrementalDecoder
from engine.client.text.tokenizer import Tokenizer
from tests.engine.helpers.decoding import FAMILIES, WITH_BYTES, deltas, full_decode, pieces_of
from tests.engine.helpers.small_tokenizers import DECODERS

TEXTS = [
    "Hello, how are you today?",
    "family 👩‍👩‍👧‍👦 and 👍🏽, flags 🇨🇿🇯🇵, ❤️‍🔥 and 1️⃣",
    "東京の朝は静かです。",
    "Příliš žluťoučký kůň úpěl ďábelské ódy",
    "สวัสดีครับ ยินดีต้อนรับ",
    "a \ufffd b \ufffd\ufffd",
    "  leading and   inner spaces \n\n\ttabs ",
    "Z̸̢̛a̵͝l̷͠g̶̈o \u200f\u200eשלום\u200f, \x00\x07\x1b[31m \U0010ffff e\u0301",
    "do not, don't, it 's . ( x ) ## ▁ ▁▁ </w> <0x41> Ġ",
    " ",
]


def _has_torn_run(tokenizer: Tokenizer, ids: list[int]) -> bool:
    """Whether byte tokens in a row are no UTF-8 and yet hold whole characters.

    Streams show these characters, a full decode replaces them. An answer that begins with the byte
    of a space is counted in: a full decode may strip it.
    """
    run, is_first = b"", True
    for token_id in [*ids, -1]:
        value = tokenizer.byte_values.get(token_id)
        if value is not None:
            run += bytes([value])
            continue
        whole = run.decode(errors="ignore")
        if (whole.encode() != run and whole) or (is_first and run.startswith(b" ")):
            return True
        run, is_first = b"", False
    return False


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("step", [1, 2, 3, 1000])
def test_joined_deltas_are_the_full_decode(
    tokenizers: dict[str, Tokenizer], family: str, text: str, step: int
) -> None:
    tokenizer = tokenizers[family]
    prompt = tokenizer.encode("Tell me:")
    ids = tokenizer.encode(text, add_special_tokens=False)
    decoder = IncrementalDecoder(tokenizer, prompt)
    pieces = [ids[i : i + step] for i in range(0, len(ids), step)]
    assert "".join(deltas(decoder, pieces)) == full_decode(tokenizer, prompt, ids)


def _ends_whole(tokenizer: Tokenizer, ids: list[int]) -> bool:
    *_, last = [-1, *(i for i in ids if i not in tokenizer.special_ids)]
    return last not in tokenizer.byte_values and not tokenizer.decode(ids, True).endswith("\ufffd")


def _check_random_ids(tokenizer: Tokenizer, rng: random.Random) -> None:
    def draw(length: int) -> list[int]:
        ids = [rng.randrange(len(tokenizer)) for _ in range(length)]
        if rng.random() < 0.3:  # special tokens in rows
            return [i for i in ids if i in tokenizer.special_ids or rng.random() < 0.2]
        return ids

    prompt = draw(rng.choice([0, 1, 3, 10, 40]))
    while prompt and not _ends_whole(tokenizer, prompt):
        prompt.pop()
    ids = draw(rng.randrange(60))
    options = {name: rng.random() < 0.5 for name in ("skip_special_tokens", SPACES)}
    cuts = [rng.randrange(60) for _ in range(rng.randrange(40))]
    pieces = pieces_of(ids, cuts)
    joined = "".join(deltas(IncrementalDecoder(tokenizer, prompt, **options), pieces))
    assert joined == "".join(deltas(IncrementalDecoder(tokenizer, prompt, **options), [ids]))
    shown = [i for i in ids if not (options["skip_special_tokens"] and i in tokenizer.special_ids)]
    if not _has_torn_run(tokenizer, shown):
        assert joined == full_decode(tokenizer, prompt, ids, **options)


SPACES = "spaces_between_special_tokens"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "num_sequences", [300, pytest.param(5_000, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_random_tokens_in_any_pieces_are_the_full_decode(
    tokenizers: dict[str, Tokenizer], family: str, num_sequences: int
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(num_sequences):
        _check_random_ids(tokenizers[family], rng)


@given(
    ids=st.lists(st.integers(0, 419), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=20),
)
@settings(max_examples=250, deadline=None)
def test_any_bytes_have_a_replacement_only_where_the_full_decode_has_one(
    tokenizers: dict[str, Tokenizer], ids: list[int], cuts: list[int]
) -> None:
    tokenizer = tokenizers["chatml"]
    prompt = tokenizer.encode("Hello, ")
    full = full_decode(tokenizer, prompt, ids)
    decoder = IncrementalDecoder(tokenizer, prompt)
    shown = ""
    for piece in pieces_of(ids, cuts):
        shown += decoder.feed(piece)
        assert full.startswith(shown)
    assert shown + decoder.finish() == full


@pytest.mark.parametrize("family", WITH_BYTES)
@given(text=st.text(max_size=40), cuts=st.lists(st.integers(0, 60), max_size=20))
@settings(max_examples=200, deadline=None)
def test_no_whole_character_is_held_back(
    tokenizers: dict[str, Tokenizer], family: str, text: str, cuts: list[int]
) -> None:
    tokenizer = tokenizers[family]
    decoder = IncrementalDecoder(tokenizer)
    shown = ""
    seen: list[int] = []
    for piece in pieces_of(tokenizer.encode(text, add_special_tokens=False), cuts):
        shown += decoder.feed(piece)
        seen += piece
        # Byte tokens are replaced together: an unfinished character hides those before it.
        decoded = [tokenizer.decode(seen[: len(seen) - n], True) for n in range(4)]
        whole = max((text.rstrip(REPLACEMENT) for text in decoded), key=len)
        assert shown.rstrip(REPLACEMENT) == whole


@pytest.mark.parametrize("family", WITH_BYTES)
@pytest.mark.parametrize("text", TEXTS)
def test_real_text_streams_without_replacements(
    tokenizers: dict[str, Tokenizer], family: str, text: str
) -> None:
    tokenizer = tokenizers[family]
    decoder, shown = IncrementalDecoder(tokenizer), ""
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        shown += decoder.feed([token_id])
    assert (shown + decoder.finish()).count(REPLACEMENT) == text.count(REPLACEMENT)


@pytest.mark.parametrize("family", WITH_BYTES)
def test_unfinished_character_is_given_out_at_the_end(
    tokenizers: dict[str, Tokenizer], family: str
) -> None:
    tokenizer = tokenizers[family]
    decoder = IncrementalDecoder(tokenizer)
    ids = tokenizer.encode("a👍", add_special_tokens=False)[:-1]
    assert "".join(map(decoder.feed, ([i] for i in ids))) == "a"
    assert decoder.finish() == tokenizer.decode(ids)[1:]
    assert decoder.finish() == ""


@pytest.mark.parametrize("family", ["mistral", "gemma"])
def test_characters_that_were_shown_stay_when_a_broken_byte_follows(
    tokenizers: dict[str, Tokenizer], family: str
) -> None:
    tokenizer = tokenizers[family]
    to_id = {byte: token_id for token_id, byte in tokenizer.byte_values.items()}
    ids = [*(to_id[byte] for byte in "ก👍".encode()), to_id[0xFF], to_id[ord("x")]]
    assert deltas(IncrementalDecoder(tokenizer), [[i] for i in ids]) == [
        *("", "", "ก"),
        *("", "", "", "👍"),
        *(REPLACEMENT, "x", ""),
    ]


def test_ids_that_break_a_prefix_stream_are_text_like_any_others(
    tokenizers: dict[str, Tokenizer],
) -> None:
    tokenizer = tokenizers["mistral"]
    to_id = {byte: token_id for token_id, byte in tokenizer.byte_values.items()}
    (word,) = tokenizer.encode("st", add_special_tokens=False)
    ids = [to_id[ord("8")], to_id[0xBD], word]
    with pytest.raises(Exception, match="Invalid prefix"):
        _step_through(tokenizer, ids)
    decoder, other = IncrementalDecoder(tokenizer), IncrementalDecoder(tokenizer)
    assert [decoder.feed([i]) + other.feed([word]) for i in ids] == [
        "8st",
        REPLACEMENT + " st",
        " st st",
    ]


def _step_through(tokenizer: Tokenizer, ids: list[int]) -> None:
    backend: Backend = tokenizer._backend
    stream = DecodeStream(skip_special_tokens=False)
    for token_id in ids:
        stream.step(backend, token_id)


@pytest.mark.parametrize("family", WITH_BYTES)
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_prompt_that_ends_inside_a_character_leaks_nothing(
    tokenizers: dict[str, Tokenizer], family: str, cut: int
) -> None:
    tokenizer = tokenizers[family]
    secret = tokenizer.encode("the secret prompt 👍")[:-cut]
    answer = tokenizer.encode("Hello", add_special_tokens=False)
    for pieces in ([[i] for i in answer], [answer]):
        joined = "".join(deltas(IncrementalDecoder(tokenizer, secret), pieces))
        assert joined.strip() == "Hello"
    assert IncrementalDecoder(tokenizer, secret).finish() == ""


@pytest.mark.parametrize("family", WITH_BYTES)
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_answer_may_finish_the_character_of_its_prompt(
    tokenizers: dict[str, Tokenizer], family: str, cut: int
) -> None:
    tokenizer = tokenizers[family]
    ids = tokenizer.encode("the secret prompt:\n👍!")
    prompt, answer = ids[: -cut - 1], ids[-cut - 1 :]
    joined = "".join(deltas(IncrementalDecoder(tokenizer, prompt), [[i] for i in answer]))
    assert joined.strip() == "👍!"


def test_special_tokens_between_the_bytes_of_a_character_do_not_part_them(
    tokenizers: dict[str, Tokenizer],
) -> None:
    for family in WITH_BYTES:
        tokenizer = tokenizers[family]
        special = tokenizer.all_special_ids[-1]
        first, *rest = tokenizer.encode("a👍", add_special_tokens=False)
        ids = [first, *(i for token_id in rest for i in (*[special] * 20, token_id))]
        assert "".join(deltas(IncrementalDecoder(tokenizer), [[i] for i in ids])) == "a👍"


def test_prompt_that_ends_in_many_special_tokens_is_still_context(
    tokenizers: dict[str, Tokenizer],
) -> None:
    tokenizer = tokenizers["mistral"]
    prompt = [*tokenizer.encode("Hello"), *[tokenizer.all_special_ids[-1]] * 40]
    decoder = IncrementalDecoder(tokenizer, prompt)
    assert decoder.feed(tokenizer.encode("you", add_special_tokens=False)) == " you"


def test_ids_beyond_the_vocabulary_do_not_hide_the_text_before_them(
    tokenizers: dict[str, Tokenizer],
) -> None:
    tokenizer = tokenizers["mistral"]
    decoder = IncrementalDecoder(tokenizer, tokenizer.encode("Hello"))
    assert [decoder.feed([len(tokenizer) + 1]) for _ in range(40)] == [""] * 40
    assert decoder.feed(tokenizer.encode("you", add_special_tokens=False)) == " you"


@pytest.mark.parametrize("family", FAMILIES)
def test_special_tokens_in_the_answer_are_skipped_or_shown(
    tokenizers: dict[str, Tokenizer], family: str
) -> None:
    tokenizer = tokenizers[family]
    special = tokenizer.all_special_ids[-1]
    ids = [*tokenizer.encode("Hello", False), special, *tokenizer.encode("you", False)]
    name = tokenizer.convert_ids_to_tokens(special)
    for skip in (True, False):
        decoder = IncrementalDecoder(tokenizer, skip_special_tokens=skip)
        assert (name not in "".join(deltas(decoder, [[i] for i in ids]))) == skip


def test_spaces_between_special_tokens_may_be_left_out(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["bert"]
    (word,) = tokenizer.encode("you", add_special_tokens=False)
    start, end = (tokenizer.convert_tokens_to_ids(t) for t in ("[CLS]", "[SEP]"))
    assert start is not None and end is not None
    ids = [[word], [end], [start], [start], [word]]
    shown = {
        spaces: "".join(
            deltas(
                IncrementalDecoder(
                    tokenizer, skip_special_tokens=False, spaces_between_special_tokens=spaces
                ),
                ids,
            )
        )
        for spaces in (True, False)
    }
    assert shown == {
        True: "you [SEP] [CLS] [CLS] you",
        False: "you [SEP][CLS][CLS] you",
    }


def test_decoders_are_of_the_kinds_they_are_said_to_be(tmp_path: Path) -> None:
    built = {name: Tokenizer(build(tmp_path / name)) for name, build in DECODERS.items()}
    assert {n for n, t in built.items() if t.byte_values} == {"mistral", "gemma"}
    assert sorted(built["gemma"].byte_values.values()) == list(range(256))
