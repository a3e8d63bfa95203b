"""Builds csrc into shared libraries with nothing but a compiler, in a minute or less, once.

One library for each folder: `cpu` by a C++ compiler, and `cuda` by nvcc, where there is one. The
sources use torch's stable ABI, so neither ninja, cmake nor setuptools is needed, and a library
loads into later versions of torch as well. Its file name is a hash of everything that went into
it: when that exists it is used, when not it is built under a lock and moved into place in one
step, so any number of processes may ask at the same time.

    python -m csrc.build         builds the kernels of the CPU, if needed
    python -m csrc.build cuda    builds those of GPUs, and prints what each of them takes
"""

import fcntl
import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).resolve().parent
SOURCE_SUFFIXES = (".cpp", ".cu", ".h")
TARGET_VERSION = "0x020a000000000000"  # the oldest torch whose stable ABI we use: 2.10
CPU_FLAGS = ("-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-Wno-psabi")
CUDA_FLAGS = (
    "-std=c++20",
    "-O3",
    "-DUSE_CUDA",
    "--expt-relaxed-constexpr",
    "-Xcompiler=-fPIC,-fvisibility=hidden",
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=[sm_90,compute_90]",  # and whatever comes later
    "-Xptxas=-v",
)
TORCH_LIBRARIES: tuple[str, ...] = ("torch_cpu", "c10")
TIMEOUT_SECONDS = 1200  # of one compilation: a slow machine, or a busy one, takes minutes
CUDA_COMPILER = "nvcc"


class BuildError(RuntimeError):
    """The compiler did not take our sources; the message holds what it said."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one library is made: of all .cpp and .cu below a folder, by one compiler."""

    name: str  # what its file name begins with
    folder: Path  # from which its files include each other
    compiler: str
    flags: tuple[str, ...]
    libraries: tuple[str, ...] = TORCH_LIBRARIES
    include: tuple[Path, ...] = ()  # folders, whose files are part of the hash

    def sources(self) -> dict[str, Path]:
        """Units and headers, by their names below their folder: `attention/cache.cpp`."""
        return {
            path.relative_to(folder).as_posix(): path
            for folder in (*self.include, self.folder)
            for path in sorted(folder.rglob("*"))
            if path.suffix in SOURCE_SUFFIXES
        }

    def units(self) -> dict[str, Path]:
        """What is compiled by itself."""
        return {name: path for name, path in self.sources().items() if path.suffix != ".h"}


def build() -> Path | None:
    """The path of the CPU's library; None, after one warning, where it cannot be built."""
    compiler = find_compiler()
    if compiler is None:
        logger.warning(
            "no C++ compiler (g++ or clang++): the slow reference kernels are used; "
            "on Debian: apt install g++"
        )
        return None
    return _try_to_build(cpu_recipe(compiler))


def build_cuda() -> Path | None:
    """The path of the GPUs' library; None, after one warning, where it cannot be built."""
    compiler = find_cuda_compiler()
    if compiler is None:
        logger.warning("no nvcc: GPUs use torch's own operations; it comes with the CUDA toolkit")
        return None
    return _try_to_build(cuda_recipe(compiler))


def cpu_recipe(compiler: str) -> Recipe:
    return Recipe("parley", SOURCES / "cpu", compiler, CPU_FLAGS)


def cuda_recipe(compiler: str) -> Recipe:
    """Where torch has no CUDA, it cannot be loaded, and only shows that all compiles."""
    libraries = TORCH_LIBRARIES
    if (_torch_folder() / "lib" / "libtorch_cuda.so").exists():
        libraries = ("torch_cuda", *libraries)
    return Recipe("parley_cuda", SOURCES / "cuda", compiler, CUDA_FLAGS, libraries)


def find_compiler() -> str | None:
    """$CXX, g++ or clang++, whichever is there first."""
    candidates = (os.environ.get("CXX"), "g++", "clang++")
    return next((path for name in candidates if name and (path := shutil.which(name))), None)


def find_cuda_compiler() -> str | None:
    return shutil.which(CUDA_COMPILER)


def build_in(folder: Path, recipe: Recipe) -> Path:
    """Build into `folder`, or find what was built there from the same sources.

    What the compiler said lies beside the library, as `.log`. Raises BuildError.
    """
    library = _library(folder, recipe)
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file, also by a death
        if not library.exists():
            logger.info("building the kernels of csrc/%s", recipe.folder.name)
            _compile(recipe, library)
    return library


def _library(folder: Path, recipe: Recipe) -> Path:
    return folder / f"{recipe.name}-{digest(recipe)}.so"


