"""The Responses over the websocket of OpenAI's own client: each call does what its users expect."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.end_to_end.sdks.environment import OPENAI_WEBSOCKET, lines_of, python_with
from tests.end_to_end.site.harness import Server

CALLS = Path(__file__).parent / "socket_calls.py"
HELPERS = {"until", "told", "main"}
NAMES = [
    node.name
    for node in ast.parse(CALLS.read_text()).body
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in HELPERS
]


@cache
def problems(url: str, token: str) -> dict[str, str]:
    return lines_of([str(python_with(OPENAI_WEBSOCKET)), str(CALLS)], url, token)


@pytest.mark.parametrize("name", NAMES)
def test_a_call_does_what_its_users_expect(counting_server: Server, name: str) -> None:
    assert problems(counting_server.url, counting_server.token)[name] == ""
