"""`AnswerParser`: what it says, and when."""

import time

import pytest

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
from engine.client.parsing.marks import AddedToken
from engine.client.parsing.parser import AnswerParser
from tests.engine.client.parsing.answers import TOOLS, read, said

HERMES = Grammar(FORMATS["hermes"])
MARKED = Grammar(
    FORMATS["hermes"],
    [
        AddedToken(number, text, True)
        for number, text in enumerate(("<think>", "</think>", "<tool_call>", "</tool_call>"))
    ],
)


def _parser(name: str = "hermes", prompt: str = "") -> AnswerParser:
    return AnswerParser(Grammar(FORMATS[name]), tools=TOOLS, prompt=prompt)


def _all(name: str, text: str, prompt: str = "") -> list[Event]:
    return joined(read(Grammar(FORMATS[name]), [text], prompt))


def test_thoughts_a_text_and_calls() -> None:
    text = (
        "<think>\nThe mill?\n</think>\n\nLet me see.\n"
        '<tool_call>\n{"name": "search", "arguments": {"city": "Rome"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "x", "arguments": {}}\n</tool_call>'
    )
    assert _all("hermes", text) == [
        ReasoningDelta("The mill?"),
        TextDelta("Let me see."),
        CallBegin(0, "call_0", "search"),
        CallArguments(0, '{"city": "Rome"}'),
        CallEnd(0, True),
        CallBegin(1, "call_1", "x"),
        CallArguments(1, "{}"),
        CallEnd(1, True),
    ]


def test_a_text_leaves_with_its_token() -> None:
    parser = _parser()
    assert parser.feed("At the") == [TextDelta("At the")]
    assert parser.feed(" mill") == [TextDelta(" mill")]


def test_white_space_waits_for_what_follows() -> None:
    parser = _parser()
    assert parser.feed("At \n") == [TextDelta("At")]
    assert parser.feed("last") == [TextDelta(" \nlast")]
    assert parser.feed(" ") == []
    assert parser.finish() == [TextDelta(" ")]


def test_the_beginning_of_a_marker_waits_no_longer_than_it_is_one() -> None:
    parser = _parser()
    assert parser.feed("a <tool") == [TextDelta("a")]
    assert parser.feed("_box>") == [TextDelta(" <tool_box>")]


def test_arguments_leave_with_their_token() -> None:
    parser = _parser()
    parser.feed('<tool_call>{"name": "search"')
    pieces = [', "arg', 'uments":', " {", '"ci', 'ty": "R', "ome", '"}', "}"]
    events = [joined(parser.feed(piece)) for piece in pieces]
    assert events[3:6] == [[CallArguments(0, each)] for each in ('"ci', 'ty": "R', "ome")]
    assert events[6:] == [[CallArguments(0, '"}')], [CallEnd(0, True)]]


@pytest.mark.parametrize(
    ("name", "before", "pieces"),
    [
        ("hermes", '<tool_call>{"name": "x", "arguments": {"a": "', ["b</too", "l_call", "> c"]),
        (
            "deepseek",
            '<｜tool▁call▁begin｜>x<｜tool▁sep｜>{"a": "',
            ["b<｜tool", "▁call▁en", "d c"],
        ),
        ("harmony", '<|channel|>commentary to=x<|message|>{"a": "', ["b<|", "cal", "l|>"]),
        ("glm", "<tool_call>x\n<arg_key>a</arg_key><arg_value>", ["b</tool", "_call", "> c"]),
    ],
)
def test_what_spells_an_end_within_a_text_waits_for_nothing(
    name: str, before: str, pieces: list[str]
) -> None:
    parser = AnswerParser(Grammar(FORMATS[name]), tools=TOOLS)
    parser.feed(before)
    for piece in pieces:
        assert parser.feed(piece) == [CallArguments(0, piece)]


def test_a_call_begins_with_its_name() -> None:
    parser = _parser()
    assert parser.feed('<tool_call>{"name": "sea') == []
    assert parser.feed('rch"') == [CallBegin(0, "call_0", "search")]


