"""What makes the masks of a step: matchers whose grammars are shared by answers."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import llguidance
import pytest

from engine.core.structured import compiling, masker
from engine.core.structured.frames import MASKED, MISSING, Channel, Row, Setup, Source, Step, Try
from engine.core.structured.masker import Masker

WORDS = Source("regex", "|".join(f".*{letter}.{{12}}" for letter in "abcdefghijklmnop"))


@pytest.fixture
def own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Masker]:
    """One in this process, whose lexers know few states."""
    monkeypatch.setattr(masker, "limit_memory", lambda num_bytes: None)
    monkeypatch.setitem(compiling.LIMITS, "max_lexer_states", 2000)
    text = (folder / "tokenizer.json").read_text()
    tokenizer = llguidance.LLTokenizer(text)
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
