import io
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.client.args import AsyncEngineArgs
from engine.client.launcher import MAX_SOCKET_PATH, CoreProcess, PrivateDirectory
from engine.config import EngineConfig
from engine.errors import EngineStartError
from tests.helpers.patience import PATIENCE

READY = """
    import json, sys
    config = json.loads(sys.stdin.readline())
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.read()  # until the parent closes the pipe
"""
STANDBY = """
    import json, sys
    config = json.loads(sys.stdin.readline())
    print(json.dumps({"standby": True}), flush=True)
    line = sys.stdin.readline()
    print(json.dumps({"ready": True, "told": line.strip(), "args": sys.argv[1:]}), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def directory() -> Iterator[PrivateDirectory]:
    directory = PrivateDirectory()
    yield directory
    directory.remove()


@pytest.fixture
def config(directory: PrivateDirectory) -> EngineConfig:
    return AsyncEngineArgs("no-model").create_engine_config(directory.address)


def _start(
    program: str, config: EngineConfig, folder: Path, standby_bytes: int | None = None
) -> CoreProcess:
    """A core whose code is `program`, a module in `folder`."""
    (folder / "fake_core.py").write_text(textwrap.dedent(program))
    env = {**os.environ, "PYTHONPATH": str(folder)}
    log = io.BytesIO()
    return CoreProcess(config, log=log, env=env, module="fake_core", standby_bytes=standby_bytes)


def _is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_directory_is_private_and_its_socket_path_short(directory: PrivateDirectory) -> None:
    assert directory.path.stat().st_mode & 0o777 == 0o700
    assert len(directory.address.removeprefix("ipc://")) <= MAX_SOCKET_PATH
    directory.remove()
    directory.remove()
    assert not directory.path.exists()


def test_long_temporary_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    directory = PrivateDirectory()
    assert len(directory.address.removeprefix("ipc://")) <= MAX_SOCKET_PATH
    directory.remove()
    assert list(long.iterdir()) == []


def test_core_is_ready_when_it_says_so_and_ends_when_asked(
    config: EngineConfig, tmp_path: Path
) -> None:
    core = _start(READY, config, tmp_path)
    core.wait_ready(PATIENCE)
    core.wait_ready(PATIENCE)
    assert core.is_ready and core.poll() is None
    core.terminate()
    core.terminate()
    assert not core.is_ready and _is_gone(core.pid)


def test_config_goes_in_on_stdin(config: EngineConfig, tmp_path: Path) -> None:
    program = READY.replace('{"ready": True}', '{"ready": False, "error": config["address"]}')
    core = _start(program, config, tmp_path)
    with pytest.raises(EngineStartError, match=config.address):
        core.wait_ready(PATIENCE)
    assert _is_gone(core.pid)


def test_failed_start_carries_the_last_log_lines(config: EngineConfig, tmp_path: Path) -> None:
    program = """
        import sys
        print("so it goes", file=sys.stderr)
        sys.exit(3)
    """
    core = _start(program, config, tmp_path)
    with pytest.raises(EngineStartError, match=r"status 3") as caught:
        core.wait_ready(PATIENCE)
    assert "so it goes" in caught.value.log
    assert _is_gone(core.pid)


def test_a_standby_core_serves_when_it_is_called(config: EngineConfig, tmp_path: Path) -> None:
    core = _start(STANDBY, config, tmp_path, standby_bytes=123)
    assert not core.is_prepared
    core.wait_prepared(PATIENCE)
    assert core.is_prepared and not core.is_ready
    core.call()
    core.wait_ready(PATIENCE)
    assert core.is_ready
    assert (core.report["told"], core.report["args"]) == ("serve", ["--standby", "123"])
    core.terminate()


def test_a_standby_core_that_cannot_start_says_why(config: EngineConfig, tmp_path: Path) -> None:
    program = """
        import json
        print(json.dumps({"ready": False, "error": "memory is short"}), flush=True)
    """
    core = _start(program, config, tmp_path, standby_bytes=123)
    with pytest.raises(EngineStartError, match="memory is short"):
        core.wait_prepared(PATIENCE)
    core.call()  # in vain, and without an error
    assert not core.is_prepared and _is_gone(core.pid)


def test_a_standby_core_that_dies_before_it_is_called_never_serves(
    config: EngineConfig, tmp_path: Path
) -> None:
    core = _start(STANDBY, config, tmp_path, standby_bytes=123)
    core.wait_prepared(PATIENCE)
    core.process.kill()
    core.wait()
    core.call()
    with pytest.raises(EngineStartError, match="exited before it was ready"):
        core.wait_ready(PATIENCE)


def test_core_that_is_never_ready_is_ended(config: EngineConfig, tmp_path: Path) -> None:
    core = _start("import sys; sys.stdin.read()", config, tmp_path)
    with pytest.raises(EngineStartError, match="not ready within"):
        core.wait_ready(0.2)
    assert _is_gone(core.pid)


def test_core_that_ignores_sigterm_is_killed(config: EngineConfig, tmp_path: Path) -> None:
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + READY.replace(
        "sys.stdin.read()", "signal.pause()"
    ).replace("\n    ", "\n")
    core = _start(program, config, tmp_path)
    core.wait_ready(PATIENCE)
    assert core.terminate(timeout=0.1) == -signal.SIGKILL


def test_core_may_print_as_much_as_it_likes(config: EngineConfig, tmp_path: Path) -> None:
    program = READY.replace(
        "sys.stdin.read()", "print('x' * 1_000_000, flush=True); sys.exit(7)"
    ).replace("sys.exit(7)", "print('y' * 1_000_000, file=sys.stderr, flush=True); sys.exit(7)")
    core = _start(program, config, tmp_path)
    core.wait_ready(PATIENCE)
    assert core.wait(10) == 7
    core.terminate()


def test_ctrl_c_does_not_reach_the_core(config: EngineConfig, tmp_path: Path) -> None:
    core = _start(READY, config, tmp_path)
    core.wait_ready(PATIENCE)
    assert os.getpgid(core.pid) != os.getpgid(0)
    core.terminate()


def test_core_ends_with_a_killed_parent(config: EngineConfig, tmp_path: Path) -> None:
    (tmp_path / "fake_core.py").write_text(textwrap.dedent(READY))
    parent = """
        import os, signal, sys
        from engine.client.args import AsyncEngineArgs
        from engine.client.launcher import CoreProcess
        config = AsyncEngineArgs("m").create_engine_config("ipc:///x")
        core = CoreProcess(config, module="fake_core")
        core.wait_ready()
        print(core.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    env = {**os.environ, "PYTHONPATH": f"{Path.cwd()}{os.pathsep}{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(parent)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    _wait_gone(pid)


def _wait_gone(pid: int) -> None:
    """Wait for a process that is not our child, through its pidfd."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with os.fdopen(pidfd):
        assert select.select([pidfd], [], [], 10)[0], f"process {pid} still runs"
