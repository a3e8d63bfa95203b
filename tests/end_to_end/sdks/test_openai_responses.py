"""The Responses by OpenAI's own client: each call does what its users expect."""

from functools import cache

import pytest

from tests.end_to_end.sdks.environment import (
    OPENAI_PYTHON,
    SCRIPTS,
    calls_in,
    python_with,
    run_calls,
    running,
)
from tests.end_to_end.site.harness import Server

CALLS = SCRIPTS / "response_calls.py"


@cache
def problems(url: str, token: str) -> dict[str, str]:
    return run_calls(running(python_with(OPENAI_PYTHON), CALLS), url, token)


@pytest.mark.parametrize("name", calls_in(CALLS))
def test_a_call_does_what_its_users_expect(counting_server: Server, name: str) -> None:
    assert problems(counting_server.url, counting_server.token)[name] == ""
