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
    params = SamplingParams()
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (16, 1.0, 1.0, 0)
    assert (params.stop, params.stop_token_ids, params.seed) == ([], [], None)
    assert params.output_kind is RequestOutputKind.CUMULATIVE


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
        ("logprobs", -2),
        ("logprob_token_ids", list(range(129))),
        ("logit_bias", {"a": 1.0}),
        ("logit_bias", {1: math.nan}),
        ("allowed_token_ids", []),
        ("bad_words", [""]),
        ("output_kind", 7),
    ],
)
def test_wrong_value_is_refused_by_name(parameter: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        SamplingParams(**{parameter: value})
    assert caught.value.parameter == parameter
    assert parameter in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [{"stop": "x", "detokenize": False}, {"n": 2, "temperature": 0}],
)
def test_values_that_exclude_each_other_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SamplingParams(**wrong)


def test_features_we_do_not_have_are_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="watermarking"):
        SamplingParams(watermarking="on")


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
