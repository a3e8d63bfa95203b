"""The application as it is wired: what a request is answered when a bug of ours meets it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from starlette.types import Message
from structlog.testing import capture_logs

from server.app import Worker
from sessions.embedded import EmbeddedRedis
from tests.redis_server import fresh_prefix
from tests.server.in_process import TOKEN, Dice, ScriptedEngine, running_workers

SECRET = "a secret in /some/path"


@pytest.fixture
async def worker(redis_server: EmbeddedRedis, tmp_path: Path) -> AsyncIterator[Worker]:
    (tmp_path / "config.json").write_text("{}")
    engine = ScriptedEngine(Dice(0))
    prefix = fresh_prefix()
    async with running_workers(redis_server.url, prefix, tmp_path, engine, Dice(0), 1) as (worker,):
        yield worker


async def get(worker: Worker, path: str) -> tuple[dict[bytes, bytes], bytes, int]:
    """Headers, body and status of an answer."""
    told: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        told.append(message)

    scope: dict[str, Any] = {
        **{"type": "http", "method": "GET", "path": path, "query_string": b"", "scheme": "http"},
        "headers": [(b"host", b"localhost"), (b"authorization", f"Bearer {TOKEN}".encode())],
        **{"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)},
    }
    await worker.app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in told)
    return dict(told[0]["headers"]), body, told[0]["status"]


async def test_a_bug_is_answered_by_the_error_object_logged_once_and_counted(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.store, "sessions", AsyncMock(side_effect=RuntimeError(SECRET)))
    with capture_logs() as logs:
        headers, body, status = await get(worker, "/v1/sessions")
    assert status == 500
    assert headers[b"content-type"] == b"application/json"
    assert b"content-security-policy" in headers
    assert json.loads(body)["error"]["code"] == "internal"
    assert SECRET.encode() not in body
    failures = [entry for entry in logs if entry["log_level"] == "error"]
    assert [(entry["event"], entry["path"]) for entry in failures] == [
        ("request failed", "/v1/sessions")
    ]
    assert failures[0]["exc_info"]
    assert b'parley_errors_total{code="internal"} 1.0' in worker.metrics.render()
