"""langchain-openai, unchanged: each call of `langchain_calls.py` does what its users expect."""

from functools import cache
from pathlib import Path

import pytest

from tests.end_to_end.sdks.environment import (
    LANGCHAIN,
    OTHERS,
    calls_in,
    python_with,
    run_calls,
    running,
)
from tests.end_to_end.site.harness import Server

CALLS = Path(__file__).with_name("langchain_calls.py")

pytestmark = pytest.mark.slow


@cache
def problems(url: str, token: str) -> dict[str, str]:
    return run_calls(running(python_with(LANGCHAIN, among=OTHERS), CALLS), url, token)


@pytest.mark.parametrize("name", calls_in(CALLS))
def test_a_call_does_what_its_users_expect(counting_server: Server, name: str) -> None:
    assert problems(counting_server.url, counting_server.token)[name] == ""
