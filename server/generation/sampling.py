"""A session's and a response's settings, filled in and checked → what the engine is asked for."""

import secrets
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from server.engines.client import (
    MIN_TEMPERATURE,
    EngineClient,
    Exactness,
    RequestOutputKind,
    SamplingParams,
    ServedModel,
    StructuredOutputsParams,
    ValidationError,
)
from server.protocol.errors import ApiError, invalid_field

DEFAULT_TEMPERATURE = 0.7
DEFAULT_TOP_P = 0.95
MAX_DEFAULT_OUTPUT_TOKENS = 2048
SEED_BITS = 53  # what JavaScript can hold
SETTINGS = {"structured_outputs": "output", "max_tokens": "max_output_tokens"}  # to the engine


def effective_settings(
    model: ServedModel, max_model_len: int, *layers: Mapping[str, Any]
) -> dict[str, Any]:
    """Merge defaults, the model's own, the session's and the response's settings; later ones win.

    `model` is the one that is chosen. The result is what is in force: it has a seed (drawn, where
    the last word about it is None), and the temperature that is computed with.
    """
    settings: dict[str, Any] = {
        "model": model.name,
        "temperature": DEFAULT_TEMPERATURE,
        "top_p": DEFAULT_TOP_P,
        "max_output_tokens": min(MAX_DEFAULT_OUTPUT_TOKENS, max_model_len // 2),
        **model.sampling_defaults,
    }
    for layer in layers:
        settings.update({k: v for k, v in layer.items() if v is not None or k == "seed"})
    settings["model"] = model.name
    if settings["temperature"] > 0:
        settings["temperature"] = max(settings["temperature"], MIN_TEMPERATURE)
    if settings.get("seed") is None:
        settings["seed"] = secrets.randbits(SEED_BITS)
    return settings


def check_settings(engine: EngineClient, settings: Mapping[str, Any]) -> None:
    """Raise `ApiError` by a setting's name for what no answer, or none of this engine, can do.

    Of a model that is not loaded yet the end of the answer says what it cannot.
    """
    try:
        structured_outputs(settings.get("output"))
    except ValidationError as error:
        raise ApiError("output_format_refused", f"{error}", param="settings.output") from error
    if engine.exactness is not Exactness.EXACT:  # else it is ours, which can all of it
        _check_params(engine, settings)
    if offered_tools(settings) and has_form(settings):
        problem = "an answer of a given form calls no tools: say tool_choice none with it"
        raise invalid_field("settings.output", problem)
    if choice := choice_problem(settings):
        raise invalid_field("settings.tool_choice", choice)


def _check_params(engine: EngineClient, settings: Mapping[str, Any]) -> None:
    try:
        engine.check_params(sampling_params(settings, max_tokens=1))
    except ValidationError as error:
        name = SETTINGS.get(error.parameter or "", error.parameter)
        raise invalid_field(f"settings.{name}", f"{error}") from error


def sampling_params(
    settings: Mapping[str, Any],
    max_tokens: int,
    chat_stop: Sequence[str] = (),
    begun: str = "",
    call_form: StructuredOutputsParams | None = None,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> SamplingParams:
    """Effective settings → the engine's parameters; `max_tokens` is what there is room for.

    `begun` is what the prompt has of the answer already, `call_form` the form of an answer which
    must call a tool, and `more` what no setting says.
    """
    return SamplingParams.from_optional(
        **more,
        temperature=settings["temperature"],
        top_p=settings["top_p"],
        top_k=settings.get("top_k"),
        min_p=settings.get("min_p"),
        repetition_penalty=settings.get("repetition_penalty"),
        presence_penalty=settings.get("presence_penalty"),
        frequency_penalty=settings.get("frequency_penalty"),
        logprobs=settings.get("logprobs"),
        # Without a chat template, a model would go on with the user's next line.
        stop=[*(settings.get("stop") or ()), *chat_stop],
        seed=settings["seed"],
        max_tokens=max_tokens,
        output_kind=RequestOutputKind.DELTA,
        structured_outputs=call_form or structured_outputs(settings.get("output"), begun),
        thinking_token_budget=thinking_budget(settings),
    )


def has_form(settings: Mapping[str, Any]) -> bool:
    """Whether an answer is held to a form, so that all of its text is the answer."""
    kind: str = (settings.get("output") or {}).get("type", "text")
    return kind != "text"


def offered_tools(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools that settings offer to the model, as they are given."""
    return [] if settings.get("tool_choice") == "none" else settings.get("tools") or []


def must_call(settings: Mapping[str, Any]) -> bool:
    """Whether an answer is held to a call of a tool."""
    return settings.get("tool_choice") not in (None, "auto", "none")


def named_tool(settings: Mapping[str, Any]) -> str | None:
    """The tool that it must call, if not any."""
    choice = settings.get("tool_choice")
    return choice["name"] if isinstance(choice, Mapping) else None


def choice_problem(settings: Mapping[str, Any]) -> str | None:
    """Why no answer can call what it must."""
    if not must_call(settings):
        return None
    name, offered = named_tool(settings), [tool.get("name") for tool in offered_tools(settings)]
    if not offered:
        return "there are no tools to call"
    return None if name is None or name in offered else "no such tool is offered"


def thinking_budget(settings: Mapping[str, Any]) -> int | None:
    """How many tokens an answer may think. One that is held to a form has no thoughts."""
    return None if has_form(settings) else settings.get("thinking_token_budget")


def structured_outputs(
    output: Mapping[str, Any] | None, begun: str = ""
) -> StructuredOutputsParams | None:
    """The form that an answer must have; None for any text. Raises `ValidationError`."""
    match output:
        case {"type": "json"}:
            return StructuredOutputsParams(json_object=True, begun=begun)
        case {"type": "json_schema", "schema": schema}:
            return StructuredOutputsParams(json=schema, begun=begun)
        case {"type": "regex", "pattern": pattern}:
            return StructuredOutputsParams(regex=pattern, begun=begun)
        case {"type": "choice", "choices": choices}:
            return StructuredOutputsParams(choice=choices, begun=begun)
        case {"type": "grammar", "grammar": grammar}:
            return StructuredOutputsParams(grammar=grammar, begun=begun)
        case None | {"type": "text"}:
            return None
        case _:  # of a newer version: an answer that only seems to keep to it would mislead
            raise ValidationError("this version does not know that output", "output", None)
