"""What becomes of a call, in the protocol's words: status, code, and what the model reads."""

from dataclasses import dataclass

from server.tools.messages import ToolError, ToolResult

STATUS_OF_CODE = {
    "tool_denied": "denied",
    "tool_consent_timeout": "denied",
    "tool_cancelled": "cancelled",
    "tool_outcome_unknown": "unknown",
}  # else failed
# What was never sent to a server: such calls do not count.
NOT_SENT = frozenset(
    (
        "tool_unknown",
        "tool_not_started",
        "tool_denied",
        "tool_consent_timeout",
        "tool_limit_reached",
        "tool_rounds_exceeded",
    )
)
OUTCOME_LINES = {
    "tool_cancelled": "the call was stopped",
    "tool_denied": "the user does not want this call; do not repeat it",
    "tool_consent_timeout": "the user has not allowed this call in time",
    "tool_unknown": "there is no such tool",
    "tool_limit_reached": "no more calls of this server; answer with what is known",
    "tool_rounds_exceeded": "no more calls; answer with what is known",
    "tool_outcome_unknown": "whether the tool has run is not known; it was not run again",
    "tool_result_too_large": "the results of this answer are too long together",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a call. `output` is what the model reads; a plain result has no `code`."""

    status: str
    output: str
    code: str = ""

    @property
    def word(self) -> str:
        """For metrics, traces and the audit log."""
        return self.code or self.status


def outcome_of(result: ToolResult) -> Outcome:
    """A result whose tool says itself that it failed is the tool's own text."""
    if result.is_error:
        return Outcome("failed", result.text, "tool_reported_error")
    return Outcome("completed", result.text)


def failure_of(error: ToolError) -> Outcome:
    """One clear line, for who has called it."""
    return refusal(error.code, error.message)


def refusal(code: str, line: str = "") -> Outcome:
    """A call that ends by a code of ours."""
    status = STATUS_OF_CODE.get(code, "failed")
    return Outcome(status, f"error {code}: {line or OUTCOME_LINES[code]}", code)
