"""Templates with patterns for marks: calls are held as known models spell them."""

from pathlib import Path
from typing import Any

import pytest

from engine.client.holding.spelling import Spelling, spelling_of
from engine.client.holding.thoughts import thought_tokens
from engine.client.parsing.formats import FORMATS
from engine.client.parsing.grammar import Format
from engine.client.parsing.response_template import read_response_template
from tests.engine.client.holding.test_call_form import THOUGHTS, TOOLS, WRITTEN, template
from tests.engine.client.holding.walks import Vocabulary
from tests.engine.client.parsing.test_response_template import CASES
from tests.engine.helpers.forms.schemas import fits

HELD = ("qwen", "xml", "mistral", "deepseek", "harmony")


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return Vocabulary(tmp_path_factory.mktemp("v"))


def spelled(format_: Format, role: str = "call") -> Spelling:
    return spelling_of(next(each for each in format_.fields if each.role == role), format_)


def of_case(name: str) -> Format:
    return read_response_template(CASES[name][0])


def test_a_format_of_texts_is_spelled_as_it_says() -> None:
    assert spelled(FORMATS["hermes"]) == Spelling("<tool_call>", "</tool_call>")
    assert spelled(FORMATS["mistral"]) == Spelling("[TOOL_CALLS]", "")
    harmony = spelled(FORMATS["harmony"])
    assert harmony.between == "<|start|>assistant" and not harmony.has_parallel


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [
        ("qwen", "<tool_call>", "</tool_call>"),
        ("xml", "<tool_call>\n<function={name}>", "</function>\n</tool_call>"),
        ("mistral", "[TOOL_CALLS]", ""),
        ("deepseek", "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
        (
            "harmony",
            "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
            "<|call|>",
        ),
    ],
)
def test_a_pattern_is_spelled_as_a_known_format_that_fits(name: str, begin: str, end: str) -> None:
    found = spelled(of_case(name))
    assert (found.begin, found.end) == (begin, end)
    if name == "deepseek":
        assert found.around == FORMATS["deepseek"].around
    if name == "harmony":
        assert (found.between, found.has_parallel) == ("<|start|>assistant", False)
        assert spelled(of_case(name), "reasoning").begin == "<|channel|>analysis<|message|>"


def test_a_pattern_may_be_a_text_around_the_name() -> None:
    found = spelled(template(open_pattern=r"\[call (?P<name>\w+)\]"))
    assert (found.begin, found.end) == ("[call {name}]", "</call>")
    assert spelled(template(open_pattern=r"<call (?:of|to)=(?P<name>\w+)>")).begin is None
    assert spelled(template(close=None, close_pattern=r"</c\w+>")).end is None


@pytest.mark.parametrize("name", HELD)
def test_what_fits_is_read_as_valid_calls(name: str, vocabulary: Vocabulary) -> None:
    format_, like = of_case(name), CASES[name][1]
    matcher = vocabulary.matcher(format_, TOOLS)
    for thoughts in ("", THOUGHTS[like]):
        ids = vocabulary.encode(thoughts + WRITTEN[like])
        assert matcher.validate_tokens(ids) == len(ids)
        assert vocabulary.read(format_, ids, TOOLS).calls == [("weather", {"city": "Brno"})]
    num_read = 0
    for seed in range(30):
        ids = vocabulary.walk(matcher, seed) or []
        if not ids:
            continue
        num_read += 1
        answer = vocabulary.read(format_, ids, TOOLS)
        assert answer.are_valid and answer.calls and answer.text == ""
        calls: list[tuple[str, Any]] = answer.calls
        assert all(fits(said, TOOLS[called] | {"type": "object"}) for called, said in calls)
        if num_read == 8:
            break
    assert num_read


@pytest.mark.parametrize("name", HELD)
def test_their_thoughts_are_ended_by_a_token(name: str, tmp_path: Path) -> None:
    vocabulary = Vocabulary(tmp_path)
    grammar = vocabulary.grammar(of_case(name))
    like = vocabulary.grammar(FORMATS[CASES[name][1]])
    kinds, known = (thought_tokens(each, vocabulary.encode).kinds for each in (grammar, like))
    assert [kind.begin for kind in kinds] == [kind.begin for kind in known]
    assert {kind.ends[0] for kind in kinds} == {kind.ends[0] for kind in known}
