"""Outcomes of calls: each code has a status, and a line for the model."""

import pytest

from server.runs.tools.outcomes import OUTCOME_LINES, failure_of, outcome_of, refusal
from server.tools.messages import MAY_HAVE_RUN, ToolError, ToolResult


def test_a_result_is_what_the_tool_has_said() -> None:
    assert outcome_of(ToolResult(text="12")).word == "completed"
    failed = outcome_of(ToolResult(text="no such day", is_error=True))
    assert (failed.status, failed.output, failed.word) == (
        "failed",
        "no such day",
        "tool_reported_error",
    )


@pytest.mark.parametrize("code", MAY_HAVE_RUN)
def test_each_code_of_a_tool_is_one_line_for_the_model(code: str) -> None:
    outcome = failure_of(ToolError(code, "why"))
    expected = {"tool_cancelled": "cancelled", "tool_outcome_unknown": "unknown"}
    assert outcome.status == expected.get(code, "failed")
    assert outcome.output == f"error {code}: why"


@pytest.mark.parametrize("code", OUTCOME_LINES)
def test_each_code_of_ours_has_a_line_of_its_own(code: str) -> None:
    output = refusal(code).output
    assert output.startswith(f"error {code}: ") and output.isprintable()
