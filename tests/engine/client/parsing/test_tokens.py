"""From token ids to events: what a vocabulary's own tokens mean, and what spells them does not."""

from collections.abc import Callable, Sequence
from itertools import starmap
from pathlib import Path

import pytest

from engine.client.parsing.events import Event, ReasoningDelta, TextDelta, joined
from engine.client.parsing.formats import grammar_of
from engine.client.parsing.grammar import Grammar
from engine.client.parsing.marks import AddedToken
from engine.client.parsing.parser import AnswerParser
from engine.client.requests.request_state import new_detokenizer
from engine.client.text.detokenizer import Detokenizer
from engine.client.text.tokenizer import Tokenizer
from engine.sampling_params import SamplingParams
from tests.engine.helpers.small_tokenizers import build_chatml, build_gemma


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer(build_chatml(tmp_path))


@pytest.fixture
def grammar(tokenizer: Tokenizer) -> Grammar:
    tokens = starmap(AddedToken, tokenizer.added_tokens)
    return grammar_of(tokenizer.chat_template.source, tokens, tokenizer.response_template)


def _read(tokenizer: Tokenizer, grammar: Grammar, ids: Sequence[int]) -> list[Event]:
    detokenizer = new_detokenizer(tokenizer, [], SamplingParams(), grammar.marks)
    parser = AnswerParser(grammar)
    events = [event for each in ids for event in parser.feed(detokenizer.feed([each])[0])]
    return joined([*events, *parser.feed(detokenizer.finish()), *parser.finish()])


def test_tokens_begin_and_end_a_thought(tokenizer: Tokenizer, grammar: Grammar) -> None:
    assert grammar.format.name == "think"
    ids = tokenizer.encode("<think>\nHm, é😀</think>\n\nYes.", add_special_tokens=False)
    events = [ReasoningDelta("Hm, é😀"), TextDelta("Yes.")]
    assert _read(tokenizer, grammar, ids) == events


def test_what_spells_a_token_is_text(tokenizer: Tokenizer, grammar: Grammar) -> None:
    ids = [i for part in ("<", "think", ">", "Hm") for i in tokenizer.encode(part, False)]
    assert _read(tokenizer, grammar, ids) == [TextDelta("<think>Hm")]


def test_special_tokens_are_no_part_of_an_answer(tokenizer: Tokenizer, grammar: Grammar) -> None:
    ids = tokenizer.encode("Yes.<|im_end|>", add_special_tokens=False)
    assert _read(tokenizer, grammar, ids) == [TextDelta("Yes.")]
    added = {text: is_shown for _, text, is_shown in tokenizer.added_tokens}
    assert (added["<|im_end|>"], added["<think>"]) == (False, True)


@pytest.mark.parametrize("build", [build_chatml, build_gemma])
def test_a_mark_comes_after_the_half_of_a_character_that_it_cuts(
    build: Callable[[Path], Path], tmp_path: Path
) -> None:
    tokenizer = Tokenizer(build(tmp_path))
    (first, second), end = tokenizer.encode("é", False), tokenizer.eos_token_id
    assert end is not None
    detokenizer = Detokenizer(tokenizer, mark_characters={end: "\ud800"})
    ids = (first, end, second, *tokenizer.encode("é", False))
    text = "".join(detokenizer.feed([each])[0] for each in ids) + detokenizer.finish()
    assert text == "\ufffd\ud800\ufffdé"
