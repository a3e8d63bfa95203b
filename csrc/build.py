"""Builds csrc into one shared library with nothing but a C++ compiler, in a few seconds, once.

The sources use torch's stable ABI, so neither ninja, cmake nor setuptools is needed, and the
library loads into later versions of torch as well. Its file name is a hash of everything that went
into it: when that exists it is used, when not it is built under a lock and moved into place in one
step, so any number of processes may ask at the same time.

    python -m csrc.build    builds, if needed, and prints the path
"""

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).resolve().parent
TARGET_VERSION = "0x020a000000000000"  # the oldest torch whose stable ABI we use: 2.10
FLAGS = ("-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-Wno-psabi")
TIMEOUT_SECONDS = 1200  # of one compilation: a slow machine, or a busy one, takes minutes


class BuildError(RuntimeError):
    """The compiler did not take our sources; the message holds what it said."""


def build() -> Path | None:
    """The path of the built library; None, after one warning, where it cannot be built."""
    compiler = find_compiler()
    if compiler is None:
        logger.warning(
            "no C++ compiler (g++ or clang++): the slow reference kernels are used; "
            "on Debian: apt install g++"
        )
        return None
    try:
        return build_in(_cache_folder(), compiler)
    except (BuildError, OSError, subprocess.SubprocessError) as error:
        logger.warning("csrc was not built, the slow reference kernels are used: %s", error)
        return None


def find_compiler() -> str | None:
    """$CXX, g++ or clang++, whichever is there first."""
    candidates = (os.environ.get("CXX"), "g++", "clang++")
    return next((path for name in candidates if name and (path := shutil.which(name))), None)


def build_in(folder: Path, compiler: str) -> Path:
    """Build into `folder`, or find what was built there from the same sources."""
    flags = [*FLAGS, *_torch_flags()]
    library = folder / f"parley-{_digest(compiler)}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file, also by a death
        if not library.exists():
            logger.info("building the C++ kernels with %s", compiler)
            _compile(compiler, flags, library)
    return library


def _compile(compiler: str, flags: list[str], library: Path) -> None:
    import torch

    temporary = library.with_suffix(".tmp")
    temporary.mkdir(exist_ok=True)
    try:
        units = sorted(SOURCES.rglob("*.cpp"))
        objects = [temporary / unit.relative_to(SOURCES).with_suffix(".o") for unit in units]
        for folder in {target.parent for target in objects}:
            folder.mkdir(parents=True, exist_ok=True)
        commands = [
            [compiler, *flags, "-c", str(unit), "-o", str(target)]
            for unit, target in zip(units, objects, strict=True)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, commands))
        libraries = [f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu", "-lc10"]
        linked = temporary / library.name
        _run([compiler, "-shared", "-o", str(linked), *map(str, objects), *libraries])
        linked.replace(library)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    if result.returncode:
        raise BuildError(f"{' '.join(command)}\n{result.stderr.strip()}")


def _torch_flags() -> list[str]:
    import torch

    include = Path(torch.__file__).parent / "include"
    return [
        f"-DTORCH_TARGET_VERSION={TARGET_VERSION}",
        f"-I{include}",
        f"-I{include}/torch/csrc/api/include",
    ]


def _digest(compiler: str) -> str:
    import torch

    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    # Not the folder of torch's headers, which its version says enough of: so a build can be moved.
    said = (version, FLAGS, TARGET_VERSION, str(torch.__version__))
    digest = hashlib.sha256(repr(said).encode())
    for file in sorted([*SOURCES.rglob("*.cpp"), *SOURCES.rglob("*.h")]):
        name = file.relative_to(SOURCES).as_posix()
        digest.update(name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _cache_folder() -> Path:
    """`build/` beside the sources; where that is read-only, the user's cache."""
    beside = SOURCES.parent / "build"
    if os.access(beside if beside.exists() else beside.parent, os.W_OK):
        return beside
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parley"


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    path = build()
    sys.exit(path is None)