def test_arguments_that_come_before_the_name_wait_for_it() -> None:
    events = _all("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "x"}</tool_call>')
    assert events == [CallBegin(0, "call_0", "x"), CallArguments(0, '{"a": 1}'), CallEnd(0, True)]


def test_arguments_that_are_a_text_are_what_it_says() -> None:
    call = r'{"name": "x", "arguments": "{\"a\": \"\ud83d\ude00\u00e9\"}"}'
    events = read(HERMES, list(f"<tool_call>{call}</tool_call>"))
    assert said(events).calls == [("x", '{"a": "😀é"}', True)]


@pytest.mark.parametrize(
    "inside",
    [
        "oops",
        "{",
        '{"name": 3}',
        '{"name": "a b"}',
        '{"nom": "x"}',
        '{"name" "x"}',
        '["name"]',
        '{"arguments": {"a": 1}}',
    ],
)
def test_what_is_no_call_is_text(inside: str) -> None:
    text = f"See <tool_call>{inside}</tool_call> there."
    assert _all("hermes", text) == [TextDelta(text)]


@pytest.mark.parametrize(
    "rest",
    [
        ', "arguments": {"a": }}',
        ', "arguments": {"a": 1]}',
        ', "arguments": [1]}',
        ', "arguments": "no JSON"}',
        ', "arguments": {"a": "b',
        ", \"arguments\": {'a': 1}}",
        "; arguments",
    ],
)
def test_a_call_that_breaks_after_its_name_is_invalid(rest: str) -> None:
    events = _all("hermes", f'Yes. <tool_call>{{"name": "x"{rest}</tool_call>')
    assert events[:2] == [TextDelta("Yes."), CallBegin(0, "call_0", "x")]
    assert events[-1] == CallEnd(0, False)


def test_an_answer_that_ends_in_a_call_leaves_it_invalid() -> None:
    events = _all("hermes", '<tool_call>{"name": "x"')
    assert events == [CallBegin(0, "call_0", "x"), CallEnd(0, False)]


def test_an_answer_that_ends_before_the_name_has_a_text() -> None:
    assert _all("hermes", '<tool_call>{"name": "se') == [TextDelta('<tool_call>{"name": "se')]


def test_a_call_in_what_is_no_call() -> None:
    events = _all("hermes", '<tool_call>so: <tool_call>{"name": "x", "arguments": {}}</tool_call>')
    assert events[0] == TextDelta("<tool_call>so:")
    assert said(events).calls == [("x", "{}", True)]


def test_a_marker_that_is_spelled_in_an_argument_is_a_part_of_it() -> None:
    events = _all(
        "hermes", '<tool_call>{"name": "x", "arguments": {"a": "</tool_call>"}}</tool_call>'
    )
    assert said(events).calls == [("x", '{"a": "</tool_call>"}', True)]


def test_only_the_token_counts_where_the_vocabulary_has_one() -> None:
    begin, end = MARKED.marks.mark("<tool_call>"), MARKED.marks.mark("</tool_call>")
    call = '{"name": "x", "arguments": {"a": "</tool_call>"}}'
    assert joined(read(MARKED, [f"<tool_call>{call}</tool_call>"])) == [
        TextDelta(f"<tool_call>{call}</tool_call>")
    ]
    assert said(read(MARKED, [begin + call + end])).calls == [("x", '{"a": "</tool_call>"}', True)]


def test_a_token_ends_a_call_even_in_the_middle_of_a_text() -> None:
    begin, end = MARKED.marks.mark("<tool_call>"), MARKED.marks.mark("</tool_call>")
    events = joined(read(MARKED, [begin + '{"name": "x", "arguments": {"a": "b' + end + "Well."]))
    assert events[-2:] == [CallEnd(0, False), TextDelta("Well.")]


def test_a_token_that_means_nothing_here_is_shown_as_it_is_spelled() -> None:
    end = MARKED.marks.mark("</think>")
    assert joined(read(MARKED, ["a" + end + "b"])) == [TextDelta("a</think>b")]


def test_without_tools_a_call_is_text() -> None:
    parser = AnswerParser(HERMES)
    text = '<tool_call>{"name": "x", "arguments": {}}</tool_call>'
    assert joined(parser.feed(text) + parser.finish()) == [TextDelta(text)]


@pytest.mark.parametrize(
    ("prompt", "events"),
    [
        ("<|im_start|>assistant\n<think>\n", [ReasoningDelta("so"), TextDelta("Yes.")]),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", [TextDelta("so</think>Yes.")]),
        ("<|im_start|>assistant\n", [TextDelta("so</think>Yes.")]),
    ],
)
def test_the_prompt_may_have_begun_a_thought(prompt: str, events: list[Event]) -> None:
    assert _all("hermes", "so</think>Yes.", prompt) == events


def test_text_between_calls_keeps_its_white_space() -> None:
    call = '<tool_call>{"name": "x", "arguments": {}}</tool_call>'
    found = said(read(HERMES, [f"One.\n{call}\nTwo.\n{call}\n"]))
    assert found.text == "One.\n\nTwo."


def test_a_plain_answer_is_as_it_comes() -> None:
    parser = _parser("plain")
    assert parser.feed(" <think> \n") == [TextDelta(" <think> \n")]
    assert parser.finish() == []


def test_llama_calls_a_tool_that_there_is() -> None:
    text = '{"name": "x", "parameters": {"a": 1}}; {"name": "search", "parameters": {}}'
    assert said(_all("llama", text)).calls == [("x", '{"a": 1}', True), ("search", "{}", True)]


@pytest.mark.parametrize("text", ['{"name": "Clara", "parameters": {}}', '{"city": "x"}', "{x}"])
def test_an_answer_in_json_is_none_of_llamas_calls(text: str) -> None:
    assert _all("llama", text) == [TextDelta(text)]


def test_an_answer_in_json_is_not_held_back() -> None:
    parser = _parser("llama")
    assert parser.feed('{"city": ') == [TextDelta('{"city":')]


def test_mistral_names_the_call_itself() -> None:
    events = _all("mistral", '[TOOL_CALLS]x[CALL_ID]a1b2[ARGS]{"a": 1}')
    assert events[0] == CallBegin(0, "a1b2", "x")


def test_deepseek_writes_arguments_in_a_fence() -> None:
    call = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>x\n```json\n{"a": 1}\n```<｜tool▁call▁end｜>'
    text = f"<｜tool▁calls▁begin｜>{call}<｜tool▁calls▁end｜>"
    assert said(_all("deepseek_fenced", text)).calls == [("x", '{"a": 1}', True)]


def test_values_of_xml_are_what_the_tool_says() -> None:
    pairs = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n"
        for key, value in (("city", '5 "o\'clock"'), ("days", "5"))
    )
    text = f"<tool_call>\n<function=get_weather>\n{pairs}</function>\n</tool_call>"
    assert said(_all("qwen_xml", text)).values() == [
        ("get_weather", {"city": '5 "o\'clock"', "days": 5})
    ]


