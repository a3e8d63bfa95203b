"""`Detokenizer`: ids to text, with stop strings over tokens, at a constant cost for each token."""

import random
from collections.abc import Sequence

import pytest

from engine.client.text.byte_decoder import REPLACEMENT
from engine.client.text.detokenizer import Detokenizer, IncrementalDecoder, token_text
from engine.client.text.tokenizer import Tokenizer
from tests.engine.helpers.decoding import FAMILIES, pieces_of
from tests.engine.helpers.small_tokenizers import build_chatml


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


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(build_chatml(tmp_path_factory.mktemp("stops")))


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_ids_after_a_stop_string_are_not_taken(tokenizer: Tokenizer, batch: int) -> None:
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
def test_what_is_held_for_a_stop_string_is_given_out_at_the_end(
    tokenizer: Tokenizer, end: str
) -> None:
    detokenizer = Detokenizer(tokenizer, stops=["stop it", "stop 👍!"])
    tail = {"eos": "", "length": " ", "abort": " 👍"}[end]
    ids = tokenizer.encode("please stop" + tail, add_special_tokens=False)
    assert "".join(detokenizer.feed([i])[0] for i in ids) == "please "
    assert detokenizer.finish() == "stop" + tail
    assert detokenizer.stop is None


@pytest.mark.parametrize("stop", ["👍", "x👍", "👍y", "y é"])
def test_stop_string_may_begin_and_end_inside_a_token(tokenizer: Tokenizer, stop: str) -> None:
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
    pieces = pieces_of(case.ids, [rng.randrange(60) for _ in range(rng.randrange(10))])

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
def test_random_stops_splits_ends_and_resumptions_follow_the_definition(
    tokenizers: dict[str, Tokenizer], family: str, num_cases: int
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(num_cases):
        _check_stops(tokenizers[family], rng)


# ---- one token's text


@pytest.mark.parametrize("family", FAMILIES)
def test_a_character_in_pieces_is_the_text_of_its_last_token(
    tokenizers: dict[str, Tokenizer], family: str
) -> None:
    tokenizer = tokenizers[family]
    for character in "€東👍🏽ž":
        ids = tokenizer.encode(f"a{character}", add_special_tokens=False)
        if tokenizer.decode(ids) != f"a{character}":
            continue  # this vocabulary cannot write it
        texts = [token_text(tokenizer, each, ids[:place]) for place, each in enumerate(ids)]
        assert "".join(texts) == f"a{character}"
        assert all(REPLACEMENT not in text for text in texts)


class Utf8:
    """A token is up to four bytes, as one number."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return b"".join(each.to_bytes(4).lstrip(b"\0") for each in token_ids).decode(
            errors="replace"
        )


def _token(data: bytes) -> int:
    return int.from_bytes(data)


@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        ([b"x", b"\xe2", b"\x82", b"\xac"], ["x", "", "", "€"]),
        ([b"\xe2\x82", b"\xac\xe2", b"\x82\xac", b"\xe2"], ["", "€", "€", ""]),
        ([b"\xe2", b"\x82\xac!"], ["", "€!"]),
        ([b"\xf0", b"\x9f", b"\x91", b"\x8d", b"."], ["", "", "", "👍", "."]),
        ([b"\x82", b"\x82", b"a"], ["", "", "a"]),
    ],
)
def test_tokens_that_cut_characters_share_out_the_text(
    pieces: list[bytes], texts: list[str]
) -> None:
    ids = [_token(piece) for piece in pieces]
    assert [token_text(Utf8(), each, ids[:place]) for place, each in enumerate(ids)] == texts
