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
from tests.end_to_end.sdks.listed import LISTED, MADE_BY, listed
from tests.end_to_end.site.harness import Server

WAYS = {"blocking", "async", "streamed", "cancelled", "wrong"}
FILES = [SCRIPTS / f"{name}.py" for names in MADE_BY.values() for name in names]
CALLS = [call for file in FILES for call in calls_in(file)]


@cache
def problems(url: str, token: str) -> dict[str, str]:
    return run_calls(running(python_with(OPENAI_PYTHON), *FILES), url, token)


@pytest.mark.parametrize("route", MADE_BY)
def test_the_list_has_each_call_of_the_scripts_once(route: str) -> None:
    routes = [route] if route else [each for each in LISTED if each not in MADE_BY]
    made = [call for name in MADE_BY[route] for call in calls_in(SCRIPTS / f"{name}.py")]
    assert sorted(listed(*routes)) == sorted(call.partition(".")[2] for call in made)


def test_the_list_has_sixty_calls_at_least() -> None:
    assert len(CALLS) == len(listed()) >= 60


@pytest.mark.parametrize("route", ["chat.completions", "completions", "responses"])
def test_a_route_that_streams_is_called_in_every_way(route: str) -> None:
    assert set(LISTED[route]) == WAYS


@pytest.mark.parametrize("call", CALLS)
def test_a_call_does_what_its_users_expect(counting_server: Server, call: str) -> None:
    assert problems(counting_server.url, counting_server.token)[call] == ""
