"""OpenAI's own JavaScript client, unchanged: each call of `calls.mjs` does what users expect."""

import re
from functools import cache

import pytest

from tests.end_to_end.sdks.environment import OPENAI_NODE, SCRIPTS, node_with, run_calls
from tests.end_to_end.site.harness import Server

CALLS = SCRIPTS / "calls.mjs"
NAMES = re.findall(r"^  async (\w+)\(\) {$", CALLS.read_text(), re.MULTILINE)


@cache
def problems(url: str, token: str) -> dict[str, str]:
    return run_calls(["node", str(CALLS)], url, token, folder=node_with(OPENAI_NODE))


@pytest.mark.parametrize("name", NAMES)
def test_a_call_does_what_its_users_expect(counting_server: Server, name: str) -> None:
    assert problems(counting_server.url, counting_server.token)[name] == ""
