"""`PoolingParams`: what is taken, and what is refused by name."""

from typing import Any

import pytest

from engine.errors import ValidationError
from engine.pooling import PoolingOutput, PoolingParams, check_dimensions, task_problem


def test_the_defaults_embed_by_the_last_token_with_length_one() -> None:
    params = PoolingParams()
    assert (params.pooling_type, params.is_activated) == ("LAST", True)
    assert not params.skips_prefix_cache


@pytest.mark.parametrize("kind", ["mean", "MEAN", "Mean"])
def test_a_pooling_type_may_be_written_in_either_case(kind: str) -> None:
    params = PoolingParams(pooling_type=kind)
    assert params.pooling_type == "MEAN" and params.skips_prefix_cache


@pytest.mark.parametrize("name", ["normalize", "use_activation"])
def test_the_length_is_left_alone_under_either_name(name: str) -> None:
    values: dict[str, Any] = {name: False}
    assert not PoolingParams(**values).is_activated


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
    assert PoolingParams(normalize=True, use_activation=True).is_activated


@pytest.mark.parametrize("task", ["classify", "score"])
@pytest.mark.parametrize("values", [{"dimensions": 3}, {"normalize": True}, {"normalize": False}])
def test_what_is_of_embeddings_alone_is_refused_with_classes(
    task: str, values: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError, match=f"must be None with task '{task}'"):
        PoolingParams(task=task, **values)
    assert not PoolingParams(task=task, use_activation=False).is_activated


@pytest.mark.parametrize(
    ("params", "tasks", "problem"),
    [
        (None, ("generate", "embed"), None),
        (PoolingParams(), ("generate", "embed"), None),
        (PoolingParams(task="score"), ("embed", "classify", "score"), None),
        (None, ("embed", "classify"), "no task 'generate': it has embed, classify"),
        (PoolingParams(task="score"), ("embed", "classify"), "no task 'score'"),
        (PoolingParams(task="classify"), ("generate", "embed"), "no task 'classify'"),
    ],
)
def test_a_model_is_asked_for_its_own_tasks_only(
    params: PoolingParams | None, tasks: tuple[str, ...], problem: str | None
) -> None:
    found = task_problem(params, tasks)
    assert found is None if problem is None else problem in (found or "")


@pytest.mark.parametrize("task", ["token_embed", "token_classify", "plugin"])
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
    assert (output.probs, output.num_classes) == ([1.0, 2.0], 2)
    assert PoolingOutput([0.25]).score == 0.25
    with pytest.raises(ValueError):
        _ = output.score
