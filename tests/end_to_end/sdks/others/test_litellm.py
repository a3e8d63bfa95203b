"""litellm, unchanged: each call of `litellm_calls.py` does what its users expect."""

from functools import cache
from pathlib import Path

import pytest

from tests.end_to_end.sdks.environment import (
    LITELLM,
    OTHERS,
    calls_in,
    python_with,
    run_calls,
    running,
)
from tests.end_to_end.sdks.others.offline import OFFLINE
from tests.end_to_end.site.harness import Server

CALLS = Path(__file__).with_name("litellm_calls.py")

pytestmark = pytest.mark.slow


@cache
def problems(url: str, token: str) -> dict[str, str]:
    command = running(python_with(LITELLM, among=OTHERS), CALLS)
    return run_calls(command, url, token, environment=OFFLINE)


@pytest.mark.parametrize("name", calls_in(CALLS))
def test_a_call_does_what_its_users_expect(counting_server: Server, name: str) -> None:
    assert problems(counting_server.url, counting_server.token)[name] == ""
