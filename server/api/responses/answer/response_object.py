"""OpenAI's `response` object: what was asked for, how far the answer is, and how it has ended."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

# What a field says where nobody has asked for anything else.
DEFAULTS: Final[Mapping[str, Any]] = {
    "background": False,
    "conversation": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
# Of what this server does not have.
ABSENT: Final[Mapping[str, Any]] = dict.fromkeys(
    (
        "access_programs",
        "image",
        "input_transformations",
        "moderation",
        "prompt_cache_diagnostics",
        "prompt_cache_options",
        "prompt_cache_retention",
        "tool_usage",
    )
)
# Why an answer is incomplete → what OpenAI's clients call it; other reasons have no name there.
INCOMPLETE: Final[Mapping[str, str]] = {
    "max_output_tokens": "max_output_tokens",
    "repetition": "max_output_tokens",
    "deadline": "max_output_tokens",
    "quota": "max_output_tokens",
    "content_filter": "content_filter",
    "steered": "steered",
}
# Why it has failed → the code; every other failure is the server's.
INVALID: Final = frozenset(
    ("output_format_refused", "tools_not_supported", "thinking_not_supported")
)
FAILURES: Final[Mapping[str, str]] = {
    "engine_error": "the engine has failed",
    "model_unavailable": "the model could not be loaded",
    "store_lost": "the answer was lost",
}


class Outcome(NamedTuple):
    """How an answer has ended: `response.done`'s words, or those of the stored message."""

    status: str  # of chat.v1
    reason: str
    message: str = ""  # for a person
    usage: Mapping[str, Any] | None = None
    ended_at: float | None = None  # seconds since 1970

    @property
    def openai_status(self) -> str:
        """An answer that ends so that another one goes on with more words is incomplete there."""
        return "incomplete" if self.reason == "steered" else self.status

    @property
    def event_type(self) -> str:
        """Of the last event. There is none for a cancelled one: the object's status says it."""
        status = self.openai_status
        return f"response.{'incomplete' if status == 'cancelled' else status}"


def response_object(
    asked: Mapping[str, Any],
    output: Sequence[Mapping[str, Any]] = (),
    outcome: Outcome | None = None,
    *,
    status: str = "in_progress",
) -> dict[str, Any]:
    """`asked` has at least `id`, `created_at` and `model`, and what else is not `DEFAULTS`.

    `status` is that of an answer without an outcome.
    """
    head = {**DEFAULTS, **ABSENT, **asked, "object": "response", "output": list(output)}
    if outcome is None:
        unknown = dict.fromkeys(("completed_at", "error", "incomplete_details", "usage"))
        return {**head, "status": status, **unknown}
    return {
        **head,
        "status": outcome.openai_status,
        "completed_at": outcome.ended_at if outcome.status == "completed" else None,
        "error": _error(outcome) if outcome.status == "failed" else None,
        "incomplete_details": _incomplete(outcome),
        "usage": _usage(outcome.usage),
    }


def _error(outcome: Outcome) -> dict[str, Any]:
    code = "invalid_prompt" if outcome.reason in INVALID else "server_error"
    words = outcome.message or FAILURES.get(outcome.reason, "the answer has failed")
    return {"code": code, "message": words}


def _incomplete(outcome: Outcome) -> dict[str, Any] | None:
    if outcome.openai_status != "incomplete":
        return None
    return {"reason": INCOMPLETE.get(outcome.reason)}


def _usage(usage: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Tokens of thoughts are output tokens, and are not counted apart."""
    if usage is None:
        return None
    num_input, num_output = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
    num_cached = usage.get("cached_tokens", 0)
    return {
        "input_tokens": num_input,
        "input_tokens_details": {"cached_tokens": num_cached, "cache_write_tokens": 0},
        "output_tokens": num_output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": num_input + num_output,
    }