def digest(recipe: Recipe) -> str:
    """The same for the same sources, compiler, flags and torch, wherever they lie."""
    import torch

    version = subprocess.run([recipe.compiler, "--version"], capture_output=True, text=True).stdout
    # Not the folder of torch's headers, which its version says enough of: so a build can be moved.
    said = (version, recipe.flags, recipe.libraries, TARGET_VERSION, str(torch.__version__))
    result = hashlib.sha256(repr(said).encode())
    for name, path in recipe.sources().items():
        result.update(name.encode() + b"\0" + path.read_bytes())
    return result.hexdigest()[:16]


def _try_to_build(recipe: Recipe) -> Path | None:
    try:
        return _shipped(recipe) or build_in(cache_folder(), recipe)
    except (BuildError, OSError, subprocess.SubprocessError) as error:
        logger.warning(
            "csrc/%s was not built, the slow reference kernels are used: %s",
            recipe.folder.name,
            error,
        )
        return None


def _compile(recipe: Recipe, library: Path) -> None:
    temporary = library.with_suffix(".tmp")
    temporary.mkdir(exist_ok=True)
    try:
        flags = (*recipe.flags, *_include_flags(recipe))
        units = recipe.units()
        objects = {name: temporary / f"{name.replace('/', '-')}.o" for name in units}
        commands = [
            [recipe.compiler, *flags, "-c", str(unit), "-o", str(objects[name])]
            for name, unit in units.items()
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            said = list(pool.map(_run, commands))
        libraries = [f"-L{_torch_folder() / 'lib'}", *(f"-l{name}" for name in recipe.libraries)]
        linked = temporary / library.name
        _run(
            [recipe.compiler, "-shared", "-o", str(linked), *map(str, objects.values()), *libraries]
        )
        library.with_suffix(".log").write_text("".join(said))
        linked.replace(library)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _run(command: list[str]) -> str:
    """What it said. Raises BuildError."""
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    if result.returncode:
        raise BuildError(f"{' '.join(command)}\n{result.stderr.strip()}")
    return result.stdout + result.stderr


def _include_flags(recipe: Recipe) -> tuple[str, ...]:
    include = _torch_folder() / "include"
    folders = (
        recipe.folder,
        *recipe.include,
        include,
        include / "torch" / "csrc" / "api" / "include",
    )
    return (f"-DTORCH_TARGET_VERSION={TARGET_VERSION}", *(f"-I{folder}" for folder in folders))


def _torch_folder() -> Path:
    import torch

    return Path(torch.__file__).parent


def _shipped(recipe: Recipe) -> Path | None:
    """What was built beside sources that are read-only by now, as in a container's image."""
    beside = _folder_beside()
    if cache_folder() == beside:
        return None
    library = _library(beside, recipe)
    return library if library.exists() else None


def _folder_beside() -> Path:
    return SOURCES.parent / "build"


def cache_folder() -> Path:
    """`build/` beside the sources; where that is read-only, the user's cache."""
    beside = _folder_beside()
    if os.access(beside if beside.exists() else beside.parent, os.W_OK):
        return beside
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parley"


# ---- what a GPU's kernels take -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KernelUse:
    """What one kernel takes on one generation of GPUs, as ptxas reports it."""

    architecture: str  # "sm_90"
    name: str  # as the linker sees it
    num_registers: int  # of a thread
    num_shared_bytes: int  # of a block
    num_spilled_bytes: int  # to memory and back, because registers ran out


_PTXAS = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for '(?P<architecture>\w+)'"
    r".*?(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    r".*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


def read_kernel_uses(log: str) -> list[KernelUse]:
    """What `ptxas -v` said, a kernel each."""
    uses = []
    for match in _PTXAS.finditer(log):
        shared = re.search(r"(\d+) bytes smem", match["rest"])
        uses.append(
            KernelUse(
                match["architecture"],
                match["name"],
                int(match["registers"]),
                int(shared[1]) if shared else 0,
                int(match["stores"]) + int(match["loads"]),
            )
        )
    return uses


def _tell_kernels(library: Path) -> bool:
    """Print a table of all kernels; False if one of them spills."""
    uses = read_kernel_uses(library.with_suffix(".log").read_text())
    print("arch   registers  shared  spilled  kernel")
    for use in sorted(uses, key=lambda use: (use.architecture, use.name)):
        print(
            f"{use.architecture:6} {use.num_registers:9} {use.num_shared_bytes:7} "
            f"{use.num_spilled_bytes:8}  {use.name}"
        )
    return bool(uses) and not any(use.num_spilled_bytes for use in uses)


def main(arguments: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if arguments != ["cuda"]:
        return build() is None
    if find_cuda_compiler() is None:
        print("skipped: no nvcc, which compiles csrc/cuda; it comes with the CUDA toolkit")
        return 0
    library = build_cuda()
    if library is None:
        return 1
    if not _tell_kernels(library):
        print("a kernel spills registers to memory")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
