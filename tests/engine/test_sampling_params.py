import logging
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ValidationError
from engine.sampling_params import RequestOutputKind, SamplingParams


def test_defaults_are_those_of_vllm() -> None:
    defaults: dict[str, Any] = {
        "n": 1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "seed": None,
        "stop": [],
        "stop_token_ids": [],
        "ignore_eos": False,
        "max_tokens": 16,
        "min_tokens": 0,
        "logprobs": None,
        "prompt_logprobs": None,
        "logprob_token_ids": None,
        "flat_logprobs": False,
        "detokenize": True,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "include_stop_str_in_output": False,
        "output_kind": RequestOutputKind.CUMULATIVE,
        "stream_interval": None,
        "skip_clone": False,
        "structured_outputs": None,
        "logit_bias": None,
        "allowed_token_ids": None,
        "extra_args": None,
        "bad_words": [],
        "skip_reading_prefix_cache": False,
        "thinking_token_budget": None,
        "repetition_detection": None,
        "trace_decode_token_ids": None,
        "watermarking": None,
        "routed_experts_prompt_start": None,
        "prompt_logprob_token_ids": None,
        "prompt_logprob_start": None,
        "bad_words_token_ids": None,
        "thought_tokens": None,
    }
    params = SamplingParams()
    assert {name: getattr(params, name) for name in params.__struct_fields__} == defaults
    assert [kind.value for kind in RequestOutputKind] == [0, 1, 2]
    assert [kind.name for kind in RequestOutputKind] == ["CUMULATIVE", "DELTA", "FINAL_ONLY"]


@pytest.mark.parametrize(
    ("parameter", "values"),
    [
        ("temperature", [0, 0.01, 2]),
        ("top_p", [1e-9, 1]),
        ("top_k", [-1, 0, 1, 1 << 30]),
        ("min_p", [0, 1]),
        ("presence_penalty", [-2, 2]),
        ("frequency_penalty", [-2, 2]),
        ("repetition_penalty", [0.01, 10]),
        ("max_tokens", [1, None]),
        ("min_tokens", [0, 16]),
        ("n", [1, 100]),
        ("seed", [0, -1, -(1 << 63), (1 << 64) - 1]),
        ("stream_interval", [1, None]),
        ("thinking_token_budget", [0, 1, None]),
        ("logprobs", [-1, 0, 20, None]),
        ("prompt_logprobs", [-1, 0]),
        ("logprob_token_ids", [list(range(128))]),
        ("logit_bias", [{0: -1e9}]),
        ("extra_args", [{"anything": [1]}]),
    ],
)
def test_values_at_the_limits_are_fine(parameter: str, values: list[Any]) -> None:
    for value in values:
        SamplingParams(**{parameter: value})


def test_extra_args_keep_objects_and_shared_containers_as_they_are() -> None:
    shared = [object(), (None, 1.5)]
    round_trip: dict[str, Any] = {"first": shared, "second": shared}
    round_trip["itself"] = round_trip
    params = SamplingParams(extra_args=round_trip)
    assert params.extra_args is round_trip and round_trip["first"] is round_trip["second"]
    copied = params.clone().extra_args
    assert copied is not None and copied["first"] is copied["second"] is not shared


def test_true_is_one_logprob_and_asked_ids_need_no_more() -> None:
    params = SamplingParams(logprobs=True, prompt_logprobs=True)
    assert (params.logprobs, params.prompt_logprobs) == (1, 1)
    assert SamplingParams(logprob_token_ids=[3]).logprobs == 0


def test_prompt_logprobs_need_the_whole_prompt_computed() -> None:
    assert SamplingParams(prompt_logprobs=1).skip_reading_prefix_cache is True
    chosen = SamplingParams(prompt_logprobs=1, skip_reading_prefix_cache=False)
    assert chosen.skip_reading_prefix_cache is False


def test_rows_of_ids_get_one_length_and_need_the_whole_prompt_computed() -> None:
    build: Any = SamplingParams
    params = build(prompt_logprob_token_ids=[[3], (4, 5)], prompt_logprob_start=2)
    assert params.prompt_logprob_token_ids == [[3, -1], [4, 5]]
    assert params.skip_reading_prefix_cache is True and params.clone() == params
    assert (params.first_scored_row, build(prompt_logprobs=1).first_scored_row) == (2, 0)
    assert build(prompt_logprob_token_ids=[3, 4]).prompt_logprob_token_ids == [[3, 4]]
    with pytest.raises(ValidationError, match="prompt_logprob_start"):
        build(prompt_logprob_token_ids=[3], prompt_logprob_start=-1)


