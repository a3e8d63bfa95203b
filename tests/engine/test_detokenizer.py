import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import DecodeStream

from engine.detokenizer import REPLACEMENT, Detokenizer, IncrementalDecoder
from engine.tokenizer import Tokenizer
from tests.engine.small_tokenizers import BUILDERS, DECODERS, build_chatml

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
FAMILIES = tuple(DECODERS)
WITH_BYTES = ("chatml", "mistral", "gemma")  # these can write every character


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    root = tmp_path_factory.mktemp("tokenizers")
    builders = {**BUILDERS, **DECODERS}
    return {name: Tokenizer(build(root / name)) for name, build in builders.items()}


def _full_decode(tokenizer: Tokenizer, prompt: list[int], ids: list[int], **options: bool) -> str:
    options = {"skip_special_tokens": True, **options}
    before = tokenizer.decode(prompt, **options)
    return tokenizer.decode(prompt + ids, **options)[len(before) :]


def _pieces(ids: list[int], cuts: list[int]) -> list[list[int]]:
    places = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [ids[a:b] for a, b in pairwise(places)]


def _deltas(decoder: IncrementalDecoder, pieces: list[list[int]]) -> list[str]:
    return [*map(decoder.feed, pieces), decoder.finish()]


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
def test_r42_joined_deltas_are_the_full_decode(
    tokenizers: dict[str, Tokenizer], family: str, text: str, step: int
) -> None:
    tokenizer = tokenizers[family]
    prompt = tokenizer.encode("Tell me:")
    ids = tokenizer.encode(text, add_special_tokens=False)
    decoder = IncrementalDecoder(tokenizer, prompt)
    deltas = _deltas(decoder, [ids[i : i + step] for i in range(0, len(ids), step)])
    assert "".join(deltas) == _full_decode(tokenizer, prompt, ids)


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
    pieces = _pieces(ids, cuts)
    joined = "".join(_deltas(IncrementalDecoder(tokenizer, prompt, **options), pieces))
    assert joined == "".join(_deltas(IncrementalDecoder(tokenizer, prompt, **options), [ids]))
    shown = [i for i in ids if not (options["skip_special_tokens"] and i in tokenizer.special_ids)]
    if not _has_torn_run(tokenizer, shown):
        assert joined == _full_decode(tokenizer, prompt, ids, **options)


