"""A checkpoint's `response_template`: what ours says of an answer is what transformers says."""

import copy
import random
from collections import Counter
from typing import Any

import pytest
from transformers.utils.chat_parsing import parse_response

from engine.client.parsing.events import (
    CallArguments,
    CallBegin,
    CallEnd,
    Event,
    ReasoningDelta,
    TextDelta,
    joined,
)
from engine.client.parsing.formats import FORMATS
from engine.client.parsing.grammar import Grammar
from engine.client.parsing.late_calls import LateCalls
from engine.client.parsing.pair_calls import PairCalls
from engine.client.parsing.parser import AnswerParser
from engine.client.parsing.response_template import (
    UnreadableTemplate,
    read_response_template,
)
from tests.engine.client.parsing.answers import TOOLS, Writer, cut, read, said
from tests.engine.client.parsing.test_cuts import CUTS_OF_ONE, NUM_CUTS, broken, seeds

FUNCTION = {"name": "{name}", "arguments": "{content}"}
QWEN = {  # as transformers serves Qwen 2 and 3
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {
            "close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>)",
            "content": "text",
        },
    },
}
XML = {  # and Qwen 3.5
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "close_pattern": r"</function>\s*</tool_call>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": (r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>")
            },
            "transform": {"type": "function", "function": FUNCTION},
        },
        "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)", "content": "text"},
    },
}
LATE_XML = copy.deepcopy(XML)
# The values of a template are of several types, which mypy takes for `object`.
LATE_XML["fields"]["tool_calls"]["content_args"]["merge_duplicates"] = True  # type: ignore[index]
GEMMA = {
    "start_anchor": ["<|turn>model\n", "<tool_response|>"],
    "fields": {
        "reasoning_content": {"open": "<|channel>thought\n", "close": "<channel|>"},
        "tool_calls": {
            "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
            "close": "<tool_call|>",
            "repeats": True,
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
            "transform": {"type": "function", "function": FUNCTION},
        },
        "content": {"close": ["<turn|>", "<|tool_response>", "<eos>"], "content": "text"},
    },
}
MISTRAL = {
    "start_anchor": "[/INST]",
    "fields": {
        "reasoning_content": {"open": "[THINK]", "close": "[/THINK]"},
        "tool_calls": {
            "open": "[TOOL_CALLS]",
            "content": "json",
            "transform_each": True,
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": "{arguments}"},
            },
        },
        "content": {},
    },
}
DEEPSEEK = {
    "start_anchor": "<｜Assistant｜>",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open_pattern": (
                r"\s*(?:<｜tool▁calls▁begin｜>)?\s*"
                r"<｜tool▁call▁begin｜>(?P<name>[^<]+)<｜tool▁sep｜>"
            ),
            "close_pattern": "<｜tool▁call▁end｜>(?:<｜tool▁calls▁end｜>)?",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": FUNCTION},
        },
        "content": {},
    },
}
START = r"(?:<\|start\|>assistant)?"
HARMONY = {
    "start_anchor": "<|start|>assistant",
    "fields": {
        "thinking": {
            "open_pattern": START + r"<\|channel\|>analysis<\|message\|>",
            "close": "<|end|>",
        },
        "content": {
            "open_pattern": START + r"<\|channel\|>(?:final|commentary)<\|message\|>",
            "close": ["<|end|>", "<|return|>"],
        },
        "tool_calls": {
            "open_pattern": (
                rf"(?:{START}\s+to=functions\.(?P<name>[\w.]+)<\|channel\|>commentary(?: json)?"
                rf"|{START}<\|channel\|>commentary to=functions\.(?P<name>[\w.]+)"
                r" <\|constrain\|>json)<\|message\|>"
            ),
            "close": "<|call|>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": FUNCTION},
        },
    },
}
# Template, the format that writes its answers, and what the prompt ends with.
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "qwen": (QWEN, "hermes", "<|im_start|>assistant\n"),
    "xml": (XML, "qwen_xml", "<|im_start|>assistant\n"),
    "late_xml": (LATE_XML, "qwen_xml", "<|im_start|>assistant\n"),
    "mistral": (MISTRAL, "mistral_list", "[/INST]"),
    "deepseek": (DEEPSEEK, "deepseek", "<｜Assistant｜>"),
    "harmony": (HARMONY, "harmony", "<|start|>assistant"),
}
OFFERED = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", **schema}}}
    for name, schema in TOOLS.items()
]


def _reference(text: str, template: dict[str, Any], prompt: str) -> dict[str, Any] | None:
    """What transformers says; None if it cannot read the answer."""
    try:
        message: dict[str, Any] = parse_response(text, template, prefix=prompt, tools=OFFERED)
    except ValueError:
        return None
    return message