def test_a_value_of_xml_that_is_a_text_leaves_with_its_token() -> None:
    parser = _parser("qwen_xml")
    parser.feed("<tool_call><function=get_weather><parameter=city>\n")
    assert parser.feed("Ro") == [CallArguments(0, "Ro")]
    assert parser.feed("me\n") == [CallArguments(0, "me")]


def test_harmony_has_channels() -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.search <|constrain|>json<|message|>"
        '{"city": "Rome"}<|call|>'
    )
    found = said(_all("harmony", text))
    assert (found.reasoning, found.text) == ("Hm.", "I look.")
    assert found.calls == [("search", '{"city": "Rome"}', True)]


def test_harmony_without_channels_is_text() -> None:
    assert _all("harmony", "Hello, Clara.<|return|>") == [TextDelta("Hello, Clara.")]


def test_code_for_a_tool_of_harmony_is_an_invalid_call() -> None:
    text = "<|channel|>analysis to=python code<|message|>print('a')\nprint('b')<|call|>"
    assert said(_all("harmony", text)).calls == [("python", "print('a')\nprint('b')", False)]


@pytest.mark.parametrize(
    ("name", "bit"),
    [
        ("hermes", "<tool_call>{"),
        ("hermes", '<tool_call>{"arguments": '),
        ("hermes", "<"),
        ("hermes", " "),
        ("llama", '{"name": "x", "parameters": {'),
        ("qwen_xml", "<tool_call><function=x><parameter=a>"),
        ("mistral", "[TOOL_CALLS]x[ARGS]{"),
        ("harmony", " to=x"),
        ("harmony", "<|channel|>analysis"),
    ],
)
def test_the_work_grows_with_the_length_alone(name: str, bit: str) -> None:
    def seconds(num_characters: int) -> float:
        parser = _parser(name)
        text = bit * (num_characters // len(bit))
        started = time.process_time()
        for start in range(0, len(text), 4):
            parser.feed(text[start : start + 4])
        parser.finish()
        return time.process_time() - started

    assert min(seconds(40_000) for _ in range(2)) < 20 * max(seconds(5_000), 0.005)
