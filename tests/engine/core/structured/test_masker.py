"""What makes the masks of a step: matchers whose grammars are shared by answers."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import llguidance
import pytest

from engine.core.structured import compiling, masker
from engine.core.structured.frames import (
    MASKED,
    MISSING,
    OPEN,
    TAKEN,
    Channel,
    Offers,
    Row,
    Setup,
    Source,
    Step,
    Try,
)
from engine.core.structured.masker import Masker
from tests.engine.core.structured.test_answers import TAG

WORDS = Source("regex", "|".join(f".*{letter}.{{12}}" for letter in "abcdefghijklmnop"))


@pytest.fixture
def own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Masker]:
    """One in this process, whose lexers know few states."""
    monkeypatch.setattr(masker, "limit_memory", lambda num_bytes: None)
    monkeypatch.setitem(compiling.LIMITS, "max_lexer_states", 2000)
    text = (folder / "tokenizer.json").read_text()
    tokenizer = llguidance.LLTokenizer(text, n_vocab=400)  # there are logits of no token, too
    fd = os.memfd_create("masks")
    setup = Setup("", tokenizer.vocab_size, [], 1)
    os.ftruncate(fd, -(-tokenizer.vocab_size // 32) * 4)
    # This masker is asked directly, through no channel.
    nobody: Channel = None  # type: ignore[assignment]
    yield Masker(tokenizer, setup, fd, nobody, nobody)
    os.close(fd)


def test_what_other_answers_have_needed_of_a_grammar_ends_none(own: Masker) -> None:
    num_anew = 0
    for number in range(8):
        chosen, said, told = random.Random(number), list[int](), 0
        assert own.check(Try("words", WORDS, "", [])).problem == ""
        key = "words"
        for _ in range(40):
            (state,) = own.mask(Step([Row(number, key, said[told:], True)], [])).rows
            if state.state == MISSING:
                num_anew += 1
                assert own.check(Try("words", WORDS, "", said)).problem == ""
                (state,) = own.mask(Step([Row(number, "words", said, True)], [])).rows
            assert (state.state, state.problem) == (MASKED, "")
            key, told = "", len(said)
            mask = int.from_bytes(own._words.tobytes(), "little")
            place = chosen.randrange(mask.bit_length())
            mask >>= place
            said.append(place + (mask & -mask).bit_length() - 1)
    assert num_anew


@pytest.mark.parametrize("without_eos", [False, True])
@pytest.mark.parametrize(
    "source",
    [
        Source("regex", "([a-z]{2,5} ){9}|[ab]*"),
        Source("grammar", 'start: "x" /[0-9]+/ ("y" | <[5]>)* /.*/'),
        Source("tags", json.dumps(TAG)),
    ],
    ids=["regex", "grammar", "tags"],
)
def test_an_offer_is_taken_where_its_mask_has_a_bit(
    own: Masker, source: Source, without_eos: bool
) -> None:
    chosen, num_open = random.Random(3), 0
    assert own.check(Try("key", source, "", [])).problem == ""
    key, said = "key", list[int]()
    for _ in range(12):
        (state,) = own.mask(Step([Row(1, key, said, without_eos, offers=True)], [])).rows
        is_open, key = state.state == OPEN, ""
        if is_open:
            num_open += 1
            (state,) = own.judge(Offers([-1])).rows
        if state.state != MASKED:
            break  # only the end may follow
        mask = int.from_bytes(own._words.tobytes(), "little")
        allowed = [token for token in range(400) if mask >> token & 1]
        if is_open:
            taken = [own.judge(Offers([token])).rows[0].state == TAKEN for token in range(400)]
            assert [token for token in range(400) if taken[token]] == allowed
        said = [chosen.choice([it for it in allowed if it != own._tokenizer.eos_token])]
    assert num_open > 2


def test_whose_offer_was_refused_has_a_mask_ahead_of_the_next(own: Masker) -> None:
    assert own.check(Try("key", Source("regex", "[ab]*"), "", [])).problem == ""
    (letter,) = own._tokenizer.tokenize_str("a")
    places = list[list[int]]()
    for key, offered in [("key", letter), ("", -1), ("", letter), ("", letter)]:
        own.mask(Step([Row(1, key, [letter], True, offers=True)], []))
        own.mask_ahead()
        places.append(list(own._made))
        own.judge(Offers([offered]))
    assert places == [[], [], [0], []]


def test_fewer_grammars_are_kept_of_those_that_have_much_memory(
    own: Masker, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_use = 0
    monkeypatch.setattr(masker, "resident_bytes", lambda: in_use)

    def check(number: int) -> None:
        assert own.check(Try(f"{number}", Source("regex", f"a{number}"), "", [])).problem == ""

    for number in range(20):
        check(number)
    assert len(own._grammars) == 20
    in_use = masker.KEPT_BYTES + 1
    check(20)
    assert list(own._grammars) == [f"{n}" for n in range(20 - masker.MIN_GRAMMARS + 1, 21)]
