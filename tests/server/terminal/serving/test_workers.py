"""The list of workers in the terminal."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from server.terminal.serving.workers import workers_table


def worker(name: str = "h-1-a", **changed: Any) -> dict[str, Any]:
    return {
        "id": name,
        "host": "h",
        "pid": 7,
        "version": "0.1.0",
        "engine": "ok",
        "active_responses": 3,
        "connections": 9,
        "draining": 0,
        "seen_at": 99_000,
        **changed,
    }


def printed(*workers: dict[str, Any], missing: tuple[dict[str, Any], ...] = ()) -> str:
    console = Console(file=io.StringIO(), width=300, highlight=False)
    roll = {"now": 100_000, "replicas": workers, "missing": missing}
    console.print(workers_table(roll).drawn(console.width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_worker_has_its_engine_its_work_and_its_age() -> None:
    _, line = printed(worker()).splitlines()
    assert line.split() == ["h-1-a", "h", "7", "0.1.0", "ok", "3", "9", "1", "s", "ago"]


def test_what_is_wrong_is_said() -> None:
    away = worker("h-1-b", engine="unavailable", engine_since=40_000, draining=1)
    silent = worker("h-1-c", seen_at=10_000)
    _, first, last = printed(away, silent, missing=(silent,)).splitlines()
    assert "unavailable for 1 min 00 s" in first and "drains" in first
    assert "1 min 30 s ago" in last and "silent" in last


def test_who_logs_more_or_less_than_usual_says_so() -> None:
    assert "logs debug" in printed(worker(log_level="debug"))
    assert "logs" not in printed(worker(log_level="info"))


@pytest.mark.row("B60")
def test_a_worker_commands_no_terminal() -> None:
    hostile = "\x1b]0;owned\x07\r\n\x9b31m"
    text = printed(worker(hostile, host=hostile, version=hostile, engine=hostile))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert len(text.splitlines()) == 2
