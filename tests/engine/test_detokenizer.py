from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.detokenizer import REPLACEMENT, Detokenizer, IncrementalDecoder, StopMatcher
from engine.tokenizer import Tokenizer
from tests.engine.small_tokenizers import BUILDERS, build_chatml

TEXTS = [
    "Hello, how are you today?",
    "family 👩‍👩‍👧‍👦 and 👍🏽, flags 🇨🇿🇯🇵",
    "東京の朝は静かです。",
    "Příliš žluťoučký kůň úpěl ďábelské ódy",
    "สวัสดีครับ ยินดีต้อนรับ",
    "a \ufffd b \ufffd\ufffd",
    "  leading and   inner spaces \n\n\ttabs ",
]
FAMILIES = ("chatml", "mistral", "zephyr")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    root = tmp_path_factory.mktemp("tokenizers")
    return {name: Tokenizer(BUILDERS[name](root / name)) for name in FAMILIES}


def _full_decode(tokenizer: Tokenizer, prompt: list[int], ids: list[int]) -> str:
    before = tokenizer.decode(prompt, skip_special_tokens=True)
    return tokenizer.decode(prompt + ids, skip_special_tokens=True)[len(before) :]


def _pieces(ids: list[int], cuts: list[int]) -> list[list[int]]:
    places = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [ids[a:b] for a, b in pairwise(places)]


def _deltas(decoder: IncrementalDecoder, pieces: list[list[int]]) -> list[str]:
    return [*map(decoder.feed, pieces), decoder.finish()]


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
    deltas = _deltas(decoder, [ids[i : i + step] for i in range(0, len(ids), step)])
    assert "".join(deltas) == _full_decode(tokenizer, prompt, ids)


@given(
    ids=st.lists(st.integers(0, 419), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=20),
)
@settings(max_examples=250, deadline=None)
def test_any_bytes_in_any_pieces_are_the_full_decode(
    tokenizers: dict[str, Tokenizer], ids: list[int], cuts: list[int]
) -> None:
    tokenizer = tokenizers["chatml"]
    prompt = tokenizer.encode("Hello, ")
    full = _full_decode(tokenizer, prompt, ids)
    decoder = IncrementalDecoder(tokenizer, prompt)
    shown = ""
    for piece in _pieces(ids, cuts):
        shown += decoder.feed(piece)
        assert full.startswith(shown)  # so a U+FFFD only where the full decode has one
    assert shown + decoder.finish() == full


@given(text=st.text(max_size=40), cuts=st.lists(st.integers(0, 60), max_size=20))
@settings(max_examples=300, deadline=None)
def test_no_whole_character_waits(
    tokenizers: dict[str, Tokenizer], text: str, cuts: list[int]
) -> None:
    tokenizer = tokenizers["chatml"]
    decoder = IncrementalDecoder(tokenizer)
    shown, seen = "", []
    for piece in _pieces(tokenizer.encode(text, add_special_tokens=False), cuts):
        shown += decoder.feed(piece)
        seen += piece
        assert shown == tokenizer.decode(seen, skip_special_tokens=True).rstrip(REPLACEMENT)


