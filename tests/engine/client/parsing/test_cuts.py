"""Answers of every format, whole and broken, cut anywhere: the events say the same."""

import random
from collections import Counter

import pytest

from engine.client.parsing.events import CallArguments, joined
from engine.client.parsing.formats import FORMATS
from engine.client.parsing.grammar import Grammar
from engine.client.parsing.parser import AnswerParser
from tests.engine.client.parsing.answers import (
    BITS,
    TOOLS,
    WRITTEN,
    Writer,
    cut,
    new_seed,
    read,
    said,
    tokens_of,
)

CUTS_OF_ONE = 5
MANY_CUTS = 10_000
NUM_CUTS = [500, pytest.param(MANY_CUTS, marks=pytest.mark.slow)]
MARKERS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    *("[THINK]", "[/THINK]", "<|python_tag|>", "<arg_key>", "</arg_key>", "<arg_value>"),
    *("</arg_value>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
    *(
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|end|>",
    ),
    *("<|call|>", "<|return|>", "<|constrain|>"),
)
PARTS = (
    *("<function=", "<parameter=", ">", "</parameter>", "</function>", " to=functions.x", "}}"),
    *('{"name": "x", ', '"arguments": {', "functions.search", '{"name": "x", "parameters": 3}'),
)


# A call in each format, around its arguments.
CALLS = {
    "hermes": ('<tool_call>\n{"name": "search", "arguments": ', "}\n</tool_call>"),
    "llama": ('{"name": "search", "parameters": ', "}"),
    "mistral_list": ('[TOOL_CALLS][{"name": "search", "arguments": ', "}]"),
    "mistral": ("[TOOL_CALLS]search[ARGS]", ""),
    "deepseek": ("<｜tool▁call▁begin｜>search<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    "deepseek_fenced": (
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n",
        "\n```<｜tool▁call▁end｜>",
    ),
    "harmony": ("<|channel|>commentary to=functions.search json<|message|>", "<|call|>"),
}
VALUES = {
    "qwen_xml": (
        "<tool_call>\n<function=search>\n<parameter=city>\n",
        "\n</parameter>\n</function>\n</tool_call>",
    ),
    "glm": (
        "<tool_call>search\n<arg_key>city</arg_key>\n<arg_value>",
        "</arg_value>\n</tool_call>",
    ),
}


def _grammar(name: str, rng: random.Random, *, has_tokens: bool) -> Grammar:
    tokens = tokens_of(MARKERS, are_shown=rng.random() < 0.5) if has_tokens else ()
    return Grammar(FORMATS[name], tokens)


def _without_space(text: str) -> str:
    return "".join(text.split())


def broken(rng: random.Random, grammar: Grammar, text: str) -> str:
    """What a model might write that goes wrong."""
    marks = [grammar.marks.mark(each) for each in MARKERS]
    for _ in range(rng.randint(1, 4)):
        start = rng.randint(0, len(text))
        end = start + rng.choice((0, 1, 2, 5, 20))
        put = rng.choice(("", rng.choice(marks), rng.choice(PARTS), rng.choice(BITS)))
        text = text[:start] + put + text[end:]
    return text[: rng.randint(0, len(text))] if rng.random() < 0.3 else text


def seeds(num_cuts: int) -> range:
    """Of as many answers. The long runs have new ones each time."""
    first = 0 if num_cuts < MANY_CUTS else new_seed()
    return range(first, first + num_cuts // CUTS_OF_ONE)


@pytest.mark.parametrize("num_cuts", NUM_CUTS)
@pytest.mark.parametrize("name", WRITTEN)
def test_events_say_what_the_model_wrote_however_it_is_cut(name: str, num_cuts: int) -> None:
    num_calls = 0
    for seed in seeds(num_cuts):
        rng = random.Random(f"{name}{seed}")
        has_tokens = rng.random() < 0.6
        grammar = _grammar(name, rng, has_tokens=has_tokens)
        writer = Writer(rng, grammar, has_tokens=has_tokens)
        text = writer.write()
        events = joined(read(grammar, [text]))
        whole = said(events)
        assert _without_space(whole.text) == _without_space(writer.expected.text), (seed, text)
        assert _without_space(whole.reasoning) == _without_space(writer.expected.reasoning)
        assert whole.values() == writer.arguments, (seed, text)
        assert all(is_valid for *_, is_valid in whole.calls)
        num_calls += len(whole.calls)
        for _ in range(CUTS_OF_ONE):
            pieces = cut(rng, text)
            assert joined(read(grammar, pieces)) == events, (seed, pieces)
    assert num_calls > num_cuts // CUTS_OF_ONE / 3


@pytest.mark.parametrize("num_cuts", NUM_CUTS)
@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_broken_says_the_same_however_it_is_cut(name: str, num_cuts: int) -> None:
    num_calls: Counter[bool | None] = Counter()
    for seed in seeds(num_cuts):
        rng = random.Random(f"broken {name}{seed}")
        has_tokens = rng.random() < 0.6
        grammar = _grammar(name, rng, has_tokens=has_tokens)
        text = broken(rng, grammar, Writer(rng, grammar, has_tokens=has_tokens).write())
        events = joined(read(grammar, [text]))
        num_calls.update(is_valid for *_, is_valid in said(events).calls)
        for _ in range(CUTS_OF_ONE):
            pieces = cut(rng, text)
            assert joined(read(grammar, pieces)) == events, (seed, pieces)
    assert num_calls[None] == 0  # each call has an end
    assert min(num_calls[True], num_calls[False]) > num_cuts // CUTS_OF_ONE / 20


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 12])
@pytest.mark.parametrize("name", [*CALLS, *VALUES])
def test_arguments_leave_within_a_token_of_being_certain(name: str, length: int) -> None:
    before, after = CALLS.get(name) or VALUES[name]
    arguments = '{"city": "Rome, é😀 <tool> \\\\ }", "days": [1, {"a": 2}]}'
    skipped = 0
    if name in VALUES:
        arguments, skipped = "Rome, é😀 <tool> and on, }", len('{"city": "')
    text = before + arguments + after
    parser = AnswerParser(Grammar(FORMATS[name]), tools=TOOLS)
    streamed = ""
    for start in range(0, len(text), length):
        for event in parser.feed(text[start : start + length]):
            streamed += event.delta if isinstance(event, CallArguments) else ""
        certain = arguments[: max(0, start - len(before))]  # of the tokens before this one
        assert streamed[skipped:].startswith(certain.rstrip()), (start, streamed)
    assert streamed[skipped:].startswith(arguments)
