"""Conversations by OpenAI's own Python client: each call does what its users expect."""

from pathlib import Path

from tests.end_to_end.sdks.environment import OPENAI_PYTHON, lines_of, python_with
from tests.end_to_end.site.harness import Server

CALLS = Path(__file__).parent / "conversation_calls.py"


def test_each_call_does_what_its_users_expect(counting_server: Server) -> None:
    command = [str(python_with(OPENAI_PYTHON)), str(CALLS)]
    problems = lines_of(command, counting_server.url, counting_server.token)
    assert len(problems) == 8
    assert {name: text for name, text in problems.items() if text} == {}
