"""Settings in force: defaults, the checkpoint's, the session's, the response's."""

from typing import Any

import pytest

from engine import RequestOutputKind, StructuredOutputsParams
from server.engines.client import ServedModel, ValidationError
from server.generation.sampling import (
    choice_problem,
    effective_settings,
    must_call,
    named_tool,
    sampling_params,
    structured_outputs,
)

MODEL = ServedModel("m", "")


def test_defaults_and_a_seed_that_javascript_can_hold() -> None:
    settings = effective_settings(MODEL, 8192)
    seed = settings.pop("seed")
    assert settings == {
        "model": "m",
        "temperature": 0.7,
        "top_p": 0.95,
        "max_output_tokens": 2048,
    }
    assert 0 <= seed < 2**53
    assert effective_settings(MODEL, 8192)["seed"] != seed


def test_a_small_context_halves_the_default_length() -> None:
    assert effective_settings(MODEL, 512)["max_output_tokens"] == 256


def test_later_layers_win_and_none_is_not_set() -> None:
    checkpoint = ServedModel("m", "", {"temperature": 0.6, "top_k": 20})
    session = {"temperature": 1.0, "system": "s", "seed": 7}
    response = {"temperature": None, "top_p": 0.5}
    settings = effective_settings(checkpoint, 512, session, response)
    assert (settings["temperature"], settings["top_k"], settings["top_p"]) == (1.0, 20, 0.5)
    assert (settings["system"], settings["seed"]) == ("s", 7)


def test_a_seed_that_is_none_is_drawn_anew() -> None:
    settings = effective_settings(MODEL, 512, {"seed": 7}, {"seed": None})
    assert settings["seed"] not in (None, 7)


@pytest.mark.parametrize(
    ("given", "effective"), [(1e-308, 0.01), (0.009, 0.01), (0.01, 0.01), (0, 0), (2, 2)]
)
def test_the_temperature_reported_is_the_one_computed_with(given: float, effective: float) -> None:
    settings = effective_settings(MODEL, 512, {"temperature": given})
    assert settings["temperature"] == effective
    assert sampling_params(settings, 5).temperature == effective


def test_the_engine_gets_what_is_in_force() -> None:
    settings = effective_settings(MODEL, 512, {"stop": ["END"], "top_k": 5, "seed": 3})
    params = sampling_params(settings, 17, ("\nUser:",))
    assert (params.max_tokens, params.seed, params.top_k) == (17, 3, 5)
    assert params.stop == ["END", "\nUser:"]
    assert params.output_kind == RequestOutputKind.DELTA


@pytest.mark.parametrize(
    ("output", "form"),
    [
        ({"type": "json"}, {"json_object": True}),
        ({"type": "json_schema", "schema": {"type": "null"}}, {"json": {"type": "null"}}),
        ({"type": "regex", "pattern": "a+"}, {"regex": "a+"}),
        ({"type": "choice", "choices": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"type": "grammar", "grammar": "start: /a/"}, {"grammar": "start: /a/"}),
    ],
)
def test_an_output_is_the_form_that_the_engine_is_asked_for(
    output: dict[str, Any], form: dict[str, Any]
) -> None:
    settings = effective_settings(MODEL, 512, {"output": {"type": "json"}}, {"output": output})
    params = sampling_params(settings, 5, begun="so")
    assert params.structured_outputs == StructuredOutputsParams(**form, begun="so")


def test_a_response_may_take_back_what_the_session_asks_for() -> None:
    layers = ({"output": {"type": "json"}}, {"output": {"type": "text"}})
    settings = effective_settings(MODEL, 512, *layers)
    assert sampling_params(settings, 5).structured_outputs is None


TOOLS = [{"type": "function", "name": "a"}, {"type": "function", "name": "b"}]
NAMED = {"type": "function", "name": "b"}


@pytest.mark.parametrize(
    ("settings", "is_held", "problem"),
    [
        ({"tools": TOOLS}, False, None),
        ({"tools": TOOLS, "tool_choice": "auto"}, False, None),
        ({"tool_choice": "none"}, False, None),
        ({"tools": TOOLS, "tool_choice": "required"}, True, None),
        ({"tools": TOOLS, "tool_choice": NAMED}, True, None),
        ({"tools": TOOLS[:1], "tool_choice": NAMED}, True, "no such tool is offered"),
        ({"tool_choice": "required"}, True, "there are no tools to call"),
        ({"tools": [], "tool_choice": NAMED}, True, "there are no tools to call"),
    ],
)
def test_a_choice_of_tools_may_hold_the_answer(
    settings: dict[str, Any], is_held: bool, problem: str | None
) -> None:
    assert must_call(settings) is is_held
    assert choice_problem(settings) == problem
    if is_held:
        assert named_tool(settings) == (None if settings["tool_choice"] == "required" else "b")


def test_a_call_is_the_form_that_the_engine_is_asked_for() -> None:
    form = StructuredOutputsParams(grammar="start: /a/")
    settings = effective_settings(MODEL, 512, {"thinking_token_budget": 7})
    params = sampling_params(settings, 5, call_form=form)
    assert (params.structured_outputs, params.thinking_token_budget) == (form, 7)


def test_an_answer_of_a_given_form_has_no_thoughts_to_count() -> None:
    settings = effective_settings(
        MODEL, 512, {"thinking_token_budget": 7}, {"output": {"type": "json"}}
    )
    assert sampling_params(settings, 5).thinking_token_budget is None


def test_an_output_that_a_newer_version_has_stored_is_not_ignored() -> None:
    with pytest.raises(ValidationError):
        structured_outputs({"type": "yaml"})