def test_unfinished_character_is_given_out_at_the_end(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["chatml"]
    decoder = IncrementalDecoder(tokenizer)
    ids = tokenizer.encode("👍", add_special_tokens=False)[:-1]
    assert decoder.feed(ids) == ""
    assert decoder.finish() == REPLACEMENT
    assert decoder.finish() == ""


@pytest.mark.parametrize("family", FAMILIES)
def test_prompt_that_ends_inside_a_character_leaks_nothing(
    tokenizers: dict[str, Tokenizer], family: str
) -> None:
    tokenizer = tokenizers[family]
    secret = tokenizer.encode("the secret prompt 👍")
    for cut in (1, 2, 3):
        decoder = IncrementalDecoder(tokenizer, secret[:-cut])
        deltas = _deltas(decoder, [[i] for i in tokenizer.encode(" Hello", False)])
        assert "".join(deltas).strip(REPLACEMENT).strip() == "Hello"


def test_endless_garbage_is_given_out_and_the_text_after_it_too(
    tokenizers: dict[str, Tokenizer],
) -> None:
    tokenizer = tokenizers["chatml"]
    broken = tokenizer.encode("👍", add_special_tokens=False)[0]
    ids = [broken] * 400 + tokenizer.encode("Hello", add_special_tokens=False)
    decoder = IncrementalDecoder(tokenizer)
    deltas = [decoder.feed([token_id]) for token_id in ids]
    assert "".join(deltas).endswith("Hello")
    assert "".join(deltas).count(REPLACEMENT) == 400
    assert max(map(len, deltas)) < 40


@pytest.mark.parametrize("family", FAMILIES)
def test_special_tokens_in_the_answer_are_skipped(
    tokenizers: dict[str, Tokenizer], family: str
) -> None:
    tokenizer = tokenizers[family]
    special = tokenizer.all_special_ids[-1]
    ids = [*tokenizer.encode("Hello", False), special, *tokenizer.encode("you", False)]
    shown = "".join(_deltas(IncrementalDecoder(tokenizer), [[i] for i in ids]))
    assert tokenizer.convert_ids_to_tokens(special) not in shown


# ---- stop strings


def _expected(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """By definition: the first place where a stop string is complete ends the text."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


def _run(matcher: StopMatcher, pieces: list[str]) -> tuple[str, str | None]:
    shown = ""
    for piece in pieces:
        safe, stop = matcher.feed(piece)
        shown += safe
        if stop is not None:
            return shown, stop
    return shown + matcher.flush(), None


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("text", ["one STOP two", "SSTOSTOPX", "no such thing STO", "STOP"])
def test_stop_string_is_found_over_every_split(text: str, include: bool) -> None:
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            pieces = [text[:first], text[first:second], text[second:]]
            matcher = StopMatcher(["STOP"], include_in_output=include)
            assert _run(matcher, pieces) == _expected(text, ["STOP"], include)


@given(
    text=st.text("ab\n", max_size=30),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=5), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=10),
    include=st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_stops_in_any_pieces_are_as_defined(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(places)]
    assert _run(StopMatcher(stops, include_in_output=include), pieces) == _expected(
        text, stops, include
    )


@given(
    text=st.text("ab", max_size=20),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
)
@settings(max_examples=250, deadline=None)
def test_only_what_may_become_a_stop_string_is_held(text: str, stops: list[str]) -> None:
    matcher, shown = StopMatcher(stops), ""
    for place, character in enumerate(text, 1):
        safe, stop = matcher.feed(character)
        if stop is not None:
            return
        shown += safe
        so_far = text[:place]
        held = max(
            (n for s in stops for n in range(1, len(s)) if so_far.endswith(s[:n])), default=0
        )
        assert shown == so_far[: len(so_far) - held]


def test_stop_that_completes_first_wins_and_ties_go_by_order() -> None:
    assert StopMatcher(["world!", "wor"]).feed("hello world!") == ("hello ", "wor")
    assert StopMatcher(["ab", "b"]).feed("xab") == ("x", "ab")
    assert StopMatcher(["b", "ab"]).feed("xab") == ("xa", "b")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer(build_chatml(tmp_path))


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


def test_what_is_held_for_a_stop_string_is_given_out_at_the_end(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, stops=["stop it"])
    ids = tokenizer.encode("please stop", add_special_tokens=False)
    assert detokenizer.feed(ids)[0] == "please "
    assert detokenizer.finish() == "stop"


def test_stop_strings_are_not_looked_for_in_the_first_min_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("END and END", add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer, stops=["END"], min_tokens=len(ids) - 3)
    assert detokenizer.feed(ids)[0] == "END and "


@given(cut=st.integers(0, 40))
def test_resuming_holds_what_was_held(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    global _shared
    if _shared is None:
        _shared = Tokenizer(build_chatml(tmp_path_factory.mktemp("resume")))
    ids = _shared.encode("Hi 👍 STO! and STOP here", add_special_tokens=False)
    cut = min(cut, len(ids))
    whole = Detokenizer(_shared, stops=["STOP"])
    before, num_taken = whole.feed(ids[:cut])
    after = Detokenizer(_shared, stops=["STOP"])
    after.resume(ids[:num_taken])
    rest = "" if after.stop else after.feed(ids[cut:])[0]
    assert before + rest == "Hi 👍 STO! and "


_shared: Tokenizer | None = None
