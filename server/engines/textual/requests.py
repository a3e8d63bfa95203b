"""What the engine is asked → the body of `POST /chat/completions`, or a refusal by name."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from server.engines.client import SamplingParams, StructuredOutputsParams, ValidationError
from server.engines.textual.conversation import Conversation
from server.engines.textual.facts import BY_LAST_MESSAGE, COUNTING, Facts

MAX_STOPS = 4  # that OpenAI takes
# In OpenAI's words, and in those of who takes more than these.
FIELDS: Final = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")
WIDER_FIELDS: Final = {
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
}
LLAMACPP_FIELDS: Final = WIDER_FIELDS | {"repetition_penalty": "repeat_penalty"}

# What needs the engine's tokens, or is known to no route of OpenAI's: name → whether it is asked.
REFUSED: Final[Mapping[str, Callable[[SamplingParams], bool]]] = {
    "logprobs": lambda params: params.logprobs is not None,
    "prompt_logprobs": lambda params: params.scores_prompt,
    "logit_bias": lambda params: bool(params.logit_bias),
    "stop_token_ids": lambda params: bool(params.stop_token_ids),
    "ignore_eos": lambda params: params.ignore_eos,
    "min_tokens": lambda params: params.min_tokens > 0,
    "allowed_token_ids": lambda params: params.allowed_token_ids is not None,
    "bad_words": lambda params: bool(params.bad_words),
    "thinking_token_budget": lambda params: params.thinking_token_budget is not None,
    "repetition_detection": lambda params: params.repetition_detection is not None,
}


class CallForm(StructuredOutputsParams, kw_only=True):
    """The answer calls a tool: the one of that name, or any. The engine itself holds it to that."""

    tool: str | None = None

    @property
    def choice_of_tool(self) -> Any:
        if self.tool is None:
            return "required"
        return {"type": "function", "function": {"name": self.tool}}


def check_params(facts: Facts, params: SamplingParams) -> None:
    """Raise `ValidationError`, with the parameter, for what such an engine is not asked for."""
    for name, is_asked in REFUSED.items():
        if is_asked(params):
            raise _not_here(name)
    if not facts.is_wider:
        if len(params.stop_strings) > MAX_STOPS:
            raise _not_here("stop", f"with more than {MAX_STOPS} strings")
        for name, value in _wider(params).items():
            if value is not None:
                raise _not_here(name)
    form = params.structured_outputs
    if form is None or isinstance(form, CallForm):
        return
    if form.kind not in ("json", "json_object"):
        raise _not_here("output", "but as JSON")
    if form.begun:
        raise _not_here("output", "of an answer that goes on")


def chat_request(
    facts: Facts, conversation: Conversation, params: SamplingParams, begun: str
) -> dict[str, Any]:
    """The body, for an answer that goes on after the text `begun`."""
    body: dict[str, Any] = {
        "model": facts.model,
        "messages": conversation.wire(),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if facts.server in COUNTING:
        body["stream_options"]["continuous_usage_stats"] = True
    if params.max_tokens is not None:
        body["max_tokens"] = params.max_tokens
    body |= {name: getattr(params, name) for name in FIELDS if _is_said(params, name)}
    names = LLAMACPP_FIELDS if facts.server in BY_LAST_MESSAGE else WIDER_FIELDS
    body |= {names[name]: value for name, value in _wider(params).items() if value is not None}
    if params.stop_strings:
        body["stop"] = params.stop_strings
    if conversation.tools:
        body["tools"] = conversation.tools
    if conversation.reasoning_effort is not None:
        body["reasoning_effort"] = conversation.reasoning_effort
    body |= _form(params.structured_outputs)
    if begun:
        body["messages"].append({"role": "assistant", "content": begun})
        if facts.server not in BY_LAST_MESSAGE:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
    return body


def _is_said(params: SamplingParams, name: str) -> bool:
    is_zero_anyway = name.endswith("_penalty") and not getattr(params, name)
    return getattr(params, name) is not None and not is_zero_anyway


def _wider(params: SamplingParams) -> dict[str, float | None]:
    """Those that OpenAI does not have; None where they change nothing."""
    penalty = params.repetition_penalty
    return {
        "top_k": params.top_k if params.top_k > 0 and not params.is_greedy else None,
        "min_p": params.min_p or None,
        "repetition_penalty": penalty if penalty != 1 else None,
    }


def _form(form: StructuredOutputsParams | None) -> dict[str, Any]:
    match form:
        case None:
            return {}
        case CallForm():
            return {"tool_choice": form.choice_of_tool}
        case _ if form.json_object:
            return {"response_format": {"type": "json_object"}}
        case _:
            schema = {"name": "answer", "schema": form.json, "strict": True}
            return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _not_here(name: str, how: str = "") -> ValidationError:
    what = f"{name} {how}".strip()
    return ValidationError(f"{what} is not done by this engine, which knows texts alone", name)