SPACES = "spaces_between_special_tokens"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "num_sequences", [300, pytest.param(5_000, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_r42_random_tokens_in_any_pieces_are_the_full_decode(
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
def test_r45_any_bytes_have_a_replacement_only_where_the_full_decode_has_one(
    tokenizers: dict[str, Tokenizer], ids: list[int], cuts: list[int]
) -> None:
    tokenizer = tokenizers["chatml"]
    prompt = tokenizer.encode("Hello, ")
    full = _full_decode(tokenizer, prompt, ids)
    decoder = IncrementalDecoder(tokenizer, prompt)
    shown = ""
    for piece in _pieces(ids, cuts):
        shown += decoder.feed(piece)
        assert full.startswith(shown)
    assert shown + decoder.finish() == full


@pytest.mark.parametrize("family", WITH_BYTES)
@given(text=st.text(max_size=40), cuts=st.lists(st.integers(0, 60), max_size=20))
@settings(max_examples=200, deadline=None)
def test_r45_no_whole_character_waits(
    tokenizers: dict[str, Tokenizer], family: str, text: str, cuts: list[int]
) -> None:
    tokenizer = tokenizers[family]
    decoder = IncrementalDecoder(tokenizer)
    shown = ""
    seen: list[int] = []
    for piece in _pieces(tokenizer.encode(text, add_special_tokens=False), cuts):
        shown += decoder.feed(piece)
        seen += piece
        # Byte tokens are replaced together: an unfinished character hides those before it.
        decoded = [tokenizer.decode(seen[: len(seen) - n], True) for n in range(4)]
        whole = max((text.rstrip(REPLACEMENT) for text in decoded), key=len)
        assert shown.rstrip(REPLACEMENT) == whole


@pytest.mark.parametrize("family", WITH_BYTES)
@pytest.mark.parametrize("text", TEXTS)
def test_r45_real_text_streams_without_replacements(
    tokenizers: dict[str, Tokenizer], family: str, text: str
) -> None:
    tokenizer = tokenizers[family]
    decoder, shown = IncrementalDecoder(tokenizer), ""
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        shown += decoder.feed([token_id])
    assert (shown + decoder.finish()).count(REPLACEMENT) == text.count(REPLACEMENT)


@pytest.mark.parametrize("family", WITH_BYTES)
def test_r45_unfinished_character_is_given_out_at_the_end(
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
    assert _deltas(IncrementalDecoder(tokenizer), [[i] for i in ids]) == [
        *("", "", "ก"),
        *("", "", "", "👍"),
        *(REPLACEMENT, "x", ""),
    ]


def test_r43_ids_that_break_a_prefix_stream_are_text_like_any_others(
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
def test_r44_prompt_that_ends_inside_a_character_leaks_nothing(
    tokenizers: dict[str, Tokenizer], family: str, cut: int
) -> None:
    tokenizer = tokenizers[family]
    secret = tokenizer.encode("the secret prompt 👍")[:-cut]
    answer = tokenizer.encode("Hello", add_special_tokens=False)
    for pieces in ([[i] for i in answer], [answer]):
        joined = "".join(_deltas(IncrementalDecoder(tokenizer, secret), pieces))
        assert joined.strip() == "Hello"
    assert IncrementalDecoder(tokenizer, secret).finish() == ""


@pytest.mark.parametrize("family", WITH_BYTES)
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_r44_answer_may_finish_the_character_of_its_prompt(
    tokenizers: dict[str, Tokenizer], family: str, cut: int
) -> None:
    tokenizer = tokenizers[family]
    ids = tokenizer.encode("the secret prompt:\n👍!")
    prompt, answer = ids[: -cut - 1], ids[-cut - 1 :]
    joined = "".join(_deltas(IncrementalDecoder(tokenizer, prompt), [[i] for i in answer]))
    assert joined.strip() == "👍!"


class CountingDecoder:
    """Counts the ids that it is asked to decode."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.special_ids = tokenizer.special_ids
        self.byte_values = tokenizer.byte_values
        self.num_decoded = 0

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        self.num_decoded += len(token_ids)
        return self.tokenizer.decode(token_ids, skip_special_tokens)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("stops", [[], ["never written"]])
@pytest.mark.parametrize("kind", ["words", "special", "broken bytes", "random"])
def test_each_token_of_a_long_answer_costs_the_same(
    tokenizers: dict[str, Tokenizer], family: str, stops: list[str], kind: str
) -> None:
    tokenizer = tokenizers[family]
    words = tokenizer.encode("the lighthouse keeper wrote a letter to the sea", False)
    broken = tokenizer.encode("👍", add_special_tokens=False)[:1]
    ids = {
        "words": words * 400,
        "special": sorted(tokenizer.special_ids) * 3000,
        "broken bytes": broken * 10_000,
        "random": random.Random(0).choices(range(len(tokenizer)), k=10_000),
    }[kind][:10_000]
    decoder = CountingDecoder(tokenizer)
    detokenizer = Detokenizer(decoder, words * 100, stops=stops, skip_special_tokens=False)
    num_characters = 0
    for token_id in ids:
        before = decoder.num_decoded
        num_characters += len(detokenizer.feed([token_id])[0])
        assert decoder.num_decoded - before <= 40
    assert num_characters + len(detokenizer.finish()) > len(ids) / 4


def test_special_tokens_between_the_bytes_of_a_character_do_not_part_them(
    tokenizers: dict[str, Tokenizer],
) -> None:
    for family in WITH_BYTES:
        tokenizer = tokenizers[family]
        special = tokenizer.all_special_ids[-1]
        first, *rest = tokenizer.encode("a👍", add_special_tokens=False)
        ids = [first, *(i for token_id in rest for i in (*[special] * 20, token_id))]
        assert "".join(_deltas(IncrementalDecoder(tokenizer), [[i] for i in ids])) == "a👍"


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
        assert (name not in "".join(_deltas(decoder, [[i] for i in ids]))) == skip


def test_spaces_between_special_tokens_may_be_left_out(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["bert"]
    (word,) = tokenizer.encode("you", add_special_tokens=False)
    start, end = (tokenizer.convert_tokens_to_ids(t) for t in ("[CLS]", "[SEP]"))
    assert start is not None and end is not None
    ids = [[word], [end], [start], [start], [word]]
    shown = {
        spaces: "".join(
            _deltas(
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


# ---- stop strings over tokens


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(build_chatml(tmp_path_factory.mktemp("stops")))


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_ids_behind_a_stop_string_are_not_taken(tokenizer: Tokenizer, batch: int) -> None:
    ids = tokenizer.encode("Hello END of it", add_special_tokens=False)
    detokenizer, shown, taken = Detokenizer(tokenizer, stops=["END"]), "", 0
    for place in range(0, len(ids), batch):
        text, count = detokenizer.feed(ids[place : place + batch])
        shown, taken = shown + text, taken + count
        if detokenizer.stop:
            break
    assert (shown, detokenizer.stop) == ("Hello ", "END")
    assert tokenizer.decode(ids[:taken]).endswith("END")
    assert not tokenizer.decode(ids[: taken - 1]).endswith("END")
    assert detokenizer.finish() == ""


@pytest.mark.parametrize("end", ["eos", "length", "abort"])
def test_r47_what_is_held_for_a_stop_string_is_given_out_at_the_end(
    tokenizer: Tokenizer, end: str
) -> None:
    detokenizer = Detokenizer(tokenizer, stops=["stop it", "stop 👍!"])
    tail = {"eos": "", "length": " ", "abort": " 👍"}[end]
    ids = tokenizer.encode("please stop" + tail, add_special_tokens=False)
    assert "".join(detokenizer.feed([i])[0] for i in ids) == "please "
    assert detokenizer.finish() == "stop" + tail
    assert detokenizer.stop is None


@pytest.mark.parametrize("stop", ["👍", "x👍", "👍y", "y é"])
def test_r46_stop_string_may_begin_and_end_inside_a_token(tokenizer: Tokenizer, stop: str) -> None:
    ids = tokenizer.encode("before x👍y é after", add_special_tokens=False)
    detokenizer, shown = Detokenizer(tokenizer, stops=[stop]), ""
    for token_id in ids:
        shown += detokenizer.feed([token_id])[0]
        if detokenizer.stop:
            break
    assert (shown, detokenizer.stop) == ("before x👍y é after".partition(stop)[0], stop)


def test_stop_strings_are_not_looked_for_in_the_first_min_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("END and END", add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer, stops=["END"], min_tokens=len(ids) - 3)
    assert detokenizer.feed(ids)[0] == "END and "


def test_character_that_stays_unfinished_may_complete_a_stop_string(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, stops=["a" + REPLACEMENT])
    ids = tokenizer.encode("xa👍", add_special_tokens=False)[:-1]
    assert "".join(detokenizer.feed([i])[0] for i in ids) == "x"
    assert (detokenizer.finish(), detokenizer.stop) == ("", "a" + REPLACEMENT)


class Case:
    """Random ids, and stop strings that were cut out of their text or made up."""

    def __init__(self, tokenizer: Tokenizer, rng: random.Random) -> None:
        self.tokenizer = tokenizer
        words = ["the sea", " wrote", "aaab", "ab", "👩‍👩‍👧", "東京", "é", " ", "\n\n"]
        text = "".join(rng.choices(words, k=rng.randrange(1, 12)))
        self.ids = tokenizer.encode(text, add_special_tokens=False)
        if self.ids and rng.random() < 0.3:
            self.ids = [*self.ids[: rng.randrange(len(self.ids))], *self.ids]
        self.num_prompt = rng.choice([0, 0, 1, 5])
        self.prompt = tokenizer.encode("Hello 👍")[: self.num_prompt]
        self.options = {
            "stops": [self._make_stop(text, rng) for _ in range(rng.randrange(1, 4))],
            "include_stop": rng.random() < 0.5,
            "min_tokens": rng.choice([0, 0, 1, 4]),
        }

    def _make_stop(self, text: str, rng: random.Random) -> str:
        start = rng.randrange(len(text))
        stop = text[start : start + rng.randrange(1, 8)]
        return stop + rng.choice(["", "", "x", "b", "👧"])

    def new(self) -> Detokenizer:
        return Detokenizer(self.tokenizer, self.prompt, **self.options)  # type: ignore[arg-type]

    def expected(self) -> tuple[list[str], str, str | None, int]:
        """What may be shown after each token, all that is at the end, the stop, the ids taken."""
        decoder = IncrementalDecoder(self.tokenizer, self.prompt)
        stops, include = self.options["stops"], self.options["include_stop"]
        assert isinstance(stops, list)
        shown: list[str] = []
        text, start = "", 0
        texts = [*(decoder.feed([i]) for i in self.ids), decoder.finish()]
        for count, piece in enumerate(texts, 1):
            for character in piece:
                text += character
                if count > self.options["min_tokens"]:  # type: ignore[operator]
                    for stop in stops:
                        if text[start:].endswith(stop):
                            end = text if include else text[: len(text) - len(stop)]
                            return shown, end, stop, min(count, len(self.ids))
            if count <= self.options["min_tokens"]:  # type: ignore[operator]
                start = len(text)
            may_match = [n for s in stops for n in range(len(s)) if text[start:].endswith(s[:n])]
            shown.append(text[: len(text) - max(may_match, default=0)])
        return shown, text, None, len(self.ids)


def _check_stops(tokenizer: Tokenizer, rng: random.Random) -> None:
    case = Case(tokenizer, rng)
    by_token, text, stop, num_taken = case.expected()

    single, shown = case.new(), ""
    for token_id, expected in zip(case.ids, by_token, strict=False):
        shown += single.feed([token_id])[0]
        assert single.stop is not None or shown == expected
    pieces = _pieces(case.ids, [rng.randrange(60) for _ in range(rng.randrange(10))])

    whole, shown, taken = case.new(), "", 0
    for piece in pieces:
        delta, count = whole.feed(piece)
        shown, taken = shown + delta, taken + count
        if whole.stop is not None:
            break
    shown += "" if whole.stop else whole.finish()
    assert (shown, whole.stop, taken) == (text, stop, num_taken)

    cut = rng.randrange(len(case.ids) + 1)  # another run goes on from there
    first, second = case.new(), case.new()
    before, count = first.feed(case.ids[:cut])
    assert second.resume(case.ids[:count]) == before
    assert second.stop == first.stop
    after = "" if second.stop else second.feed(case.ids[cut:])[0]
    after += "" if second.stop else second.finish()
    assert (before + after, second.stop) == (text, stop)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "num_cases", [200, pytest.param(5_000, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_r47_random_stops_splits_ends_and_resumptions_are_as_defined(
    tokenizers: dict[str, Tokenizer], family: str, num_cases: int
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(num_cases):
        _check_stops(tokenizers[family], rng)


def test_decoders_are_of_the_kinds_they_are_said_to_be(tmp_path: Path) -> None:
    built = {name: Tokenizer(build(tmp_path / name)) for name, build in DECODERS.items()}
    assert {n for n, t in built.items() if t.byte_values} == {"mistral", "gemma"}
    assert sorted(built["gemma"].byte_values.values()) == list(range(256))
