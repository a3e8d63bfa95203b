"""`PoolingParams`: what is taken, and what is refused by name."""

from typing import Any

import pytest

from engine.errors import ValidationError
from engine.pooling import PoolingOutput, PoolingParams, check_dimensions


def test_the_defaults_embed_by_the_last_token_with_length_one() -> None:
    params = PoolingParams()
    assert (params.pooling_type, params.is_normalized) == ("LAST", True)
    assert not params.skips_prefix_cache


@pytest.mark.parametrize("kind", ["mean", "MEAN", "Mean"])
def test_a_pooling_type_may_be_written_in_either_case(kind: str) -> None:
    params = PoolingParams(pooling_type=kind)
    assert params.pooling_type == "MEAN" and params.skips_prefix_cache


@pytest.mark.parametrize("name", ["normalize", "use_activation"])
def test_the_length_is_left_alone_under_either_name(name: str) -> None:
    values: dict[str, Any] = {name: False}
    assert not PoolingParams(**values).is_normalized


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pooling_type", "max"),
        ("pooling_type", None),
        ("pooling_type", 3),
        ("dimensions", 0),
        ("dimensions", -1),
        ("dimensions", 2.0),
        ("dimensions", True),
        ("normalize", 1),
        ("use_activation", "yes"),
        ("skip_reading_prefix_cache", "no"),
        ("task", "embedding"),
        ("task", 7),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=name) as caught:
        PoolingParams(**{name: value})
    assert caught.value.parameter == name


def test_two_names_of_one_setting_must_agree() -> None:
    with pytest.raises(ValidationError, match="use_activation"):
        PoolingParams(normalize=True, use_activation=False)
    assert PoolingParams(normalize=True, use_activation=True).is_normalized


@pytest.mark.parametrize("task", ["classify", "score", "token_embed", "token_classify"])
def test_tasks_that_are_absent_are_refused_by_name(task: str) -> None:
    with pytest.raises(NotImplementedError, match=task):
        PoolingParams(task=task)


def test_a_clone_checks_what_was_set_since() -> None:
    params = PoolingParams(dimensions=3)
    assert params.clone() == params and params.clone() is not params
    params.dimensions = 0
    with pytest.raises(ValidationError, match="dimensions"):
        params.clone()


def test_more_dimensions_than_the_model_has_are_refused() -> None:
    check_dimensions(PoolingParams(dimensions=64), 64)
    with pytest.raises(ValidationError, match="dimensions must be at most 64"):
        check_dimensions(PoolingParams(dimensions=65), 64)
    with pytest.raises(ValidationError, match="makes no embeddings"):
        check_dimensions(PoolingParams(), 0)


def test_an_output_has_vllm_s_names() -> None:
    output = PoolingOutput([1.0, 2.0])
    assert (output.data, output.embedding, output.hidden_size) == ([1.0, 2.0], [1.0, 2.0], 2)
