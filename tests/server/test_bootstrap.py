"""Two commands that set up the same folder at once: the second waits, and finds all done."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.root import ROOT

FILES = ("server/bootstrap.py", "pyproject.toml", "constraints.txt", "csrc/build.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a setup reads, in a folder that nothing was set up in."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@contextmanager
def another_setup(folder: Path) -> Iterator[None]:
    """As if it were at work meanwhile."""
    (folder / ".venv").mkdir()
    with (folder / ".venv" / ".parley-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def start(folder: Path, program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", f"import bootstrap as setup\n{program}"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder / "server")},
    )


def finish(folder: Path) -> None:
    """Leave what the other setup leaves when it is done."""
    made_from = "[setup.ROOT / 'pyproject.toml', setup.ROOT / 'constraints.txt', "
    made_from += "setup.Path(setup.__file__)]"
    program = f"print(setup.fingerprint({made_from}), setup.kernels_fingerprint())"
    output, _ = start(folder, program).communicate()
    installed, kernels = output.split()
    (folder / ".venv" / ".parley").write_text(installed)
    (folder / ".venv" / ".parley-kernels").write_text(kernels)
    (folder / "build").mkdir()
    (folder / "build" / "parley-1.so").touch()


def test_a_second_setup_says_that_it_waits_and_repeats_nothing(folder: Path) -> None:
    with another_setup(folder):
        second = start(folder, "raise SystemExit(setup.main())")
        assert second.stdout is not None
        assert "another setup of this folder is at work" in second.stdout.readline()
        finish(folder)
    rest, _ = second.communicate()
    assert (second.returncode, rest) == (0, "")


def test_a_setup_that_is_done_waits_for_nobody(folder: Path) -> None:
    with another_setup(folder):
        finish(folder)
        done = start(folder, "raise SystemExit(setup.main())")
        assert done.communicate()[0] == "" and done.returncode == 0


def test_a_folder_that_nobody_may_write_to_is_not_locked(folder: Path) -> None:
    (folder / ".venv").write_text("a file, so that not even root can write into it")
    output, _ = start(folder, "with setup.alone(): print('within')").communicate()
    assert output == "within\n"
