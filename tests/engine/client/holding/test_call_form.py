"""What the form of a call lets through, the parser reads as calls that fit their schemas."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.client.holding.call_form import call_form
from engine.client.parsing.formats import FORMATS
from engine.client.parsing.grammar import Format, Grammar
from engine.client.parsing.marks import AddedToken
from engine.client.parsing.parser import AnswerParser
from engine.client.parsing.response_template import read_response_template
from engine.errors import ValidationError
from tests.engine.client.holding.walks import Vocabulary
from tests.engine.helpers.forms.schemas import fits

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["c", "f"]},
    },
    "required": ["city"],
    "additionalProperties": False,
}
SEARCH = {
    "type": "object",
    "properties": {
        "q": {"type": "string", "minLength": 1, "maxLength": 5},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2},
        "n": {"type": "number", "minimum": 0, "maximum": 10},
        "deep": {"type": "boolean"},
    },
    "required": ["q", "tags", "n"],
    "additionalProperties": False,
}
TOOLS: dict[str, dict[str, Any]] = {"weather": WEATHER, "search": SEARCH, "now": {}}
# One call of `weather` for Brno as the models of each format write it.
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Brno"}}\n</tool_call>',
    "qwen_xml": "<tool_call>\n<function=weather>\n<parameter=city>\nBrno\n</parameter>\n"
    "</function>\n</tool_call>",
    "glm": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Brno</arg_value>\n</tool_call>",
    "llama": '{"name": "weather", "parameters": {"city": "Brno"}}',
    "mistral_list": '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Brno"}}]',
    "mistral": '[TOOL_CALLS]weather[ARGS]{"city": "Brno"}',
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
    '{"city": "Brno"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_fenced": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
    '```json\n{"city": "Brno"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "harmony": "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    '{"city": "Brno"}',
}
THOUGHTS = {  # before it
    **dict.fromkeys(("hermes", "qwen_xml", "glm"), "<think>\nHm, {é\n</think>\n\n"),
    **dict.fromkeys(("deepseek", "deepseek_fenced"), "<think>Hm, {é</think>"),
    **dict.fromkeys(("mistral", "mistral_list"), "[THINK]Hm, {é[/THINK]"),
    "harmony": "<|channel|>analysis<|message|>Hm, {é<|end|><|start|>assistant",
    "llama": "",
}


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Vocabulary]:
    """One whose marks are tokens, and one that has to spell them."""
    made = {
        has_marks: Vocabulary(tmp_path_factory.mktemp("v"), *([] if has_marks else [()]))
        for has_marks in (True, False)
    }
    return made.__getitem__


def test_every_format_is_held_or_refused_by_name() -> None:
    assert WRITTEN.keys() == THOUGHTS.keys() == FORMATS.keys() - {"plain", "think"}
    for name in ("plain", "think"):
        with pytest.raises(ValidationError, match=name) as caught:
            call_form(Grammar(FORMATS[name]), TOOLS)
        assert caught.value.parameter == "tool_choice"


@pytest.mark.parametrize("has_marks", [True, False])
@pytest.mark.parametrize("name", WRITTEN)
def test_what_models_write_fits_and_is_a_call(
    name: str, has_marks: bool, vocabularies: Callable[[bool], Vocabulary]
) -> None:
    vocabulary, format_ = vocabularies(has_marks), FORMATS[name]
    for thoughts in ("", THOUGHTS[name]):
        ids = vocabulary.encode(thoughts + WRITTEN[name])
        matcher = vocabulary.matcher(format_, TOOLS)
        if name == "harmony" and not has_marks:
            ids += vocabulary.encode("<|call|>")
        assert matcher.consume_tokens(ids), matcher.get_error()
        assert matcher.is_accepting()
        answer = vocabulary.read(format_, ids, TOOLS)
        assert answer.calls == [("weather", {"city": "Brno"})] and answer.text == ""
        assert answer.thoughts.strip() == ("Hm, {é" if thoughts else "")


@pytest.mark.parametrize("has_marks", [True, False])
@pytest.mark.parametrize("name", WRITTEN)
def test_what_fits_is_read_as_calls_that_are_valid(
    name: str, has_marks: bool, vocabularies: Callable[[bool], Vocabulary]
) -> None:
    vocabulary, format_ = vocabularies(has_marks), FORMATS[name]
    matcher, num_read = vocabulary.matcher(format_, TOOLS), 0
    for seed in range(30):
        ids = vocabulary.walk(matcher, seed)
        if num_read == 8:
            break
        if ids is None:
            continue
        num_read += 1
        answer = vocabulary.read(format_, ids, TOOLS)
        assert answer.are_valid and answer.calls and answer.text == "", (seed, answer)
        assert len(answer.calls) == 1 or format_.has_parallel
        assert all(fits(said, TOOLS[called] | {"type": "object"}) for called, said in answer.calls)
    assert num_read


@pytest.mark.parametrize("name", WRITTEN)
def test_a_tool_that_is_named_is_called_once(
    name: str, vocabularies: Callable[[bool], Vocabulary]
) -> None:
    vocabulary, format_ = vocabularies(True), FORMATS[name]
    matcher = vocabulary.matcher(format_, TOOLS, "now")
    for seed in range(6):
        ids = vocabulary.walk(matcher, seed)
        if ids is not None:
            answer = vocabulary.read(format_, ids, TOOLS)
            assert [called for called, _ in answer.calls] == ["now"]
    assert not matcher.consume_tokens(vocabulary.encode(WRITTEN[name]))


def test_arguments_do_not_wander_through_white_space(
    vocabularies: Callable[[bool], Vocabulary],
) -> None:
    vocabulary = vocabularies(True)
    matcher = vocabulary.matcher(FORMATS["hermes"], TOOLS)
    begin, name, rest = WRITTEN["hermes"].partition('"city"')
    for number, fits_in in ((32, True), (33, False)):
        ids = vocabulary.encode(begin + "\n" * number + name + rest)
        assert (matcher.validate_tokens(ids) == len(ids)) is fits_in


@pytest.mark.parametrize("name", ["hermes", "mistral_list", "deepseek"])
def test_text_is_not_let_through(name: str, vocabularies: Callable[[bool], Vocabulary]) -> None:
    vocabulary = vocabularies(True)
    matcher = vocabulary.matcher(FORMATS[name], TOOLS)
    assert matcher.validate_tokens(vocabulary.encode("Brno")) == 0
    assert not matcher.is_accepting()  # nor does it end before a call


def test_a_thought_that_the_prompt_has_begun_ends_before_the_call(
    vocabularies: Callable[[bool], Vocabulary],
) -> None:
    for has_marks in (True, False):
        vocabulary, format_ = vocabularies(has_marks), FORMATS["hermes"]
        grammar = vocabulary.grammar(format_)
        parser = AnswerParser(grammar, prompt=grammar.marks.mark("<think>\n"))
        matcher = vocabulary.matcher(format_, TOOLS, thought=parser.thought)
        assert matcher.validate_tokens(vocabulary.encode(WRITTEN["hermes"])) > 0
        assert matcher.consume_tokens(vocabulary.encode("Hm.</think>\n" + WRITTEN["hermes"]))
        assert matcher.is_accepting()


XML_TEMPLATE = {
    "start_anchor": "assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open_pattern": r"<call of=(?P<name>[^>]+)>",
            "close": "</call>",
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<p (?P<key>[^>]+)>\s*(?P<value>.*?)\s*</p>"},
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": "{content}"},
            },
        },
        "content": {},
    },
}


def template(**of_calls: Any) -> Format:
    """With calls that are changed in this."""
    # A template is JSON: mypy does not know what lies at which name.
    calls = XML_TEMPLATE["fields"]["tool_calls"] | of_calls  # type: ignore[index]
    return read_response_template(
        {**XML_TEMPLATE, "fields": {**XML_TEMPLATE["fields"], "tool_calls": calls}}  # type: ignore[dict-item]
    )


LIST_OF_JSON = {
    "open_pattern": r"<calls>",
    "close": "</calls>",
    "content": "json",
    "content_args": {},
    "transform_each": True,
    "transform": {"type": "function", "function": {"name": "{fn}", "arguments": "{args}"}},
}


@pytest.mark.parametrize(
    ("format_", "written"),
    [
        (template(), "<call of=weather>\n<p city>Brno</p></call>"),
        (
            template(**LIST_OF_JSON | {"open_pattern": None, "open": "<calls>"}),
            '<calls>[{"fn": "weather", "args": {"city": "Brno"}}]</calls>',
        ),
        (
            template(content="json", content_args={}),
            '<call of=weather>{"city": "Brno"}</call>',
        ),
    ],
    ids=["xml", "list", "json"],
)
def test_a_template_that_says_enough_is_held(
    format_: Format, written: str, vocabularies: Callable[[bool], Vocabulary]
) -> None:
    vocabulary = vocabularies(True)
    matcher = vocabulary.matcher(format_, TOOLS)
    ids = vocabulary.encode("<think>Hm.</think>\n" + written)
    matcher.consume_tokens(ids)
    assert matcher.is_accepting(), matcher.get_error()
    answer = vocabulary.read(format_, ids, TOOLS)
    assert answer.calls == [("weather", {"city": "Brno"})] and answer.thoughts == "Hm."
    for seed in range(12):
        walked = vocabulary.walk(vocabulary.matcher(format_, TOOLS), seed)
        if walked is not None:
            answer = vocabulary.read(format_, walked, TOOLS)
            assert answer.are_valid and answer.calls and answer.text == ""
            for called, said in answer.calls:
                assert fits(said, TOOLS[called] | {"type": "object"})


@pytest.mark.parametrize(
    ("format_", "problem"),
    [
        (template(content="kv-lines", content_args={}), "in a way that is not held"),
        (template(open_pattern=r"<call (?:of|to)=(?P<name>[^>]+)>"), "begins calls"),
        (template(close=None, close_pattern=r"</\w+>"), "ends calls"),
    ],
)
def test_a_template_that_does_not_is_refused_by_name(format_: Format, problem: str) -> None:
    with pytest.raises(ValidationError, match=f"response_template.*{problem}") as caught:
        call_form(Grammar(format_), TOOLS)
    assert caught.value.parameter == "tool_choice"


def test_a_token_that_a_text_may_have_is_no_mark_to_hold_to(tmp_path: Path) -> None:
    tokens = [AddedToken(400, "[TOOL_CALLS]", is_shown=True)]
    with pytest.raises(ValidationError, match="TOOL_CALLS") as caught:
        call_form(Grammar(FORMATS["mistral"], tokens), TOOLS)
    assert caught.value.parameter == "tool_choice"


@pytest.mark.parametrize("name", ["hermes", "qwen_xml"])
def test_a_schema_without_end_is_refused(name: str) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "array"}}}
    inner = schema["properties"]["a"]
    for _ in range(20_000):
        inner["items"] = inner = {"type": "array"}
    with pytest.raises(ValidationError, match="too deep") as caught:
        call_form(Grammar(FORMATS[name]), {"f": schema})
    assert caught.value.parameter == "tools"


def test_more_than_a_grammar_may_have_is_refused() -> None:
    many = {f"f{n}": {"type": "object", "description": f"{n}" * 2000} for n in range(80)}
    with pytest.raises(ValidationError, match="of at most") as caught:
        call_form(Grammar(FORMATS["hermes"]), many)
    assert caught.value.parameter == "tools"


@pytest.mark.parametrize(
    ("tools", "name", "parameter"),
    [
        ({}, None, "tools"),
        ({"a b": {}}, None, "tools"),
        ({"a": {"type": "array"}}, None, "tools"),
        ({"a": {"minProperties": 3}}, None, "tools"),
        ({"a": {}}, "b", "tool_choice"),
    ],
)
def test_what_no_answer_could_call_is_refused(
    tools: dict[str, Any], name: str | None, parameter: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        call_form(Grammar(FORMATS["hermes"]), tools, name)
    assert caught.value.parameter == parameter
