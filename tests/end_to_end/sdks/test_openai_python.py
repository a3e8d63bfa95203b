"""OpenAI's own Python client, unchanged: each call of the list does what its users expect."""

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
from tests.end_to_end.sdks.listed import LISTED, listed
from tests.end_to_end.site.harness import Server

CALLS = [SCRIPTS / name for name in ("calls.py", "cancelled_calls.py", "wrong_calls.py")]
WAYS = {"blocking", "async", "streamed", "cancelled", "wrong"}


@cache
def problems(url: str, token: str) -> dict[str, str]:
    return run_calls(running(python_with(OPENAI_PYTHON), *CALLS), url, token)


def test_the_list_has_every_call_of_the_scripts_once_and_sixty_at_least() -> None:
    assert sorted(listed()) == sorted(name for script in CALLS for name in calls_in(script))
    assert len(set(listed())) == len(listed()) >= 60


@pytest.mark.parametrize("route", ["chat.completions", "completions"])
def test_a_route_that_streams_is_called_in_every_way(route: str) -> None:
    assert set(LISTED[route]) == WAYS


@pytest.mark.parametrize("name", listed())
def test_a_call_does_what_its_users_expect(counting_server: Server, name: str) -> None:
    assert problems(counting_server.url, counting_server.token)[name] == ""
