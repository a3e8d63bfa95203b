"""`Offered` and `Past`: whose a call is, and what was called since the user's question."""

from typing import Any

import pytest

from server.runs.tools.offered import Offered, Past, runs_tools
from sessions.model.records import Message

OWN = {"type": "function", "name": "weather"}
MINE = {
    "type": "function",
    "name": "s__t",
    "server_label": "s",
    "consent": "once",
    "max_calls": 3,
}


def test_a_tool_has_the_policy_that_was_stored_with_the_answer() -> None:
    tool = Offered.of({"tools": [OWN, MINE]}).run_here["s__t"]
    assert (tool.server, tool.consent, tool.max_calls) == ("s", "once", 3)
    bare = Offered.of({"tools": [{"name": "s__t", "server_label": "s"}]}).run_here["s__t"]
    assert (bare.consent, bare.max_calls) == ("always", 1)  # what is not known asks, and once


@pytest.mark.parametrize(
    ("tools", "name", "is_ours"),
    [
        ([MINE], "s__t", True),
        ([OWN, MINE], "s__t", True),
        ([OWN, MINE], "weather", False),
        ([OWN, MINE], "unheard", False),  # the client may know what it means
        ([MINE], "unheard", True),  # nobody else would answer
        ([OWN], "unheard", False),
    ],
)
def test_a_call_is_the_servers_or_the_clients(
    tools: list[dict[str, Any]], name: str, is_ours: bool
) -> None:
    assert Offered.of({"tools": tools}).is_ours(name) is is_ours


def test_an_answer_that_is_offered_none_runs_none() -> None:
    assert runs_tools({"tools": [OWN, MINE]})
    for settings in ({}, {"tools": [OWN]}, {"tools": [MINE], "tool_choice": "none"}):
        assert not runs_tools(settings)


def message(role: Any, *codes: str | None) -> Message:
    outputs = [{"server_label": "s", **({"code": code} if code else {})} for code in codes]
    return Message("m", None, role, "", "completed", 1, tool_outputs=outputs or None)


def test_calls_and_rounds_count_from_the_question_on_and_refused_ones_do_not() -> None:
    before = [message("user"), message("assistant", None, None), message("tool")]
    since = [
        message("user"),
        message("assistant", None, "tool_denied", "tool_timeout"),
        message("tool"),
        message("assistant", "tool_limit_reached", "tool_cancelled"),
        message("tool"),
    ]
    past = Past.of([*before, *since])
    assert (past.num_rounds, past.num_calls) == (2, {"s": 3})
    assert Past.of([]) == Past.of(since[:1])
