"""Answers of a real model that must keep to a grammar, beside all that may be asked of one."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from engine.core.structured.grammars import REFUSED
from tests.engine.core.structured.conftest import Walker

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
COMPACT = {"json": PERSON, "disable_any_whitespace": True}
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f=a>", "schema": {"const": 1}, "end": "</f>"}],
    "triggers": ["<f"],
}


def test_a_schema_gives_json_that_it_describes(walker: Walker) -> None:
    for seed in range(8):
        text, end = walker.say(COMPACT, seed=seed)
        value = json.loads(text)
        assert end.finish_reason == "stop"
        assert value.keys() == {"name", "age"} and 1 <= value["age"] <= 99
        assert len(value["name"]) <= 8


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"regex": "[ab]{3}c?"}, "[ab]{3}c?"),
        ({"choice": ["yes", "no", '"é\n']}, 'yes|no|"é\n'),
        ({"grammar": 'start: "x" /[0-9]/ "y"'}, "x[0-9]y"),
        ({"grammar": 'root ::= "x" | "y" "z"'}, "x|yz"),
        ({"json": {"enum": [1, "a"]}}, '1|"a"'),
    ],
    ids=["regex", "choice", "lark", "gbnf", "enum"],
)
def test_an_answer_has_its_form(walker: Walker, form: dict[str, Any], pattern: str) -> None:
    for seed in range(4):
        text, end = walker.say(form, seed=seed)
        assert re.fullmatch(pattern, text)
        assert (end.finish_reason, end.stop_reason) == ("stop", None)


def test_any_object_may_be_asked_for(walker: Walker) -> None:
    text, end = walker.say({"json_object": True}, max_tokens=20)
    assert text.lstrip().startswith("{") or end.finish_reason == "length"


def test_a_tag_in_free_text_holds_what_its_schema_allows(walker: Walker) -> None:
    begin = walker.tokenizer.encode("<f=a>").ids
    bias = dict.fromkeys(begin, 30.0)
    asked = {"structural_tag": json.dumps(TAG)}
    tags = []
    for seed in range(8):
        text, _ = walker.say(asked, seed=seed, max_tokens=40, logit_bias=bias)
        tags += re.findall("<f(.*?)(?:<|$)", text)
    assert tags and all("=a>1".startswith(tag) or tag == "=a>1" for tag in tags)


@pytest.mark.parametrize(
    ("form", "named"),
    [
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json": {"type": "string", "format": "nonsense"}}, "format"),
        ({"json": {"$ref": "http://169.254.169.254/"}}, "169.254.169.254"),
        ({"json": {"$ref": "#"}}, "."),
        ({"regex": "(?=a)a"}, "look-ahead"),
        ({"regex": "("}, "regex"),
        ({"grammar": "start: nothing"}, "nothing"),
        ({"structural_tag": "[]"}, "structures"),
        ({"structural_tag": "{"}, "."),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_name(
    walker: Walker, form: dict[str, Any], named: str
) -> None:
    text, end = walker.say(form)
    assert text == "" and end.finish_reason == "error" and end.error is not None
    assert end.error[0] == REFUSED and re.search(named, end.error[1])
    assert " | " not in end.error[1]  # nothing of the grammar's own lines


@pytest.mark.parametrize(
    ("form", "named"),
    [
        ({"json": {"type": "integer", "multipleOf": 10_000_019}}, "too long"),
        (
            {
                "grammar": "\n".join(
                    ["start: r0", *(f'r{i}: "a" r{(i + 1) % 9999}' for i in range(9999))]
                )
            },
            "crash|too long",
        ),
        ({"json": {"properties": {f"p{i}": {} for i in range(9_000)}}}, "too (big|large|long)"),
        ({"json": {"allOf": [{"anyOf": [{"const": i}] * 3} for i in range(3000)]}}, "."),
    ],
    ids=["minutes", "stack", "size", "product"],
)
def test_hostile_ones_end_in_bounded_time_and_harm_nobody(
    walker: Walker, form: dict[str, Any], named: str
) -> None:
    other = walker.name("other")
    walker.add(other, {"regex": "[ab]{3}"}, seed=5)
    _, end = walker.say(form)
    assert end.error is not None and end.error[0] == REFUSED and re.search(named, end.error[1])
    assert re.fullmatch("[ab]{3}", walker.text(other))


def test_what_a_schema_cannot_say_is_a_warning_if_it_is_lenient(walker: Walker) -> None:
    schema = {"x-guidance": {"lenient": True}, "type": "boolean", "uniqueItems": True}
    walker.say({"json": schema})
    assert any("uniqueItems" in warning for warning in walker.engine.warnings)


def test_the_same_seed_says_the_same_alone_and_in_any_batch(walker: Walker) -> None:
    alone = [walker.say(COMPACT, seed=seed)[0] for seed in range(6)]
    for seed in range(6):
        walker.add(f"b{seed}", COMPACT, seed=seed)
        walker.add(f"free{seed}", None, seed=seed, max_tokens=9)
    walker.engine.run()
    assert [walker.text(f"b{seed}") for seed in range(6)] == alone


def test_end_of_text_comes_only_where_the_grammar_allows_it(walker: Walker) -> None:
    (eos,) = walker.engine.runner.loaded.eos_token_ids
    text, end = walker.say({"regex": "[ab]{4}"}, logit_bias={eos: 100.0})
    assert re.fullmatch("[ab]{4}", text) and end.finish_reason == "stop"
    text, _ = walker.say({"regex": "[ab]{2,9}"}, logit_bias={eos: 100.0})
    assert len(text) == 2


@pytest.mark.parametrize("more", [{"ignore_eos": True}, {"min_tokens": 50}])
def test_a_grammar_that_can_only_end_ends_the_answer(walker: Walker, more: dict[str, Any]) -> None:
    text, end = walker.say({"choice": ["abc"]}, **more)
    assert (text, end.finish_reason) == ("abc", "stop")


def test_an_answer_that_ignores_its_end_takes_all_that_the_grammar_has(walker: Walker) -> None:
    (eos,) = walker.engine.runner.loaded.eos_token_ids
    text, end = walker.say({"regex": "[ab]{2,9}"}, ignore_eos=True, logit_bias={eos: 100.0})
    assert (len(text), end.finish_reason) == (9, "stop")


def test_parameters_that_leave_nothing_end_it_with_an_error(walker: Walker) -> None:
    (letter,) = walker.tokenizer.encode("z").ids
    _, end = walker.say({"regex": "[ab]+"}, allowed_token_ids=[letter])
    assert end.error is not None and end.error[0] == "invalid_request"


def test_logprobs_are_those_of_the_model_before_the_grammar(walker: Walker) -> None:
    text, _ = walker.say({"choice": ["yes"]}, logprobs=2, seed=1)
    assert text == "yes"
    logprobs = walker.engine.logprobs[walker.last]
    assert all(len(each) >= 2 and each[0][1] < 0 for each in logprobs)
    assert any(rank > 1 for (_, _, rank), *_ in logprobs)


def test_penalties_and_bans_hold_inside_it(walker: Walker) -> None:
    (letter,) = walker.tokenizer.encode("a").ids
    text, _ = walker.say({"regex": "[ab]{6}"}, bad_words_token_ids=[[letter]])
    assert "a" in text or text == "b" * 6  # merged tokens of a are others
    text, _ = walker.say(
        {"regex": "[a-z]{6}"}, temperature=0.0, frequency_penalty=2.0, presence_penalty=2.0
    )
    assert len(set(text)) > 1


def test_it_goes_on_after_tokens_of_an_earlier_run(walker: Walker) -> None:
    walker.add("whole", COMPACT, seed=3)
    walker.engine.run()
    ids = walker.engine.tokens["whole"]
    for cut in range(len(ids)):
        walker.add(f"cut{cut}", COMPACT, seed=3, resume_token_ids=ids[:cut])
        walker.engine.run()
        assert ids[:cut] + walker.engine.tokens.get(f"cut{cut}", []) == ids


def test_what_the_prompt_has_of_it_already_counts(walker: Walker) -> None:
    form = {"regex": "abc[xy]{3}z", "begun": "abcx"}
    for seed in range(4):
        text, end = walker.say(form, seed=seed)
        assert re.fullmatch("[xy]{2}z", text) and end.finish_reason == "stop"
    _, end = walker.say(form | {"begun": "b"})
    assert end.error is not None and "so far" in end.error[1]
    text, end = walker.say({"choice": ["abc"], "begun": "abc"})
    assert (text, end.finish_reason) == ("", "stop")


def test_a_control_token_that_the_prompt_only_spells_is_text(walker: Walker) -> None:
    spelled = walker.tokenizer.id_to_token(2)
    assert walker.tokenizer.encode(f"a{spelled}").ids[-1] == 2
    text, end = walker.say({"regex": "(?s:a.*b)z", "begun": f"a{spelled}b"}, max_tokens=5)
    assert end.error is None and text


def test_tokens_that_do_not_follow_it_cannot_be_gone_on_with(walker: Walker) -> None:
    _, end = walker.say({"regex": "[ab]+"}, resume_token_ids=[5, 6, 7])
    assert end.error is not None and "so far" in end.error[1]


def test_preempted_and_read_in_chunks_it_says_the_same(folder: Path, walker: Walker) -> None:
    long: dict[str, Any] = {"form": {"regex": "[a-z]{70}"}, "max_tokens": 80}
    expected = [walker.say(seed=seed, **long)[0] for seed in range(6)]
    tight = Walker(folder, num_blocks=6, max_num_batched_tokens=3)
    try:
        for seed in range(6):
            tight.add(f"r{seed}", seed=seed, **long)
        tight.engine.wait_for_grammars()
        tight.engine.run()
        assert tight.engine.scheduler.totals.preemptions > 0
        assert [tight.text(f"r{seed}") for seed in range(6)] == expected
    finally:
        tight.engine.close()


def test_a_checkpoint_without_a_tokenizer_file_says_so(folder: Path) -> None:
    other = Walker(folder)
    other.engine.grammars._file = folder / "missing.json"
    _, end = other.say({"regex": "a"})
    assert end.error is not None
    assert end.error[0] == "unsupported_parameter" and "tokenizer.json" in end.error[1]


def test_a_tokenizer_that_cannot_be_read_is_named_in_the_refusal(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": 5}')
    other = Walker(folder)
    other.engine.grammars._file = tmp_path / "tokenizer.json"
    try:
        for _ in range(2):
            _, end = other.say({"regex": "a"})
            assert end.error is not None and end.error[0] == "unsupported_parameter"
    finally:
        other.engine.close()
