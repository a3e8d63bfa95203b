"""One tool process for the tests of a module, and chats that use it."""

from collections.abc import Iterator
from functools import partial

import pytest

from sessions.connection.embedded import EmbeddedRedis
from tests.server.helpers.tool_chats import Chats, running_tools, tool_chat
from tests.server.tools.helpers.running import RunningTools


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTools]:
    yield from running_tools(tmp_path_factory.mktemp("tools"))


@pytest.fixture
def chats(redis_server: EmbeddedRedis, tools: RunningTools) -> Chats:
    return partial(tool_chat, redis_server.url, tools)
