"""The application as it is wired: what a request is answered when a bug of ours meets it."""

from collections.abc import AsyncIterator
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs

from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from tests.helpers.redis_server import fresh_prefix
from tests.server.helpers.in_process import running_workers
from tests.server.helpers.local_http import Http
from tests.server.helpers.scripted_engine import Dice, ScriptedEngine

SECRET = "a secret in /some/path"


@pytest.fixture
async def worker(redis_server: EmbeddedRedis) -> AsyncIterator[Worker]:
    engine = ScriptedEngine(Dice(0))
    prefix = fresh_prefix()
    async with running_workers(redis_server.url, prefix, engine, Dice(0), 1) as (worker,):
        yield worker


async def test_a_bug_is_answered_by_the_error_object_logged_once_and_counted(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.store.lists, "page", AsyncMock(side_effect=RuntimeError(SECRET)))
    with capture_logs() as logs:
        answer = Http(worker, "GET", "/v1/sessions")
        body = await answer.body()
    assert answer.status == 500
    assert answer.headers[b"content-type"] == b"application/json"
    assert b"content-security-policy" in answer.headers
    assert body["error"]["code"] == "internal"
    assert SECRET not in str(body)
    failures = [entry for entry in logs if entry["log_level"] == "error"]
    assert [(entry["event"], entry["path"]) for entry in failures] == [
        ("request failed", "/v1/sessions")
    ]
    assert failures[0]["exc_info"]
    assert b'parley_errors_total{code="internal"} 1.0' in worker.metrics.render()