@pytest.mark.parametrize("num_answers", [100, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_transformers_says_the_same(name: str, num_answers: int) -> None:
    template, format_name, prompt = CASES[name]
    grammar = Grammar(read_response_template(template))
    num_compared = 0
    for seed in range(num_answers):
        rng = random.Random(f"{name}{seed}")
        text = Writer(rng, Grammar(FORMATS[format_name]), has_tokens=False).write()
        begun = ""
        if text.startswith("<think>") and rng.random() < 0.5:
            text, begun = text.replace("<think>", "", 1), "<think>\n"
        text = text if rng.random() < 0.7 else text[: rng.randint(0, len(text))]
        events = joined(read(grammar, [text], prompt + begun))
        assert joined(read(grammar, cut(rng, text), prompt + begun)) == events, (seed, text)
        found = said(events)
        message = _reference(text, template, prompt + begun)
        if message is None or any(not is_valid for *_, is_valid in found.calls):
            continue  # of a call that was cut off it keeps what it can, and we say that it was
        if any("</tool_call>" in arguments for _, arguments, _ in found.calls):
            continue  # it ends a call in the middle of a text
        num_compared += 1
        thought = message.get("reasoning_content", message.get("thinking", ""))
        assert found.reasoning.strip() == thought.strip(), (seed, text)
        calls = [each["function"] for each in message.get("tool_calls", [])]
        assert found.values() == [(each["name"], each["arguments"]) for each in calls], (seed, text)
        # A second text takes the place of the first one there.
        assert found.text.strip().endswith(message.get("content", "")), (seed, text)
    assert num_compared > num_answers / 2


@pytest.mark.parametrize("num_cuts", NUM_CUTS)
@pytest.mark.parametrize("name", CASES)
def test_events_say_the_same_however_an_answer_is_cut(name: str, num_cuts: int) -> None:
    """Whole ones, and such that go wrong."""
    template, format_name, prompt = CASES[name]
    grammar, written_by = Grammar(read_response_template(template)), Grammar(FORMATS[format_name])
    num_calls: Counter[bool | None] = Counter()
    for seed in seeds(num_cuts):
        rng = random.Random(f"cut {name}{seed}")
        text = Writer(rng, written_by, has_tokens=False).write()
        text = text if rng.random() < 0.5 else broken(rng, written_by, text)
        events = joined(read(grammar, [text], prompt))
        num_calls.update(is_valid for *_, is_valid in said(events).calls)
        for _ in range(CUTS_OF_ONE):
            pieces = cut(rng, text)
            assert joined(read(grammar, pieces, prompt)) == events, (seed, pieces)
    assert num_calls[None] == 0  # each call has an end
    assert min(num_calls[True], num_calls[False]) > num_cuts // CUTS_OF_ONE / 50


def test_a_dialect_is_read_when_the_call_is_over() -> None:
    text = (
        "<|channel>thought\nHm.<channel|>I look.<|tool_call>call:search"
        '{city:<|"|>Rome, "the" {city}<|"|>,days:3}<tool_call|><turn|>'
    )
    grammar = Grammar(read_response_template(GEMMA))
    events = joined(read(grammar, list(text), "<|turn>model\n"))
    assert events == [
        ReasoningDelta("Hm."),
        TextDelta("I look."),
        CallBegin(0, "call_0", "search"),
        CallArguments(0, '{"city": "Rome, \\"the\\" {city}", "days": 3}'),
        CallEnd(0, True),
    ]
    message = _reference(text, GEMMA, "<|turn>model\n")
    assert message is not None
    assert said(events).values()[0][1] == message["tool_calls"][0]["function"]["arguments"]


def test_what_a_dialect_does_not_say_is_an_invalid_call() -> None:
    grammar = Grammar(read_response_template(GEMMA))
    events = joined(read(grammar, ["<|tool_call>call:search{city<tool_call|>Well."]))
    assert events == [
        CallBegin(0, "call_0", "search"),
        CallArguments(0, "{city"),
        CallEnd(0, False),
        TextDelta("Well."),
    ]


def test_the_name_leaves_before_the_arguments() -> None:
    parser = AnswerParser(Grammar(read_response_template(XML)), tools=TOOLS)
    assert parser.feed("<tool_call><function=search>") == []
    begin: list[Event] = [CallBegin(0, "call_0", "search")]
    assert parser.feed("<parameter=city>") == [*begin, CallArguments(0, '{"city": "')]


def test_what_spells_an_end_within_a_value_waits_for_nothing() -> None:
    parser = AnswerParser(Grammar(read_response_template(XML)), tools=TOOLS)
    parser.feed("<tool_call><function=search><parameter=city>")
    for piece in ("Rome </func", "tion> </tool", "_call here"):
        assert parser.feed(piece) == [CallArguments(0, piece)]


def test_what_is_plain_in_a_template_is_streamed() -> None:
    (field,) = (each for each in read_response_template(XML).fields if each.role == "call")
    assert isinstance(field.body, PairCalls)
    (field,) = (each for each in read_response_template(LATE_XML).fields if each.role == "call")
    assert isinstance(field.body, LateCalls)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"fields": {}},
        {"start_anchor": None},
        {"start_anchor": ""},
        {"start_anchor": [3]},
        {"fields": {"content": {"content": "yaml"}}},
        {"fields": {"a": {}, "b": {}}},
        {"fields": {"tool_calls": {}}},
        {"fields": {"a": {"open": "x", "open_pattern": "y"}}},
        {"fields": {"a": {"open_pattern": "("}}},
        {"fields": {"a": {"open_pattern": "a.*?b"}}},
        {"fields": {"a": {"open_pattern": r"(a)\1"}}},
        {"fields": {"a": {"open_pattern": "(?i)a"}}},
        {"fields": {"a": {"open_pattern": "a" * 2000}}},
        {"fields": {"a": {"open": "x", "content_args": 3}}},
    ],
)
def test_a_template_that_cannot_be_read_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UnreadableTemplate):
        read_response_template({**QWEN, **change})


def test_a_pattern_that_takes_too_long_leaves_the_rest_as_text() -> None:
    template = {"start_anchor": "x", "fields": {"content": {"close_pattern": "(?:a|a|a|a)+b"}}}
    parser = AnswerParser(Grammar(read_response_template(template)))
    events = parser.feed("One. " + "a" * 60)
    events += parser.feed(" Two.") + parser.finish()
    assert said(events).text == "One. " + "a" * 60 + " Two."
