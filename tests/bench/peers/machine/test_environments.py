"""Why something could not be made, in one line."""

import sys
from pathlib import Path

import pytest

from bench.peers.machine.environments import Environments, Unavailable, cache_folder, reason


def test_the_reason_is_the_last_error_not_the_last_line() -> None:
    output = "compiling\nx.cpp:3: error: no such type\nstopped\n"
    assert reason(output) == "x.cpp:3: error: no such type"
    assert reason("one\n\ntwo\n") == "one / two"
    assert reason("") == "it said nothing"


def test_a_failed_command_says_what_and_where(tmp_path: Path) -> None:
    environments = Environments(tmp_path, jobs=1)
    command = [sys.executable, "-c", "print('error: no disk'); raise SystemExit(3)"]
    with pytest.raises(Unavailable, match=r"trying it failed: error: no disk \(.*\.log\)"):
        environments.run("trying it", command)


def test_an_environment_that_was_made_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environments = Environments(tmp_path, jobs=1)
    made: list[str] = []

    def install(name: str, folder: Path) -> None:
        folder.mkdir(parents=True)
        made.append(name)

    monkeypatch.setattr(environments, "_install", install)
    for _ in range(2):
        program = environments.program("plots", "python")
        assert program == tmp_path / "environments" / "plots" / "bin" / "python"
    assert made == ["plots"]


def test_the_cache_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BENCH_PEERS_DIR", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("BENCH_PEERS_DIR")
    assert cache_folder() == Path.home() / ".cache" / "parley" / "peers"