def test_positional_arguments_are_a_type_error() -> None:
    build: Any = SamplingParams
    with pytest.raises(TypeError):
        build(1)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", math.inf),
        ("max_tokens", 0),
        ("max_tokens", 1.0),
        ("max_tokens", True),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("n", 0),
        ("seed", 1 << 64),
        ("seed", 0.5),
        ("stop", [""]),
        ("stop", [1]),
        ("stop", 7),
        ("stop_token_ids", ["a"]),
        ("stop_token_ids", [-1]),
        ("stream_interval", 0),
        ("thinking_token_budget", -1),
        ("thinking_token_budget", True),
        ("logprobs", -2),
        ("logprob_token_ids", list(range(129))),
        ("logit_bias", {"a": 1.0}),
        ("logit_bias", {1: math.nan}),
        ("allowed_token_ids", []),
        ("bad_words", [""]),
        ("bad_words", "word"),
        ("extra_args", {"deep": [({"x": 1 << 64},)]}),
        ("max_tokens", 1 << 64),
        ("stop_token_ids", [1 << 64]),
        ("bad_words_token_ids", [[]]),
        ("trace_decode_token_ids", [1.5]),
        ("logprob_token_ids", [-1]),
        ("prompt_logprob_token_ids", []),
        ("prompt_logprob_token_ids", [[]]),
        ("prompt_logprob_token_ids", 5),
        ("prompt_logprob_token_ids", [1, [2]]),
        ("prompt_logprob_token_ids", [[0.5]]),
        ("prompt_logprob_token_ids", [[-2]]),
        ("prompt_logprob_start", 0),
        ("output_kind", 7),
    ],
)
def test_wrong_value_is_refused_by_name(parameter: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        SamplingParams(**{parameter: value})
    assert caught.value.parameter == parameter
    assert parameter in str(caught.value)


def test_stop_without_detokenizing_is_an_error() -> None:
    with pytest.raises(ValidationError) as caught:
        SamplingParams(stop="x", detokenize=False)
    assert caught.value.parameter == "stop"
    SamplingParams(stop_token_ids=[1], detokenize=False)


def test_several_greedy_answers_are_refused() -> None:
    with pytest.raises(ValidationError) as caught:
        SamplingParams(n=2, temperature=0)
    assert caught.value.parameter == "n"


@pytest.mark.parametrize(
    "name",
    [
        "watermarking",
        "routed_experts_prompt_start",
    ],
)
def test_features_we_do_not_have_are_refused_by_name(name: str) -> None:
    build: Any = SamplingParams
    build(**{name: None})
    with pytest.raises(NotImplementedError, match=name):
        build(**{name: 1})


def test_unknown_name_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="max_token"):
        SamplingParams(max_token=3)  # type: ignore[call-arg]


def test_greedy_sampling_has_no_truncation() -> None:
    params = SamplingParams(temperature=0, top_p=0.5, top_k=3, min_p=0.1)
    assert params.is_greedy
    assert (params.top_p, params.top_k, params.min_p) == (1.0, 0, 0.0)


def test_tiny_temperature_is_raised_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert SamplingParams(temperature=0.001).temperature == 0.01
    assert "0.001" in caplog.text


def test_stop_forms_become_lists() -> None:
    params = SamplingParams(stop="end", stop_token_ids=[3, 1, 3])
    assert (params.stop_strings, params.stop_token_ids) == (["end"], [3, 1])


def test_repeated_bad_words_are_kept_once() -> None:
    assert SamplingParams(bad_words=["b", "a", "b"]).bad_words == ["b", "a"]


def test_minus_one_is_no_seed() -> None:
    assert SamplingParams(seed=-1).seed is None


def test_from_optional_takes_none_for_the_default_and_clamps_biases() -> None:
    params = SamplingParams.from_optional(
        temperature=None, top_k=5, max_tokens=None, logit_bias={"7": 500.0, "8": -500.0}
    )
    assert (params.temperature, params.top_k, params.max_tokens) == (1.0, 5, None)
    assert params.logit_bias == {7: 100.0, 8: -100.0}


def test_from_optional_refuses_biases_without_ids() -> None:
    with pytest.raises(ValidationError):
        SamplingParams.from_optional(logit_bias={"the": 1.0})


@given(
    temperature=st.floats(0.01, 2),
    top_p=st.floats(0.001, 1),
    seed=st.integers(0, (1 << 64) - 1),
    stop=st.lists(st.text(min_size=1), max_size=3),
)
def test_they_travel_as_they_are(
    temperature: float, top_p: float, seed: int, stop: list[str]
) -> None:
    params = SamplingParams(temperature=temperature, top_p=top_p, seed=seed, stop=stop)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_clone_shares_nothing() -> None:
    params = SamplingParams(stop=["a"], logit_bias={1: 2.0})
    clone = params.clone()
    clone.stop_strings.append("b")
    assert params.stop == ["a"]
    assert clone.logit_bias == params.logit_bias
    assert clone.logit_bias is not params.logit_bias
