from pathlib import Path
from typing import Any

import pytest

from engine.client.requests.inputs import (
    InputPreprocessor,
    ParsedPrompt,
    bad_word_ids,
    check_params,
    check_scored_rows,
    parse_prompt,
)
from engine.client.text.tokenizer import Tokenizer
from engine.errors import ValidationError
from engine.grammar.thoughts import ThoughtTokens
from engine.sampling_params import SamplingParams
from tests.engine.helpers.small_tokenizers import build_chatml


@pytest.mark.parametrize(
    ("prompt", "ids", "text", "expected"),
    [
        ("hello", None, None, ParsedPrompt("hello", None)),
        ([1, 2], None, None, ParsedPrompt(None, [1, 2])),
        ((1, 2), None, None, ParsedPrompt(None, [1, 2])),
        ({"prompt": "hello", "cache_salt": "s"}, None, None, ParsedPrompt("hello", None, "s")),
        ({"prompt_token_ids": [1], "prompt": "x"}, None, None, ParsedPrompt("x", [1])),
        (None, [1], None, ParsedPrompt(None, [1])),
        ("hello", [1], None, ParsedPrompt("hello", [1])),
        ([1], None, "echo", ParsedPrompt("echo", [1])),
        ({"type": "token", "prompt_token_ids": [1]}, None, None, ParsedPrompt(None, [1])),
        (
            {"type": "token", "prompt_token_ids": [1], "arrival_time": 5.0},
            None,
            None,
            ParsedPrompt(None, [1], "", 5.0),
        ),
    ],
)
def test_forms_of_a_prompt(
    prompt: Any, ids: list[int] | None, text: str | None, expected: ParsedPrompt
) -> None:
    assert parse_prompt(prompt, ids, text) == expected


@pytest.mark.parametrize(
    "prompt", [None, {}, ["a"], [1.0], [True], {"prompt": "x", "cache_salt": 1}]
)
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(ValidationError):
        parse_prompt(prompt)


def test_a_rendered_prompt_of_another_type_is_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="'embeds'"):
        parse_prompt({"type": "embeds", "prompt": "x"})


@pytest.mark.parametrize(
    ("logprobs", "limit", "is_fine"), [(5, 5, 1), (6, 5, 0), (-1, 5, 0), (-1, -1, 1)]
)
def test_logprobs_are_limited(logprobs: int, limit: int, is_fine: bool) -> None:
    params = SamplingParams(logprobs=logprobs)
    if is_fine:
        check_params(params, limit)
    else:
        with pytest.raises(ValidationError, match="logprobs"):
            check_params(params, limit)


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("stop_token_ids", [7, 100]),
        ("logit_bias", {100: 1.0}),
        ("allowed_token_ids", [100]),
        ("logprob_token_ids", [100]),
        ("trace_decode_token_ids", [100]),
        ("prompt_logprob_token_ids", [[3], [100, -1]]),
    ],
)
def test_token_ids_are_of_the_vocabulary(name: str, ids: Any) -> None:
    params = SamplingParams(**{name: ids})
    check_params(params, 5, vocab_size=101)
    with pytest.raises(ValidationError) as caught:
        check_params(params, 5, vocab_size=100)
    assert caught.value.parameter == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bad_words_token_ids", [[1]]),
        ("thought_tokens", ThoughtTokens([])),
    ],
)
def test_what_the_engine_fills_in_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=name) as caught:
        check_params(SamplingParams(**{name: value}), 5)
    assert caught.value.parameter == name


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_more_logprobs_than_the_engine_allows_are_refused(name: str) -> None:
    params = SamplingParams()
    for number in (0, 5):
        setattr(params, name, number)
        check_params(params, 5)
    for number in (6, -1):
        setattr(params, name, number)
        with pytest.raises(ValidationError, match=f"^{name} must be at most 5") as caught:
            check_params(params, 5)
        assert caught.value.parameter == name
        check_params(params, -1)


def test_ids_for_rows_of_a_prompt_are_limited_and_fit_it() -> None:
    params = SamplingParams(prompt_logprob_token_ids=[[1, 2]] * 3, prompt_logprob_start=4)
    check_params(params, 2)
    check_params(params, -1)
    check_scored_rows(params, 8)
    check_scored_rows(SamplingParams(prompt_logprob_token_ids=[[1]]), 8)
    with pytest.raises(ValidationError, match="at most 1 ids a row"):
        check_params(params, 1)
    with pytest.raises(ValidationError, match="must have 2 rows") as caught:
        check_scored_rows(params, 7)
    assert caught.value.parameter == "prompt_logprob_token_ids"
    with pytest.raises(ValidationError, match="prompt_logprob_start must be below 4"):
        check_scored_rows(params, 4)


def test_bad_words_are_found_at_the_start_and_after_a_space(tmp_path: Path) -> None:
    tokenizer = Tokenizer(build_chatml(tmp_path))
    ids = bad_word_ids(["dog", " dog", " "], tokenizer)
    assert sorted(map(tokenizer.decode, ids)) == [" ", " dog", "dog"]


async def test_preprocessor_gives_the_ids_of_any_form(tmp_path: Path) -> None:
    preprocessor = InputPreprocessor(Tokenizer(build_chatml(tmp_path)))
    ids = preprocessor.get_tokenizer().encode("hello")
    assert preprocessor.preprocess("hello") == {"prompt_token_ids": ids, "prompt": "hello"}
    assert preprocessor.preprocess([1, 2]) == {"prompt_token_ids": [1, 2]}
    salted = await preprocessor.preprocess_async({"prompt": "hello", "cache_salt": "s"})
    assert salted == {"prompt_token_ids": ids, "prompt": "hello", "cache_salt": "s"}
