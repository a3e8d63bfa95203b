"""Which tokens begin and end the thoughts of a format, and whose cannot be ended."""

import pytest

from engine.client.holding.thoughts import thought_tokens
from engine.client.parsing.formats import FORMATS
from engine.client.parsing.grammar import Grammar
from engine.client.parsing.marks import AddedToken
from engine.client.parsing.parser import AnswerParser
from engine.errors import ValidationError
from engine.grammar.thoughts import ThoughtMarks, ThoughtTokens

MARKS = (
    *("<think>", "</think>", "[THINK]", "[/THINK]", "<|channel|>", "<|message|>"),
    *("<|start|>", "<|end|>", "<|return|>", "<|call|>"),
)
IDS = {text: token_id for token_id, text in enumerate(MARKS, 400)}


def encode(text: str) -> list[int]:
    return [ord(character) for character in text]


def grammar_of(name: str, *without: str) -> Grammar:
    tokens = [
        AddedToken(token_id, text, text.startswith("<t"))
        for text, token_id in IDS.items()
        if text not in without
    ]
    return Grammar(FORMATS[name], tokens)


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [
        *((name, "<think>", "</think>") for name in ("hermes", "qwen_xml", "glm", "think")),
        *((name, "<think>", "</think>") for name in ("deepseek", "deepseek_fenced")),
        *((name, "[THINK]", "[/THINK]") for name in ("mistral", "mistral_list")),
    ],
)
def test_marks_that_are_tokens_begin_and_end_a_thought(name: str, begin: str, end: str) -> None:
    expected = ThoughtTokens([ThoughtMarks([IDS[begin]], [IDS[end]])])
    assert thought_tokens(grammar_of(name), encode) == expected


def test_a_channel_is_begun_by_tokens_in_a_row_and_ended_by_one_of_several() -> None:
    begin = [IDS["<|channel|>"], *encode("analysis"), IDS["<|message|>"]]
    ends = [IDS["<|end|>"], IDS["<|return|>"], IDS["<|call|>"]]
    found = thought_tokens(grammar_of("harmony"), encode, end_token_ids=ends[1:])
    assert found == ThoughtTokens([ThoughtMarks(begin, ends)])


def test_a_word_in_what_begins_a_thought_may_be_any_tokens_that_spell_it() -> None:
    tokens = {"ana": 1, "an": 2, "a": 3, "lysis": 4, "analysis": 5, "s": 6, "lysi": 7}

    def split(text: str) -> list[int]:
        return [tokens[text]] if text in tokens else [ord(character) for character in text]

    before, after = IDS["<|channel|>"], IDS["<|message|>"]
    kinds = thought_tokens(grammar_of("harmony"), split).kinds
    begins = [kind.begin for kind in kinds]
    assert begins[0] == [before, 5, after] and len(begins) == len({tuple(it) for it in begins})
    for between in ([1, 4], [1, 7, 6], [2, 3, 4]):
        assert [before, *between, after] in begins
    assert all((begin[0], begin[-1]) == (before, after) for begin in begins)
    grammar = grammar_of("harmony")
    (reasoning,) = (each for each in grammar.format.fields if each.role == "reasoning")
    assert thought_tokens(grammar, split, thought=reasoning).begun == 0


def test_a_prompt_may_have_begun_it() -> None:
    grammar = grammar_of("hermes")
    thought = AnswerParser(grammar, prompt=grammar.marks.mark("<think>\n")).thought
    assert thought_tokens(grammar, encode, thought=thought).begun == 0
    assert AnswerParser(grammar, prompt=grammar.marks.mark("<think>\n</think>")).thought is None


@pytest.mark.parametrize(
    ("name", "without", "ends", "problem"),
    [
        ("plain", (), (), "plain, has no thoughts"),
        ("llama", (), (), "llama, has no thoughts"),
        ("hermes", ("</think>",), (), "'</think>'.* is no token"),
        ("hermes", ("<think>",), (), "'<think>'.* is no token"),
        ("harmony", (), ("<|end|>",), "ends its answers"),
    ],
)
def test_thoughts_that_cannot_be_ended_are_refused_by_name(
    name: str, without: tuple[str, ...], ends: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(ValidationError, match=problem) as caught:
        thought_tokens(
            grammar_of(name, *without), encode, end_token_ids=[IDS[each] for each in ends]
        )
    assert caught.value.parameter == "thinking_token_budget"
