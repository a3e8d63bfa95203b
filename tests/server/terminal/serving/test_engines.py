"""`parley engines` in the terminal: how each is, and what it waits for."""

import io
from typing import Any

import pytest
from rich.console import Console

from server.terminal.admin_client import AdminClient
from server.terminal.serving.engines import (
    drain_engine,
    engine_table,
    list_engines,
    remove_engine,
    restart_engine,
    resume_engine,
)
from tests.server.terminal.manage.played import Played


def engine(name: str = "native-1", **changed: Any) -> dict[str, Any]:
    return {
        "name": name,
        "model": "qwen",
        "kind": "native",
        "weight": 1.0,
        "state": "ready",
        "draining": False,
        "answers": 0,
        "sessions": 4,
        "moved": 0,
        **changed,
    }


def printed(*engines: dict[str, Any], width: int = 200) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(engine_table(engines).drawn(console.width))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def cells(*engines: dict[str, Any]) -> list[list[str]]:
    """Of the rows, by columns."""
    return [[cell.text for cell in row] for row in engine_table(engines).rows]


def test_a_row_shows_state_share_load_memory_and_address() -> None:
    load: dict[str, Any] = {"running": 3, "waiting": 1, "kv_blocks": 400, "kv_blocks_free": 300}
    heading, line = printed(engine(kind="vllm", url="https://gpu1", **load))
    for word in ("name", "model", "state", "share", "running", "waiting", "KV used", "waits for"):
        assert word in heading
    for word in ("native-1", "qwen", "vllm", "ready", "100%", "3", "1", "25%", "https://gpu1"):
        assert word in line


def test_shares_are_of_those_of_the_model_that_take_new_answers() -> None:
    rows = cells(
        engine("a", weight=3.0),
        engine("b"),
        engine("c", draining=True),
        engine("d", state="dead"),
        engine("e", model="other"),
    )
    assert [row[4] for row in rows] == ["75%", "25%", "", "", "100%"]


@pytest.mark.parametrize(
    ("changed", "state", "waits_for"),
    [
        ({}, "ready", ""),
        ({"draining": True, "answers": 1}, "drains, ready", "the end of 1 answer"),
        ({"draining": True, "answers": 2}, "drains, ready", "the end of 2 answers"),
        ({"draining": True}, "drains, ready", "nothing: it may go"),
        ({"state": "connecting"}, "connecting", "its first reply"),
        (
            {"state": "connecting", "problem": "connection refused"},
            "connecting",
            "its first reply: connection refused",
        ),
        ({"state": "failed", "problem": "no such model"}, "failed", "no such model"),
        ({"state": "not_loaded"}, "not loaded", "somebody who asks qwen"),
        ({"state": "paused"}, "paused", "the end of a pause: it has failed too often"),
        ({"state": "a later one"}, "a later one", ""),
    ],
)
def test_a_row_says_what_an_engine_waits_for(
    changed: dict[str, Any], state: str, waits_for: str
) -> None:
    ((_, _, _, shown, *_, waits, _),) = cells(engine(**changed))
    assert (shown, waits) == (state, waits_for)


def test_words_of_engines_are_shown_as_text() -> None:
    hostile = "\x1b]0;owned\x07\r\n\u202eevil [bold]x[/]"
    (row,) = cells(engine(state="failed", problem=hostile, url=hostile))
    assert not {"\x1b", "\x07", "\r", "\n", "\u202e"}.intersection("".join(row))
    assert "[bold]x[/]" in "\n".join(printed(engine(state="failed", problem=hostile)))


class Answering(AdminClient):
    """A server with these engines."""

    def __init__(self, *engines: dict[str, Any]) -> None:
        self.engines = list(engines)

    def get(self, path: str, **query: str | int | bool | None) -> dict[str, Any]:
        assert path == "/engines"
        return {"engines": self.engines}


def test_scripts_get_what_the_server_says() -> None:
    assert list_engines(Answering(engine())).data == [engine()]


def test_a_server_with_one_engine_says_so() -> None:
    result = list_engines(Answering())
    assert result.data == [] and "one engine" in str(result.text)


def test_an_engine_is_restarted_with_a_reason() -> None:
    client = Played({"POST /engines/a%2Fb/restart": {"name": "a/b"}})
    result = restart_engine(client, "a/b", reason="stuck")
    assert result == ({"name": "a/b"}, "a/b restarts", "")
    assert client.asked == [("POST", "/engines/a%2Fb/restart", {"reason": "stuck"})]


def test_an_engine_of_one_of_several_models_is_drained_resumed_and_removed_alone() -> None:
    paths = ["POST /engines/a/drain", "POST /engines/a/resume", "DELETE /engines/a?model=qwen%2F3"]
    client = Played({path: {"name": "a"} for path in paths})
    drain_engine(client, "a", move=True, model="qwen/3")
    resume_engine(client, "a", model="qwen/3")
    remove_engine(client, "a", model="qwen/3")
    assert client.asked == [
        ("POST", "/engines/a/drain", {"move": True, "model": "qwen/3"}),
        ("POST", "/engines/a/resume", {"model": "qwen/3"}),
        ("DELETE", "/engines/a?model=qwen%2F3", {}),
    ]
