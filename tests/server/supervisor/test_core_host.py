"""`parley core`: the commands, and what the host does for an engine that is played."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from server.cli import app
from server.engines.managed import EngineSetupError
from server.supervisor.core_host import CoreHost


class PlayedEngine(SimpleNamespace):
    """`script` has, for each look, whether it goes on; a number is a signal that comes."""

    def __init__(self, wake: Callable[[], None], script: list[Any], **fields: Any) -> None:
        given: dict[str, Any] = {"due": None, "start_error": None, "is_starting": False}
        super().__init__(**(given | {"num_failed_starts": 0, "model_name": "m"} | fields))
        self.wake, self.script = wake, script
        self.num_starts = self.num_stops = 0

    def start(self) -> None:
        self.num_starts += 1

    def watch(self) -> bool:
        self.wake()
        step = self.script.pop(0)
        if isinstance(step, bool):
            return step
        os.kill(os.getpid(), step)
        return True

    def stop(self) -> None:
        self.num_stops += 1


def run(*script: Any, **fields: Any) -> tuple[int, PlayedEngine]:
    built: list[PlayedEngine] = []

    def prepare(wake: Callable[[], None]) -> Any:
        built.append(PlayedEngine(wake, list(script), **fields))
        return built[0]

    before = signal.getsignal(signal.SIGTERM)
    code = CoreHost(prepare, is_json=False).run()
    assert signal.getsignal(signal.SIGTERM) is before
    return code, built[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_watches_its_core_until_a_signal(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    code, engine = run(True, signal.SIGCHLD, True, number)
    assert (code, engine.num_starts, engine.num_stops, engine.script) == (0, 1, 1, [])
    assert capsys.readouterr().err == "parley: the core of m is ready\n"


def test_a_core_that_does_not_start_is_one_line_and_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, engine = run(start_error="no memory")
    assert (code, engine.num_stops) == (2, 1)
    assert capsys.readouterr().err == "parley: the core did not start: no memory\n"


def test_a_core_that_starts_no_more_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, engine = run(True, False, num_failed_starts=10)
    assert (code, engine.num_stops) == (1, 1)
    assert "failed to start 10 times" in capsys.readouterr().err


def test_a_model_that_cannot_be_prepared_is_one_line_and_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def prepare(wake: Callable[[], None]) -> Any:
        raise EngineSetupError("no such model")

    assert CoreHost(prepare, is_json=False).run() == 2
    assert capsys.readouterr().err == "parley: no such model\n"


def invoke(*arguments: Any) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["core", *map(str, arguments)])
    return result.exit_code, result.output


def test_keys_are_made_and_trusted_from_the_command_line(tmp_path: Path) -> None:
    code, key = invoke("keys", tmp_path / "a")
    assert code == 0 and len(key.strip()) == 64
    assert invoke("keys", tmp_path / "a") == (0, key)
    assert invoke("trust", tmp_path / "a", "gpu1", key.strip()) == (0, "")
    assert (tmp_path / "a" / "trusted" / "gpu1").read_text() == key
    assert (tmp_path / "a" / "secret").stat().st_mode & 0o777 == 0o600
    code, problem = invoke("trust", tmp_path / "a", "gpu1", "no key")
    assert code == 2 and problem == "parley: a public key has 64 hexadecimal digits\n"
    (tmp_path / "file").write_text("")
    code, problem = invoke("keys", tmp_path / "file")
    assert code == 2 and problem.startswith("parley: ") and problem.count("\n") == 1


def test_a_core_takes_no_settings_of_web_workers() -> None:
    _, help_text = invoke("--help")
    assert "--quantize" in help_text and "--listen" in help_text
    assert "--port" not in help_text and "--redis-url" not in help_text
