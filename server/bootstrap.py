"""Set up `.venv` on a fresh machine: `python3 server/bootstrap.py`, called by `make`; standard
library only.

Nothing is installed yet when this runs, so it imports nothing of ours. Each step says what it
does; a step that is done already is skipped, and a stamp in `.venv` makes the second run take
milliseconds.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".parley"
KERNELS_STAMP = VENV / ".parley-kernels"
LOCK = VENV / ".parley-lock"
SOURCE_SUFFIXES = (".cpp", ".h")
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
TORCH_CPU_INDEX_TIMEOUT_SECONDS = 3.0


class SetupError(Exception):
    """One clear line for the user."""


def check_python() -> None:
    """Refuse an interpreter that is too old or has no venv module (Debian packages it apart)."""
    if sys.version_info < (3, 11):  # noqa: UP036  # it may be run by any Python
        found = ".".join(map(str, sys.version_info[:3]))
        raise SetupError(f"Parley needs Python 3.11 or newer, found {found}.")
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        raise SetupError("Python's venv module is missing: sudo apt install python3-venv")


def say(text: str) -> None:
    print(f"parley setup: {text}", flush=True)


def run(*command: str | Path) -> None:
    """Run a command with its output shown."""
    done = subprocess.run([str(part) for part in command], cwd=ROOT)
    if done.returncode:
        shown = " ".join(str(part) for part in command[:6])
        raise SetupError(
            f"`{shown} …` failed with exit code {done.returncode} (its output is above)."
        )


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait until no other setup of this folder runs: two pips in one environment break it."""
    try:
        VENV.mkdir(exist_ok=True)
        lock = LOCK.open("w")
    except OSError:  # then nobody can install anything here, and what is missing says so itself
        yield
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another setup of this folder is at work: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fingerprint(files: list[Path]) -> str:
    """What something was made from: it is made again when any of these files changes."""
    content = hashlib.sha256(sys.version.encode())
    for file in sorted(files):
        content.update(file.read_bytes())
    return content.hexdigest()


def made_from(stamp: Path, wanted: str) -> bool:
    """Whether the stamp says that this was made already."""
    return stamp.exists() and stamp.read_text() == wanted


def has_nvidia_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None or Path("/dev/nvidia0").exists()


def torch_requirement() -> str:
    """The pinned torch of pyproject.toml, so that the version stands in one place."""
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    return next(line.strip(' ",') for line in lines if line.strip().startswith('"torch=='))


def torch_index_options() -> list[str]:
    """Choose the index for torch: on a machine without GPU the CPU build saves gigabytes."""
    if has_nvidia_gpu():
        say("NVIDIA GPU found: torch with CUDA, from pip's configured indexes")
        return []
    try:
        with urllib.request.urlopen(
            f"{TORCH_CPU_INDEX}/torch/", timeout=TORCH_CPU_INDEX_TIMEOUT_SECONDS
        ):
            say(f"no NVIDIA GPU: torch for CPU, from {TORCH_CPU_INDEX}")
            return ["--index-url", TORCH_CPU_INDEX]
    except OSError:
        say(
            "no NVIDIA GPU, and PyTorch's CPU index does not answer: "
            "torch from pip's configured indexes"
        )
        return []


def install() -> None:
    if not PYTHON.exists():
        say(f"[1/3] making a virtual environment in {VENV}")
        run(sys.executable, "-m", "venv", VENV)
    pip = (PYTHON, "-m", "pip", "install", "--disable-pip-version-check")
    say("[2/3] installing torch (about 200 MB; the longest step)")
    # Alone and first: a resolver that sees everything at once would pull the CUDA build.
    run(*pip, *torch_index_options(), torch_requirement())
    say("[3/3] installing Parley and its pinned dependencies")
    run(*pip, "--constraint", "constraints.txt", "--editable", ".[dev]")


def kernels_fingerprint() -> str:
    csrc = ROOT / "csrc"
    sources = [path for path in (csrc / "cpu").rglob("*") if path.suffix in SOURCE_SUFFIXES]
    return fingerprint([csrc / "build.py", *sources])


def has_kernels() -> bool:
    is_current = made_from(KERNELS_STAMP, kernels_fingerprint())
    return is_current and any((ROOT / "build").glob("parley-*.so"))


def build_extension() -> None:
    """Build the C++ kernels; where that fails, Parley runs on its torch reference paths."""
    if shutil.which(os.environ.get("CXX", "g++")) is None and shutil.which("clang++") is None:
        say(
            "WARNING: no C++ compiler (sudo apt install g++): slower torch reference paths are used"
        )
        return
    wanted = kernels_fingerprint()
    say("building the C++ kernels")
    if subprocess.run([str(PYTHON), "-m", "csrc.build"], cwd=ROOT).returncode == 0:
        KERNELS_STAMP.write_text(wanted)


def set_up(wanted: str) -> None:
    """Do what is missing of the environment that was made from `wanted`."""
    if not made_from(STAMP, wanted):
        install()
        STAMP.write_text(wanted)
        KERNELS_STAMP.unlink(missing_ok=True)  # they are built against the installed torch
    if not has_kernels():
        build_extension()


def main() -> int:
    try:
        check_python()
        wanted = fingerprint([ROOT / "pyproject.toml", ROOT / "constraints.txt", Path(__file__)])
        if made_from(STAMP, wanted) and has_kernels():
            return 0
        with alone():
            set_up(wanted)
    except SetupError as error:
        print(f"parley setup: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
